"""From counts of images to bias and intersectional sensitivity. All figures are computed here, in one way.

A sweep, BiasConnect, InterMit, the studies and `seesaw analyze` count what the images of some prompts show
(`PromptCounts`) and call `bias` or `estimate`. `experiments.uncertainty` computes the standard errors and intervals of
the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.counts import PromptCounts
from seesaw.experiments.matched import Matched, matched_sensitivity
from seesaw.experiments.sensitivity import intersectional_sensitivity
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["Estimate", "bias", "estimate"]

Floats = NDArray[np.float64]


def bias(counts: PromptCounts, settings: AnalysisSettings) -> Floats:
    """w-bar of every axis that was counted, (n,), in the order of `counts.by_axis` (the paper's equations 1 and 2)."""
    return np.array([settings.w_bar(axis, counts.shares(axis)) for axis in counts.by_axis])


@dataclass(frozen=True, eq=False)
class Estimate:
    """Bias and sensitivity of one subject on one model: r interventions (`sources`) and n axes (`targets`).

    `w_init` (n,) is w-bar of the prompts as they are, `w_after` (r, n) is w-bar under each intervention. `n_init` (n,)
    and `n_after` (r, n) are the numbers of images behind them. Distances that could not be observed are NaN. `initial`
    and `interventions` are the counts that all this was estimated from.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    w_init: Floats
    w_after: Floats
    n_init: NDArray[np.int64]
    n_after: NDArray[np.int64]
    initial: PromptCounts
    interventions: Mapping[str, PromptCounts]
    settings: AnalysisSettings

    @cached_property
    def sensitivity(self) -> Floats:
        """IS[x, y], (r, n), with x in rows: positive where intervening on x improves y. The paper's plug-in value."""
        return intersectional_sensitivity(self.w_init, self.w_after)

    @cached_property
    def matched(self) -> Matched:
        """IS with the same noise on both sides of the difference, and how the initial images were weighed for it."""
        return matched_sensitivity(self.initial, self.interventions, self.settings)

    @property
    def is_matched(self) -> Floats:
        """IS[x, y], (r, n), with the same noise on both sides of the difference: the estimate that is shown."""
        return self.matched.value


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
        initial=initial,
        interventions=interventions,
        settings=settings,
    )
