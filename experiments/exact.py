"""A Lab that answers from exact probabilities: no images, no sampling, milliseconds.

The same science code runs over it as over a fleet of GPUs, so that an algorithm can be tried, tested and compared with
the truth. It works for any model whose distributions are known, such as the pictogram worlds:

    lab = ExactLab(dataset, {name: world.shares for name, world in WORLDS.items()})
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.biasconnect import biasconnect
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.lab import Observations
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.settings import AnalysisSettings
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.tables.schemas import TRUTH

__all__ = ["ExactLab", "Shares", "exact_matrices"]

#: A function from a prompt's text to the exact shares of every axis' attributes, (k,) in attribute order.
Shares = Callable[[str], Mapping[str, NDArray[np.float64]]]


class ExactLab:
    """A `Lab` over models whose distributions are known. Counts are images x share, and every image shows a person.

    `models` gives, by name, a function from a prompt's text to the shares of every axis' attributes.

    Example::

        dataset = seesaw.load_dataset("occupation")
        lab = seesaw.ExactLab(dataset, {name: world.shares for name, world in seesaw.WORLDS.items()})
        seesaw.biasconnect(lab, dataset, "alder", "nurse")
    """

    def __init__(self, dataset: Dataset, models: Mapping[str, Shares]) -> None:
        self._dataset, self._models = dataset, models

    async def observe(self, model: str, prompts: Sequence[Prompt], images: int, start: int = 0) -> list[Observations]:
        """As `Lab.observe`, without images. Raises ConfigError for an unknown model."""
        if model not in self._models:
            raise ConfigError(f"no model '{model}'{nearest(model, self._models)}")
        return [self._cell(self._models[model](prompt.text), prompt, images) for prompt in prompts]

    def _cell(self, shares: Mapping[str, NDArray[np.float64]], prompt: Prompt, images: int) -> Observations:
        counts = {axis.name: images * np.asarray(shares[axis.name], np.float64) for axis in self._dataset.axes}
        return Observations(prompt, counts, asked=images, dropped=0)


async def exact_matrices(models: Mapping[str, Shares], settings: AnalysisSettings) -> pd.DataFrame:
    """truth.parquet: the exact IS of models whose shares are known, computed and ordered as `matrices`."""
    lab, names = ExactLab(settings.dataset, models), [axis.name for axis in settings.dataset.axes]
    rows: list[tuple[str, str, str, str, float]] = []
    for model, subject in itertools.product(sorted(models), settings.dataset.subjects):
        exact = await biasconnect(lab, model, subject, settings, 1)
        for (source, target), value in zip(itertools.product(names, names), exact.sensitivity.flat, strict=True):
            rows.append((model, subject, source, target, float(value)))
    return pd.DataFrame(rows, columns=TRUTH.names)
