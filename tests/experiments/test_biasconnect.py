"""BiasConnect over exact probabilities: the truth of a world, with no sampling, in milliseconds."""

import asyncio

import numpy as np
import pandas as pd
import pytest

from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.analysis import analyze
from seesaw.experiments.biasconnect import biasconnect
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import make_settings
from seesaw.results.errors import ConfigError

DATASET = load_dataset("occupation")
LAB = ExactLab(DATASET, {name: world.shares for name, world in WORLDS.items()})


def exact(model: str, subject: str, **settings):
    return asyncio.run(biasconnect(LAB, model, subject, make_settings(DATASET, **settings), images=48))


def test_the_exact_matrix_is_the_limit_of_what_the_tables_measure():
    """Counts proportional to the exact shares, put through `analyze`'s arithmetic, give the same matrix."""
    n, world = 200_000, WORLDS["cedar"]
    rows = []
    for prompt in prompts_of(DATASET, "nurse"):
        for axis in DATASET.axes:
            counts = np.round(world.shares(prompt.text)[axis.name] * n / 1000).astype(int)
            answers = np.repeat(axis.attributes, counts)
            rows.append(
                pd.DataFrame(
                    {
                        "model": "cedar", "subject": "nurse", "source_axis": prompt.source_axis,
                        "source_value": prompt.source_value, "image": [str(i) for i in range(len(answers))],
                        "axis": axis.name, "answer": answers,
                    }
                )
            )  # fmt: skip
    table = analyze(pd.concat(rows, ignore_index=True), make_settings(DATASET)).matrices
    names = [axis.name for axis in DATASET.axes]
    measured = table.set_index(["source_axis", "target_axis"])["is"].unstack().loc[names, names].to_numpy()
    assert exact("cedar", "nurse").sensitivity == pytest.approx(measured, abs=0.02)


@pytest.mark.parametrize("model", WORLDS)
def test_in_every_world_some_interventions_help_and_some_hurt(model):
    off_diagonal = ~np.eye(8, dtype=bool)
    found = np.stack([exact(model, subject).sensitivity for subject in DATASET.subjects])
    assert found.shape == (26, 8, 8)
    assert (found[:, off_diagonal] > 0.1).mean() > 0.1
    assert (found[:, off_diagonal] < -0.01).mean() > 0.05
    assert np.abs(found).max() <= 1


def test_with_the_target_as_it_is_there_is_no_bias_and_intervening_can_only_hurt():
    shares = WORLDS["alder"].shares("A photo of a chef")["clothing"]
    result = exact("alder", "chef", targets={"clothing": shares.tolist()})
    at = [axis.name for axis in DATASET.axes].index("clothing")
    assert result.w_init[at] == pytest.approx(0)
    assert (result.sensitivity[:, at] <= 1e-12).all()


def test_an_unknown_model_is_named():
    with pytest.raises(ConfigError, match="did you mean 'alder'"):
        exact("aldr", "nurse")
