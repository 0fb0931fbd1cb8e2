"""BiasConnect (paper, section 3) for one subject over any Lab: its biases and its intersectionality matrix S."""

from __future__ import annotations

import numpy as np

from seesaw.experiments.counts import counts_of
from seesaw.experiments.estimation import Estimate, estimate
from seesaw.experiments.images import GivenImages, images_of
from seesaw.experiments.lab import Lab, observe_each
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["biasconnect"]


async def biasconnect(
    lab: Lab, model: str, subject: str, settings: AnalysisSettings, images: GivenImages = None
) -> Estimate:
    """Observe a subject's initial prompt and all its counterfactuals, and estimate what they show.

    Axes are in the dataset's order. `w_init` (n,) of the result is the bias of every axis at the initial prompt.
    `sensitivity` (n, n) is the matrix S = IS[x, y], with the axis x that is intervened on in rows. What could not be
    observed is NaN. Raises what the Lab raises.
    """
    prompts = prompts_of(settings.dataset, subject)
    images = images_of(images)
    initial, *rest = await observe_each(lab, model, [(prompt, images.of(prompt)) for prompt in prompts])
    interventions, start = {}, 0
    for axis in settings.dataset.axes:
        cells = rest[start : start + len(axis.attributes)]
        start += len(axis.attributes)
        interventions[axis.name] = counts_of(cells, settings, settings.weights(axis))
    return estimate(counts_of([initial], settings, np.ones(1)), interventions, settings)
