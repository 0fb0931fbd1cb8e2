"""truth.parquet: the exact IS of the worlds that models stand for, and nothing where no world knows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy.stats import wasserstein_distance

from seesaw.actors.pictogram.world import WORLDS
from seesaw.results.tables.schemas import MATRICES, TRUTH
from seesaw.results.tables.write import about_of
from seesaw.runner.experiment import Experiment, load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.jobs.truth import write_truth
from seesaw.runner.rundir import RunDirectory

MODELS = "models: [pictogram-birch, pictogram-alder]\nsubjects: [nurse, police]\n"
OWN = """
models: [pictogram-elm]
vqa: {name: vlm, engine: simulated}
subjects: [nurse, baker]
dataset:
  extends: occupation
  add_subjects: [baker]
  axes:
    clothing:
      attributes: [informal, formal]
    emotion:
      attributes: [happy, angry]
      question: Is the person happy or angry (happy, angry)?
      counterfactuals:
        happy: {adjective: happy}
        angry: {adjective: angry}
    glasses:
      attributes: [with, without]
      question: Does the person wear glasses (with, without)?
      counterfactuals:
        with: {phrase: wearing glasses}
        without: {phrase: without glasses}
"""
NURSE = "A photo of a nurse"
CLOTHES = ("A photo of a nurse in formal attire", "A photo of a nurse in informal attire")


def written(folder: Path, config: str, *overrides: str) -> tuple[Experiment, pd.DataFrame]:
    (folder / "own.yaml").write_text(config)
    experiment = load_experiment(str(folder / "own.yaml"), [f"run={folder / 'run'}", *overrides])
    experiment.run.mkdir(exist_ok=True)
    write_truth(experiment)
    return experiment, pd.read_parquet(experiment.run / "truth.parquet")


def entry(frame: pd.DataFrame, model: str, source: str, target: str) -> float:
    return float(frame.set_index(list(TRUTH.names[:4]))["is"][model, "nurse", source, target])


def test_the_table_has_every_entry_of_the_matrices_in_their_order_and_says_whose_it_is(tmp_path):
    experiment, frame = written(tmp_path, MODELS)
    assert pq.read_schema(experiment.run / "truth.parquet").remove_metadata().equals(TRUTH)
    assert TRUTH.names[:5] == MATRICES.names[:5]
    axes = [axis.name for axis in experiment.dataset.axes]
    models, subjects = ["pictogram-alder", "pictogram-birch"], list(experiment.dataset.subjects)
    assert frame.iloc[:, :4].to_numpy().tolist() == [
        [m, s, x, y] for m in models for s in subjects for x in axes for y in axes
    ]
    assert np.isfinite(frame["is"]).all()
    assert about_of(experiment.run / "truth.parquet")["truths"] == {m: m.removeprefix("pictogram-") for m in models}
    pd.testing.assert_frame_equal(pd.read_csv(experiment.run / "truth.csv"), frame, check_dtype=False, rtol=1e-15)


def test_an_entry_is_what_the_world_s_shares_make_by_hand(tmp_path):
    _, frame = written(tmp_path, MODELS)
    for name in ("alder", "birch"):
        before = WORLDS[name].shares(NURSE)["disability"]
        after = sum(WORLDS[name].shares(text)["disability"] for text in CLOTHES) / 2
        w = [abs(p - 0.25).sum() / 2 / 0.75 for p in (before, after)]
        assert entry(frame, f"pictogram-{name}", "clothing", "disability") == pytest.approx(w[0] - w[1], abs=1e-12)


def test_metric_target_and_intervention_are_those_of_the_run(tmp_path):
    settings = ("metric={age: ordinal}", "targets={age: [0.2, 0.3, 0.5], clothing: [0.9, 0.1]}", "intervention=target")
    _, frame = written(tmp_path, MODELS, *settings)
    formal, informal = (WORLDS["birch"].shares(text)["age"] for text in CLOTHES)
    p = [WORLDS["birch"].shares(NURSE)["age"], 0.9 * formal + 0.1 * informal]
    w = [wasserstein_distance(range(3), range(3), each, [0.2, 0.3, 0.5]) for each in p]  # the normaliser is 1
    assert entry(frame, "pictogram-birch", "clothing", "age") == pytest.approx(w[0] - w[1], abs=1e-12)


def test_what_no_world_knows_is_left_out(tmp_path):
    """A user's axes, attributes and subjects have no truth; a world's attributes in another order are the same ones."""
    experiment, frame = written(tmp_path, OWN)
    assert {axis.name for axis in experiment.dataset.axes} > {"glasses", "emotion"}
    known = {"gender", "age", "ethnicity", "bodytype", "environment", "clothing", "disability"}
    assert set(frame["subject"]) == {"nurse"}
    assert set(frame["source_axis"]) == set(frame["target_axis"]) == known
    assert len(frame) == 7 * 7
    _, usual = written(tmp_path, "models: [pictogram-elm]\nsubjects: [nurse]\n", "targets={clothing: [0.8, 0.2]}")
    _, turned = written(tmp_path, OWN, "targets={clothing: {informal: 0.2, formal: 0.8}}")
    for source, target in (("clothing", "clothing"), ("clothing", "age"), ("gender", "clothing")):
        there = [entry(table, "pictogram-elm", source, target) for table in (usual, turned)]
        assert there[0] == pytest.approx(there[1], abs=1e-12)


@pytest.mark.parametrize("nothing", ["axes=[glasses]", "subjects=[baker]"])
def test_a_dataset_of_which_nothing_is_known_makes_a_table_without_rows(tmp_path, nothing):
    _, frame = written(tmp_path, OWN, nothing)
    assert list(frame.columns) == TRUTH.names
    assert frame.empty


def test_the_truth_is_no_part_of_a_model_s_identity_but_a_run_is_not_finished_without_it(tmp_path):
    engine = "{name: tti, engine: pictogram-draw, settings: {world: elm}"
    plain, true = (f"models: [{engine}{end}]\nsubjects: [nurse]\naxes: [gender]\n" for end in ("}", ", truth: elm}"))
    experiment, frame = written(tmp_path, true)
    assert len(frame) == 1
    directory = RunDirectory(SweepJob(experiment))
    directory.write_run_json("done")
    assert directory.finished()
    (tmp_path / "own.yaml").write_text(plain)
    without = load_experiment(str(tmp_path / "own.yaml"), [f"run={experiment.run}"])
    assert without.fingerprint() == experiment.fingerprint()
    assert not RunDirectory(SweepJob(without)).finished()
    write_truth(without)
    assert not list(experiment.run.glob("truth.*"))
    RunDirectory(SweepJob(without)).write_run_json("done")
    assert RunDirectory(SweepJob(without)).finished()
    assert not directory.finished()


def test_what_a_killed_driver_left_half_written_is_removed_and_never_counts_as_finished(tmp_path):
    engine = "{name: tti, engine: pictogram-draw, settings: {world: elm}, truth: elm}"
    experiment, _ = written(tmp_path, f"models: [{engine}]\nsubjects: [nurse]\naxes: [gender]\n")
    directory = RunDirectory(SweepJob(experiment))
    directory.write_run_json("done")
    (experiment.run / "tables").mkdir()
    left = [".matrices.csv.99999.tmp", ".run.json.77.0123abcd.tmp", "tables/.table1.csv.99999.tmp"]
    mine = [".notes.tmp", ".notes.csv"]
    for name in (*left, *mine):
        (experiment.run / name).touch()
    assert directory.finished()
    directory.write_run_json("done")
    assert ".tmp" not in (experiment.run / "run.json").read_text()
    with directory.claimed():
        assert not any((experiment.run / name).exists() for name in left)
        assert all((experiment.run / name).exists() for name in mine)
        assert directory.finished()
