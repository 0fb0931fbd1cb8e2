"""From counts of images to bias and intersectional sensitivity. All figures are computed here, in one way.

A sweep, BiasConnect, InterMit, the studies and `seesaw analyze` count what the images of some prompts show
(`PromptCounts`) and call `bias` or `estimate`. `experiments.uncertainty` computes the standard errors and intervals of
the results.
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
    """How many images of m prompts show each attribute, and the weight of each prompt in the mixture of all.

    `by_axis[axis]` (m, k) are the counts; `weights` (m,) sum to 1. `exact` means that a count is the number of images
    times a known probability, so nothing derived from it has a sampling error.
    """

    by_axis: Mapping[str, NDArray[Any]]
    weights: Floats
    exact: bool = False

    def shares(self, axis: str) -> Floats:
        """The distribution of `axis` over the mixture of the prompts, (k,); NaN if a prompt has no valid image."""
        return mixture(shares(self.by_axis[axis]), self.weights)

    def images(self, axis: str) -> int:
        """How many images of all prompts answer `axis`."""
        return int(np.rint(self.by_axis[axis].sum()))


def counts_of(cells: Sequence[Observations], settings: AnalysisSettings, weights: Floats) -> PromptCounts:
    """The counts of m observed cells, with `weights` (m,), for every axis in the dataset's order.

    A cell with failures counts no images, so that everything that depends on it is NaN.
    """
    exact = all(cell.answers is None for cell in cells)
    by_axis = {
        axis.name: np.stack(
            [np.zeros(len(axis.attributes)) if cell.failures else cell.counts[axis.name] for cell in cells]
        )
        for axis in settings.dataset.axes
    }
    if not exact:  # counts are whole numbers; a mitigation keeps many of them, and int32 takes half the memory
        by_axis = {axis: counts.astype(np.int32) for axis, counts in by_axis.items()}
    return PromptCounts(by_axis, weights, exact)


def bias(counts: PromptCounts, settings: AnalysisSettings) -> Floats:
    """w-bar of every axis that was counted, (n,), in the order of `counts.by_axis` (the paper's equations 1 and 2)."""
    return np.array([settings.w_bar(axis, counts.shares(axis)) for axis in counts.by_axis])


@dataclass(frozen=True, eq=False)
class Estimate:
    """Bias and sensitivity of one subject on one model: r interventions (`sources`) and n axes (`targets`).

    `w_init` (n,) is w-bar of the prompts as they are, `w_after` (r, n) is w-bar under each intervention. `n_init` (n,)
    and `n_after` (r, n) are the numbers of images behind them. Distances that could not be observed are NaN.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    w_init: Floats
    w_after: Floats
    n_init: NDArray[np.int64]
    n_after: NDArray[np.int64]

    @cached_property
    def sensitivity(self) -> Floats:
        """IS[x, y], (r, n), with x in rows: positive where intervening on x improves y."""
        return intersectional_sensitivity(self.w_init, self.w_after)


def estimate(initial: PromptCounts, interventions: Mapping[str, PromptCounts], settings: AnalysisSettings) -> Estimate:
    """Estimate the bias of every axis, and what each intervention does to it (the paper's equations 1 to 4).

    `initial` has the counts of the prompts as they are; `interventions` maps each source axis to the counts of the
    prompts that state it.
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
