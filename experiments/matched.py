"""The estimate of IS that is shown: both sides of the difference carry the same noise (docs/method.md).

Observed shares scatter, and a distance from the target grows with the scatter. So a plug-in distance leans upwards, and
more so where fewer images are behind it. Here the side with less noise is given more, as an expectation and not by
drawing: the mean of |d + e| takes the place of |d|, for every deviation d, where e has the variance that is missing to
the noisier side. Then equal distributions have equal distances in the mean, whatever their numbers of images.

The initial prompt may have more images than the counterfactuals. Those that share their seeds with counterfactuals
share errors with them too, which the difference cancels; the others make the initial shares more certain. The two are
weighed so that the difference has the least variance (a control variate), by one weight for a whole matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.counts import PromptCounts
from seesaw.experiments.normal import mean_distance
from seesaw.experiments.sensitivity import Metric, normaliser, shares
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["Matched", "Side", "differences", "matched_sensitivity", "seeds_shared"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Matched:
    """IS with matched noise: `value` (r, n), of r interventions and n axes.

    The initial shares behind it are p + `pull` (s - p): p of all images of the initial prompts, and s of those that
    share their seeds with the counterfactuals. `pull` (r, n) is 0 where there are no other images.
    """

    value: Floats
    pull: Floats


def matched_sensitivity(
    initial: PromptCounts, interventions: Mapping[str, PromptCounts], settings: AnalysisSettings
) -> Matched:
    """IS of r interventions on every axis, from the counts that `estimation.estimate` takes.

    Counts of exact probabilities have no noise, so their value is the plug-in one.
    """
    shape = len(interventions), len(initial.by_axis)
    value, pull = np.full(shape, np.nan), np.zeros(shape)
    sharing = seeds_shared(initial, interventions)
    first = {axis: Side.of(initial, axis) for axis in initial.by_axis}
    after = {axis: [Side.of(counts, axis) for counts in interventions.values()] for axis in initial.by_axis}
    pairs = {
        axis: [
            None if counts is None else _pair(first[axis], Side.of(counts, axis), side)
            for counts, side in zip(sharing.values(), after[axis], strict=True)
        ]
        for axis in initial.by_axis
    }
    common = _pull([pair for of_axis in pairs.values() for pair in of_axis if pair is not None])
    for j, axis in enumerate(initial.by_axis):
        pull[:, j] = [common if pair is not None else 0.0 for pair in pairs[axis]]
        before = [first[axis] if pair is None else pair.pulled(common) for pair in pairs[axis]]
        value[:, j] = differences(before, after[axis], axis, settings)
    return Matched(value, pull)


def seeds_shared(initial: PromptCounts, interventions: Mapping[str, PromptCounts]) -> dict[str, PromptCounts | None]:
    """For every intervention, the counts of the initial images that share their seeds with it; None if all do."""
    known: dict[bytes, PromptCounts | None] = {}
    found: dict[str, PromptCounts | None] = {}
    for name, counts in interventions.items():
        number = counts.codes.number if counts.codes is not None else np.empty(0, np.int64)
        key = number.tobytes()
        if key not in known:
            known[key] = initial.among(number) if len(number) else None
        found[name] = known[key]
    return found


@dataclass(frozen=True, eq=False)
class Side:
    """The mixture of the prompts on one side of a difference, about one axis.

    `p` (k,) are its shares. `errors` (s, k) is what each image number adds to their sampling error, and `number` (s,)
    are those numbers. Where seeds are not known, `errors` has a row for every prompt and attribute instead, which is a
    square root of the multinomial covariance. `number` is then empty, and there is nothing to pair.
    """

    p: Floats
    errors: Floats
    number: NDArray[np.int64]

    @classmethod
    def of(cls, counts: PromptCounts, axis: str) -> Side:
        p = counts.shares(axis)
        if counts.exact:
            return cls(p, np.zeros((1, len(p))), np.empty(0, np.int64))
        if counts.codes is not None:
            return cls(p, counts.errors(axis), counts.codes.number)
        by_prompt, n = shares(counts.by_axis[axis]), counts.by_axis[axis].sum(-1)
        share = (counts.weights / np.sqrt(np.maximum(n, 1)))[:, None, None]
        root = np.sqrt(by_prompt)[..., None] * (np.eye(len(p)) - by_prompt[:, None, :])
        return cls(p, (share * root).reshape(-1, len(p)), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class _Pair:
    """An initial side, and how it moves if the images that share their seeds with an intervention count for more.

    `apart` (s, k) is what moving by 1 adds to its errors, and `square` the sum of its squares; `along` is the sum of
    the products of `apart` and the errors of the difference, turned so that moving by `along / square` has the least.
    """

    first: Side
    shared: Floats
    apart: Floats
    along: float
    square: float

    def pulled(self, pull: float) -> Side:
        """The initial side, moved by `pull`."""
        p = self.first.p + pull * (self.shared - self.first.p)
        return Side(p, self.first.errors + pull * self.apart, self.first.number)


def _pair(first: Side, shared: Side, after: Side) -> _Pair | None:
    """The initial side and those of its images that share their seeds with `after`; None if it cannot move."""
    if np.isnan([shared.p, after.p]).any():
        return None
    apart = -first.errors
    apart[np.searchsorted(first.number, shared.number)] += shared.errors
    against = -first.errors
    both = np.isin(after.number, first.number, assume_unique=True)
    against[np.searchsorted(first.number, after.number[both])] += after.errors[both]
    return _Pair(first, shared.p, apart, float((apart * against).sum()), float((apart * apart).sum()))


def _pull(pairs: Sequence[_Pair]) -> float:
    """How far all initial sides of a matrix are pulled. One number for all: of each alone it would mostly be chance."""
    square = sum(pair.square for pair in pairs)
    return float(np.clip(sum(pair.along for pair in pairs) / square, 0, 1)) if square > 0 else 0.0


def differences(before: Sequence[Side], after: Sequence[Side], axis: str, settings: AnalysisSettings) -> Floats:
    """w-bar before minus w-bar after, (r,), each of its deviations with the variance of the noisier side."""
    if not after:
        return np.empty(0)
    metric, target = settings.metric[axis], settings.targets[axis]
    of_first = {id(side): _deviations(side, target, metric) for side in before}
    d0, v0 = (np.stack(each) for each in zip(*(of_first[id(side)] for side in before), strict=True))
    d1, v1 = (np.stack(each) for each in zip(*(_deviations(side, target, metric) for side in after), strict=True))
    v = np.maximum(v0, v1)
    k = len(target)
    part = {"nominal": 1 / 2, "ordinal": 1.0, "values": 1 / k}[metric]  # of W1 in the sum of |d|
    return np.asarray(part / normaliser(k, metric) * (mean_distance(d0, v - v0) - mean_distance(d1, v - v1)).sum(-1))


def _deviations(side: Side, target: Floats, metric: Metric) -> tuple[Floats, Floats]:
    """The deviations from `target` whose absolute values make up w-bar in `metric`, and their variances.

    `nominal`: of every share, (k,). `ordinal`: of every cumulative share but the last, (k - 1,). `values`: of the
    sorted shares from the sorted target, (k,), in the order that was observed; a uniform target needs no order.
    """
    p, errors = side.p, side.errors
    if metric == "ordinal":
        p, errors, target = (np.cumsum(each, axis=-1)[..., :-1] for each in (p, errors, target))
    elif metric == "values" and np.ptp(target) > 0:
        order = np.argsort(p, kind="stable")
        p, errors, target = p[order], errors[:, order], np.sort(target)
    return p - target, (errors * errors).sum(0)
