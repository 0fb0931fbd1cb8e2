"""The paper's studies of single mitigations: does IS predict their effects, and how often do they worsen another axis?

Sources: the appendix "Validating Mitigation Effect Estimation", and the study of negative effects (docs/method.md,
"Studies"). Each axis is mitigated by itself. What a mitigation does is measured in fresh images: with the images that
predicted it, IS before and after agree even where no axis has an effect on another.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.counts import PromptCounts
from seesaw.experiments.estimation import estimate
from seesaw.experiments.lab import all_of
from seesaw.experiments.mitigators import PromptSet
from seesaw.experiments.prompt_sets import ObservedSet, PromptSetObserver
from seesaw.experiments.sensitivity import correlation
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.significance import FALSE_DISCOVERIES, matrix_q
from seesaw.experiments.uncertainty import sensitivity_uncertainty
from seesaw.experiments.uncoupled import StatedSet, without_couplings
from seesaw.results.tables.mitigation import TOLERANCE
from seesaw.results.tables.schemas import EFFECTS, NEGATIVES, VALIDATION

__all__ = ["EXCHANGES", "Effects", "negatives", "single_mitigations", "validation"]

Floats = NDArray[np.float64]

EXCHANGES = 8  #: random exchanges of answers behind a null
_BEFORE, _AFTER, _SHARED = "before", "after", "shared"


@dataclass(frozen=True, eq=False)
class Effects:
    """IS[x, y] as predicted and as measured, a row for each model, subject, source axis x and target axis y.

    Columns of `entries`: model, subject, source_axis, target_axis; `before`, predicted by counterfactuals; `after`,
    measured in fresh images of the mitigated model and of the initial prompt; `shared`, measured in the images that
    predicted it, as in the paper; se, p, q and significant, of `after`, by false discoveries in each matrix. All are
    estimates with matched noise; they are NaN where a cell failed or shows no person.

    `uncoupled` has the same three estimates, (rows, EXCHANGES) each, where answers were exchanged so that no axis has
    an effect on another (`experiments.uncoupled`). An axis' effect on itself stays as it is. It is empty where answers
    are not known image by image.
    """

    entries: pd.DataFrame
    uncoupled: Mapping[str, Floats] = field(default_factory=dict)


async def single_mitigations(observer: PromptSetObserver, models: Sequence[str]) -> Effects:
    """The effects of every axis mitigated by itself, for all models and the subjects of the observer's dataset.

    Raises what the Lab raises, after all that was in flight has ended.
    """
    pairs = list(itertools.product(models, observer.mitigator.settings.dataset.subjects))
    found = await all_of(_effects(observer, *pair) for pair in pairs)
    there = all(each.uncoupled for each in found)
    return Effects(
        pd.concat([each.entries for each in found], ignore_index=True),
        {name: np.concatenate([each.uncoupled[name] for each in found]) for name in found[0].uncoupled}
        if there
        else {},
    )


async def _effects(observer: PromptSetObserver, model: str, subject: str) -> Effects:
    """The effects of one subject on one model."""
    mitigator = observer.mitigator
    settings, axes = mitigator.settings, [axis.name for axis in mitigator.settings.dataset.axes]
    start = mitigator.initial(subject)
    stated = [mitigator.counterfactuals(start, axis) for axis in axes]
    mitigated = [mitigator.mitigate(start, axis) for axis in axes]
    seen, seen_fresh = await all_of(
        [
            observer.observe(model, [start, *stated, *mitigated]),
            observer.observe(model, [start, *mitigated], fresh=True),
        ]
    )
    first = _stated_sets(["", *axes, *axes], [start, *stated, *mitigated], seen)
    second = _stated_sets(["", *axes], [start, *mitigated], seen_fresh)
    names = pd.MultiIndex.from_product([[model], [subject], axes, axes])
    frame = names.to_frame(index=False, name=["model", "subject", "source_axis", "target_axis"])
    counts = [each.counts for each in first], [each.counts for each in second]
    for name, value in _estimates(*counts, axes, settings).items():
        frame[name] = value.ravel()
    sure = sensitivity_uncertainty(estimate(counts[1][0], dict(zip(axes, counts[1][1:], strict=True)), settings))
    q = matrix_q(sure.p, np.eye(len(axes), dtype=bool))
    frame = frame.assign(
        se=sure.se.ravel(), p=sure.p.ravel(), q=q.ravel(), significant=(q <= FALSE_DISCOVERIES).ravel()
    )
    if any(each.counts.codes is None for each in (*first, *second)):
        return Effects(frame[EFFECTS.names])
    rng = np.random.default_rng(zlib.crc32(subject.encode()))
    own = np.eye(len(axes), dtype=bool).ravel()
    drawn = [
        _estimates(without_couplings(first, rng), without_couplings(second, rng), axes, settings)
        for _ in range(EXCHANGES)
    ]
    return Effects(
        frame[EFFECTS.names],
        {
            name: np.where(
                own[:, None], frame[name].to_numpy()[:, None], np.stack([d[name].ravel() for d in drawn], -1)
            )
            for name in (_BEFORE, _AFTER, _SHARED)
        },
    )


def _stated_sets(axes: Sequence[str], sets: Sequence[PromptSet], seen: Sequence[ObservedSet]) -> list[StatedSet]:
    return [
        StatedSet(axis, prompt_set.prompts, each.counts)
        for axis, prompt_set, each in zip(axes, sets, seen, strict=True)
    ]


def _estimates(
    known: Sequence[PromptCounts], fresh: Sequence[PromptCounts], axes: Sequence[str], settings: AnalysisSettings
) -> dict[str, Floats]:
    """IS predicted, measured in fresh images and measured in shared ones, (n, n) each.

    `known` are the initial prompt, the counterfactuals of each of the n axes, and the model mitigated on each; `fresh`
    has no counterfactuals.
    """
    n = len(axes)
    sides = {
        _BEFORE: (known[0], known[1 : 1 + n]),
        _SHARED: (known[0], known[1 + n :]),
        _AFTER: (fresh[0], fresh[1:]),
    }
    return {
        name: estimate(initial, dict(zip(axes, others, strict=True)), settings).is_matched
        for name, (initial, others) in sides.items()
    }


def validation(effects: Effects) -> pd.DataFrame:
    """Pearson correlation of IS before and after, by model and subject, over the pairs (x, y) that are defined.

    Columns: model, subject, `pairs` (their number); `correlation` over all pairs (the paper's S contains the effect of
    each axis on itself too), and `others`, over pairs with x != y; `null` and `null_others`, the same where no axis has
    an effect on another, in the mean of the exchanges. The four columns `shared...` are the same four figures if what
    is measured shares images with what is predicted, as in the paper. Fresh images say whether IS predicts;
    `shared_null_others` says what sharing alone gives.

    A correlation is NaN for fewer than 3 pairs, or if one of the two is constant. The paper's figure is the mean of the
    shared correlations: 0.65 with ITI-GEN, 0.95 with PM.
    """
    rows = []
    for (model, subject), group in effects.entries.groupby(["model", "subject"], sort=False):
        defined = group.dropna(subset=[_BEFORE, _AFTER, _SHARED])
        others = defined[defined["source_axis"] != defined["target_axis"]]
        found: list[float] = []
        for after in (_AFTER, _SHARED):
            found += [_correlation(part[_BEFORE].to_numpy(), part[after].to_numpy()) for part in (defined, others)]
            found += [_null(effects.uncoupled, after, part.index.to_numpy()) for part in (defined, others)]
        rows.append((model, subject, len(defined), *found))
    return pd.DataFrame(rows, columns=VALIDATION.names)


def _correlation(before: Floats, after: Floats) -> float:
    return correlation(before, after) if len(before) >= 3 else float("nan")


def _null(uncoupled: Mapping[str, Floats], after: str, rows: NDArray[np.int64]) -> float:
    """The mean correlation over the exchanges, of these rows; exchanges without one are left out."""
    if not uncoupled:
        return float("nan")
    found = [
        _correlation(uncoupled[_BEFORE][rows, exchange], uncoupled[after][rows, exchange])
        for exchange in range(EXCHANGES)
    ]
    defined = [value for value in found if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


def negatives(effects: Effects) -> pd.DataFrame:
    """How often mitigating x made another axis y worse (IS after < 0), by model; the paper: 29.4 % with ITI-GEN.

    Columns: model, `pairs` (defined, with x != y), `negative` (how many of them are below 0), `significant` (how many
    of these are called by false discoveries in their matrix), `share` and `share_significant` of the pairs, and `null`:
    the share below 0 where no axis has an effect on another. `null` is there because sampling alone makes about half of
    all pairs negative where nothing interacts.
    """
    others = effects.entries[effects.entries["source_axis"] != effects.entries["target_axis"]]
    rows = []
    for model, group in others.groupby("model", sort=False):
        group = group.dropna(subset=[_AFTER])
        negative = group[_AFTER].to_numpy() < -TOLERANCE
        called = negative & group["significant"].to_numpy()
        null = np.nan
        if effects.uncoupled and len(group):
            null = float((effects.uncoupled[_AFTER][group.index.to_numpy()] < -TOLERANCE).mean())
        share, of_called = (negative.mean(), called.mean()) if len(group) else (np.nan, np.nan)
        rows.append((model, len(group), int(negative.sum()), int(called.sum()), share, null, of_called))
    return pd.DataFrame(rows, columns=NEGATIVES.names)
