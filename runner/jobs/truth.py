"""The truth that a run should measure: the exact IS of the worlds that its models draw from or were trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS
from seesaw.actors.pictogram.world import WORLDS, World
from seesaw.experiments.dataset.model import Axis
from seesaw.experiments.exact import Shares, exact_matrices
from seesaw.results.tables.schemas import TRUTH
from seesaw.results.tables.write import table_of, write_both
from seesaw.runner.experiment import Experiment

__all__ = ["write_truth"]


def write_truth(experiment: Experiment) -> None:
    """Write truth.parquet and truth.csv into the run directory; remove them if no model has a known truth.

    A world has its own axes, attributes and occupations; the dataset may list them in any order. Axes with other
    attributes, other axes and other subjects are left out. The table's metadata names the world of every model.
    """
    if not experiment.truths:
        for kind in ("parquet", "csv"):
            (experiment.run / f"truth.{kind}").unlink(missing_ok=True)
        return
    dataset = experiment.dataset
    axes = tuple(axis for axis in dataset.axes if sorted(axis.attributes) == sorted(AXES.get(axis.name, ())))
    subjects = tuple(subject for subject in dataset.subjects if axes and subject in OCCUPATIONS)
    settings = replace(experiment.settings, dataset=replace(dataset, axes=axes, subjects=subjects))
    models = {name: _shares(WORLDS[world], axes) for name, world in experiment.truths.items()}
    frame = asyncio.run(exact_matrices(models, settings))
    write_both(experiment.run, "truth", table_of(frame, TRUTH, {**settings.about(), "truths": experiment.truths}))


def _shares(world: World, axes: Sequence[Axis]) -> Shares:
    """The exact shares of `world`, with attributes in the order in which `axes` list them."""
    order = {axis.name: [AXES[axis.name].index(attribute) for attribute in axis.attributes] for axis in axes}

    def shares(text: str) -> Mapping[str, NDArray[np.float64]]:
        exact = world.shares(text)
        return {name: exact[name][positions] for name, positions in order.items()}

    return shares
