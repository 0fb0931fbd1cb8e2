"""From counts of images to bias and intersectional sensitivity: the one path that all figures take.

A sweep, BiasConnect, InterMit, the studies and `seesaw analyze` count what the images of some prompts show
(`PromptCounts`) and call `bias` or `estimate`. Standard errors and intervals of what they return come from
`experiments.uncertainty`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.lab import Observations
from seesaw.experiments.sensitivity import intersectional_sensitivity, mixture, shares
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["Estimate", "PromptCounts", "bias", "counts_of", "estimate"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PromptCounts:
    """How many images of m prompts show each attribute, and what each prompt weighs in the mixture of them all.

    `by_axis[axis]` (m, k) are the counts; `weights` (m,) sum to 1. `exact` says that a count is images times a known
    probability, so that nothing derived from it has a sampling error.
    """

    by_axis: Mapping[str, NDArray[Any]]
    weights: Floats
    exact: bool = False

    def shares(self, axis: str) -> Floats:
        """The distribution of `axis` over the mixture of the prompts, (k,); NaN if a prompt has no valid image."""
        return mixture(shares(self.by_axis[axis]), self.weights)

    def images(self, axis: str) -> int:
        """Images of all prompts that answer `axis`."""
        return int(np.rint(self.by_axis[axis].sum()))


def counts_of(cells: Sequence[Observations], settings: AnalysisSettings, weights: Floats) -> PromptCounts:
    """The counts of m observed cells, every axis of the dataset in its order.

    A cell with failures counts nothing, so that what depends on it is NaN.
    """
    exact = all(cell.answers is None for cell in cells)
    by_axis = {
        axis.name: np.stack([np.zeros(len(axis.attributes)) if c.failures else c.counts[axis.name] for c in cells])
        for axis in settings.dataset.axes
    }
    if not exact:  # whole numbers, of which a mitigation keeps many
        by_axis = {axis: counts.astype(np.int32) for axis, counts in by_axis.items()}
    return PromptCounts(by_axis, weights, exact)


def bias(counts: PromptCounts, settings: AnalysisSettings) -> Floats:
    """w-bar of every axis that was counted, (n,), in the order of `counts.by_axis` (the paper's equation for w)."""
    return np.array([settings.w_bar(axis, counts.shares(axis)) for axis in counts.by_axis])


@dataclass(frozen=True, eq=False)
class Estimate:
    """Bias and sensitivity of one subject on one model: r interventions on rows, n axes on columns.

    `w_init` (n,) is w-bar of the prompts as they are, `w_after` (r, n) w-bar under each intervention, `n_init` (n,) and
    `n_after` (r, n) the numbers of images behind them. What could not be observed is NaN.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    w_init: Floats
    w_after: Floats
    n_init: NDArray[np.int64]
    n_after: NDArray[np.int64]

    @cached_property
    def sensitivity(self) -> Floats:
        """IS[x, y], (r, n): positive where intervening on x improves y."""
        return intersectional_sensitivity(self.w_init, self.w_after)


def estimate(initial: PromptCounts, interventions: Mapping[str, PromptCounts], settings: AnalysisSettings) -> Estimate:
    """Estimate the bias of every axis, and what each intervention does to it (the paper's equations 1, 3 and 4).

    `interventions` maps a source axis to the counts of the prompts that state it.
    """
    targets = tuple(initial.by_axis)
    shape = len(interventions), len(targets)
    return Estimate(
        sources=tuple(interventions),
        targets=targets,
        w_init=bias(initial, settings),
        w_after=np.array([bias(counts, settings) for counts in interventions.values()]).reshape(shape),
        n_init=np.array([initial.images(axis) for axis in targets], np.int64),
        n_after=np.array(
            [[counts.images(axis) for axis in targets] for counts in interventions.values()], np.int64
        ).reshape(shape),
    )
