"""Two VLMs: kappa as in the literature, accuracies without labels where misreadings are independent, and its limit."""

import asyncio
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from seesaw.actors.pictogram.world import WORLDS
from seesaw.actors.plugins import find_plugin
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.two_vlms import cohens_kappa, hui_walter
from seesaw.results.tables.run_reader import read_run
from seesaw.runner.config import VLMConfig
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import ResolvedModel
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.report import write_report
from seesaw.runner.rundir import RunDirectory
from tests.results.trial import DrawnLab, experiment_of

DATASET = load_dataset("occupation").select(subjects=["nurse", "police", "chef", "lawyer"])


def test_kappa_is_that_of_cohen_with_the_interval_of_fleiss_cohen_and_everitt():
    """Their example of 1969: kappa 0.429; of its large-sample variance 0.002885 comes the interval."""
    counts = 200 * np.array([[0.53, 0.05, 0.02], [0.11, 0.14, 0.05], [0.01, 0.06, 0.03]])
    found = cohens_kappa(counts)
    assert (found.images, round(found.agree, 2), round(found.kappa, 3)) == (200, 0.70, 0.429)
    assert ((found.high - found.low) / 2 / 1.96) ** 2 == pytest.approx(0.002885, abs=5e-6)


def test_kappa_of_nothing_and_of_one_attribute_alone_is_undefined():
    assert np.isnan(cohens_kappa(np.zeros((2, 2))).kappa)
    one = cohens_kappa(np.array([[9, 0], [0, 0]]))
    assert one.agree == 1
    assert np.isnan(one.kappa)
    assert cohens_kappa(np.diag([5, 5])).kappa == 1


def readings(axis: str, images: int, errors: tuple[float, float], shared: float, seed: int):
    """Images of every prompt by both readings, (G, k, k), and each VLM's accuracy; `shared` are misread alike."""
    rng, counts, right, total = np.random.default_rng(seed), [], np.zeros(2), 0
    for subject in DATASET.subjects:
        for prompt in prompts_of(DATASET, subject):
            share = WORLDS["alder"].shares(prompt.text)[axis]
            k = len(share)
            truth, wrong = rng.choice(k, images, p=share), rng.integers(1, k, (3, images))
            both = rng.random(images) < shared
            read = [
                (truth + np.where(both, wrong[2], np.where(rng.random(images) < error, wrong[i], 0))) % k
                for i, error in enumerate(errors)
            ]
            right += [(each == truth).sum() for each in read]
            total += images
            counts.append(np.bincount(read[0] * k + read[1], minlength=k * k).reshape(k, k))
    return np.array(counts), right / total


@pytest.mark.parametrize("axis", ["gender", "age", "emotion"])
def test_accuracies_are_found_without_labels_where_misreadings_are_independent(axis):
    counts, right = readings(axis, 600, (0.1, 0.15), 0, seed=1)
    found = hui_walter(counts)
    assert found.converged
    np.testing.assert_allclose(found.accuracy, right, atol=0.008)
    np.testing.assert_allclose(found.matrices.sum(-1), 1)
    np.testing.assert_allclose(np.diagonal(found.matrices, axis1=1, axis2=2).mean(1), [0.9, 0.85], atol=0.02)


def test_errors_that_both_make_are_taken_for_agreement():
    counts, right = readings("age", 600, (0.05, 0.05), 0.08, seed=2)
    assert (hui_walter(counts).accuracy - right > 0.05).all()


class MisreadingLab(DrawnLab):
    """Reads every fifth image's gender as the other one."""

    async def observe(self, model, prompts, images, start=0):
        return [self._misread(cell) for cell in await super().observe(model, prompts, images, start)]

    def _misread(self, cell):
        value = dict(cell.answers.value)
        gender = value["gender"].copy()
        fifth = (cell.answers.index % 5 == 0) & (gender >= 0)
        gender[fifth] = 1 - gender[fifth]
        return replace(cell, answers=replace(cell.answers, value=value | {"gender": gender}))


@pytest.fixture
def swept(tmp_path):
    dataset = load_dataset("occupation").select(subjects=["nurse"], axes=["gender", "clothing"])
    experiment = experiment_of(tmp_path, ["alder"], dataset, 20, [])
    other = ResolvedModel(
        VLMConfig(name="another", engine="none:None"), "f" * 32, "answers/another", find_plugin("none:None", {})
    )

    def sweep(second):
        job = SweepJob(replace(experiment, second_vlm=other if second else None))
        directory = RunDirectory(job)
        with directory.claimed():
            directory.write_config()
            events = Events(lambda event, counts: None)
            asyncio.run(job.observe(DrawnLab(experiment), events))
            if second:
                asyncio.run(job.observe_second(MisreadingLab(experiment), events))
            job.write(events)
            directory.write_failures([])
            directory.write_run_json("done", notes=[])
        return experiment.run

    return sweep


def test_a_sweep_keeps_what_a_second_vlm_reads_apart_and_figures_are_the_first_ones(swept):
    alone = {name: (swept(False) / f"{name}.parquet").read_bytes() for name in ("answers", "matrices", "uncertainty")}
    run = swept(True)
    assert {name: (run / f"{name}.parquet").read_bytes() for name in alone} == alone
    again = pd.read_parquet(run / "second_answers.parquet")
    first = pd.read_parquet(run / "answers.parquet")
    assert again.drop(columns=["answer", "vlm"]).equals(first.drop(columns=["answer", "vlm"]))
    differ = (again["answer"] != first["answer"]).to_numpy()
    assert set(first["axis"][differ]) == {"gender"}
    agreement = pd.read_parquet(run / "tables" / "agreement.parquet").set_index("axis")
    assert agreement.loc["gender", "images"] == (first["axis"] == "gender").sum()
    assert agreement.loc["gender", "agree"] == 1 - differ.sum() / (first["axis"] == "gender").sum()
    assert agreement.loc["clothing", "kappa"] == agreement.loc["person", "agree"] == 1
    shown = pd.read_parquet(run / "tables" / "disagreements.parquet")
    assert set(shown["axis"]) == {"gender"}
    assert (shown["first"] != shown["second"]).all()
    assert set(shown["image"]) <= {0, 5}
    page = write_report(run, read_run(run).config["store"]).read_text()
    assert "Two VLMs" in page
    assert "independently" in page
    assert page.count("<figcaption>male / female") + page.count("<figcaption>female / male") == len(shown)


def test_without_a_second_vlm_nothing_of_an_earlier_one_is_left(swept):
    run = swept(True)
    assert (run / "tables" / "agreement.parquet").is_file()
    swept(False)
    assert not (run / "second_answers.parquet").exists()
    assert not list((run / "tables").glob("*"))
