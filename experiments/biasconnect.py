"""BiasConnect (paper, section 3) for one subject over any Lab: its biases and its intersectionality matrix S."""

from __future__ import annotations

import numpy as np

from seesaw.experiments.estimation import Estimate, counts_of, estimate
from seesaw.experiments.lab import Lab
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["biasconnect"]


async def biasconnect(lab: Lab, model: str, subject: str, settings: AnalysisSettings, images: int = 48) -> Estimate:
    """Observe a subject's initial prompt and all its counterfactuals, and estimate what they show.

    Axes are in the dataset's order. `w_init` (n,) of the result is the bias of every axis at the initial prompt.
    `sensitivity` (n, n) is the matrix S = IS[x, y], with the axis x that is intervened on in rows. What could not be
    observed is NaN. Raises what the Lab raises.
    """
    initial, *rest = await lab.observe(model, prompts_of(settings.dataset, subject), images)
    interventions, start = {}, 0
    for axis in settings.dataset.axes:
        cells = rest[start : start + len(axis.attributes)]
        start += len(axis.attributes)
        interventions[axis.name] = counts_of(cells, settings, settings.weights(axis))
    return estimate(counts_of([initial], settings, np.ones(1)), interventions, settings)
