"""BiasConnect (paper, section 3) for one subject over any Lab: its biases and its intersectionality matrix S."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.lab import Lab, Observations
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.sensitivity import intersectional_sensitivity, pool, w_bar
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["BiasConnect", "biasconnect"]


@dataclass(frozen=True)
class BiasConnect:
    """`w` (n,): bias of every axis of the initial prompt; `sensitivity` (n, n): IS[x, y], intervened axis on rows."""

    w: NDArray[np.float64]
    sensitivity: NDArray[np.float64]


async def biasconnect(lab: Lab, model: str, subject: str, settings: AnalysisSettings, images: int) -> BiasConnect:
    """Observe a subject's initial prompt and all its counterfactuals, and reduce them (equations 1, 3 and 4).

    Axes are in the dataset's order. What could not be observed is NaN. Raises what the Lab raises.
    """
    dataset = settings.dataset
    initial, *rest = await lab.observe(model, prompts_of(dataset, subject), images)
    w = _distances([initial], settings, np.ones(1))
    rows, start = [], 0
    for axis in dataset.axes:
        counterfactuals = rest[start : start + len(axis.attributes)]
        start += len(axis.attributes)
        rows.append(intersectional_sensitivity(w, _distances(counterfactuals, settings, settings.weights(axis))))
    return BiasConnect(w, np.stack(rows))


def _distances(
    cells: Sequence[Observations], settings: AnalysisSettings, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """w-bar of every axis over the pooled shares of `cells`, (n,)."""
    return np.array(
        [
            w_bar(
                pool(np.stack([cell.shares(y.name) for cell in cells]), weights),
                settings.targets[y.name],
                settings.metric[y.name],
            )
            for y in settings.dataset.axes
        ]
    )
