"""The sweep: observe every cell, models x subjects x (initial prompt and all counterfactuals)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from experiments.dataset import Dataset
from experiments.lab import Lab, Observations
from experiments.prompts import prompts_of

__all__ = ["sweep"]


async def sweep(lab: Lab, dataset: Dataset, models: Sequence[str], images: int) -> dict[str, list[Observations]]:
    """Observations of every cell, by model, in the order of the dataset's subjects and their prompts.

    Raises what the Lab raises, after all that was in flight has ended.
    """

    async def one(model: str) -> list[Observations]:
        prompts = [prompt for subject in dataset.subjects for prompt in prompts_of(dataset, subject)]
        return await lab.observe(model, prompts, images)

    results = await asyncio.gather(*(one(model) for model in models), return_exceptions=True)
    observed = {}
    for model, result in zip(models, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        observed[model] = result
    return observed
