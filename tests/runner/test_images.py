"""`images` in configs, overrides, plans, stores and run directories, in both of its forms. Starts nothing."""

import asyncio
import json

import pandas as pd
import pytest

from seesaw.experiments.images import FRESH, Images
from seesaw.experiments.prompts import prompts_of
from seesaw.results.errors import RunDirectoryError
from seesaw.results.store.store import Store
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.plan import batches_of, make_plan
from seesaw.runner.rundir import RunDirectory
from tests.results.trial import DrawnLab, experiment_of, run_of

CONFIG = """
models: [{name: tti, engine: simulated, seconds_per_image: 3600, image_kb: 1000}]
vqa: {name: vlm, engine: simulated, seconds_per_question: 3600}
subjects: [nurse]
axes: [gender, age]
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(images: str, *overrides: str):
        (tmp_path / "config.yaml").write_text(CONFIG + (f"images: {images}\n" if images else ""))
        return load_experiment("config.yaml", overrides)

    return load


@pytest.mark.parametrize(
    ("written", "overrides", "initial", "counterfactual"),
    [
        ("", [], 192, 48),
        ("48", [], 48, 48),
        ("{initial: 64}", [], 64, 48),
        ("48", ["images=16"], 16, 16),
        ("{initial: 96, counterfactual: 24}", ["images=16"], 16, 16),
        ("24", ["images.initial=64"], 64, 24),
        ("{initial: 96, counterfactual: 24}", ["images.initial=64"], 64, 24),
        ("", ["images.initial=64"], 64, 48),
        ("24", ["images={initial: 64}"], 64, 24),
        ("48", ["images=16", "images.initial=64"], 64, 16),
        ("48", ["images.initial=64", "images=16"], 16, 16),
        ("{initial: 16, counterfactual: 8}", ["images.initial=96", "images.counterfactual=64"], 96, 64),
    ],
)
def test_overrides_work_over_either_form(load, written, overrides, initial, counterfactual):
    assert load(written, *overrides).images == Images(initial, counterfactual)


@pytest.mark.parametrize("images", ["10", "{initial: 20, counterfactual: 10}"])
def test_a_plan_counts_the_images_of_both_kinds_of_prompts(load, images):
    experiment = load(images)
    initial = 20 if "initial" in images else 10
    plan = make_plan(experiment)
    (model,) = plan.models
    assert model.cells == 1 + 5
    assert model.images == initial + 5 * 10
    assert (model.attributes, model.questions) == (2 * model.images, 3 * model.images)
    whole = (24 if initial == 20 else 16) + 5 * 16  # batches of eight
    assert model.batches == whole / 8
    assert (model.hours, plan.vqa_hours, model.disk_gb) == (whole, 3 * whole, whole / 1000)


def test_a_plan_says_which_prompts_have_how_many_images(load, seesaw):
    load("{initial: 20, counterfactual: 10}")
    assert "1 subjects x (20 images + 5 counterfactuals x 10 images)" in seesaw("plan", "config.yaml").out
    assert "1 subjects x 6 prompts x 10 images" in seesaw("plan", "config.yaml", "images=10").out
    assert json.loads(seesaw("plan", "config.yaml", "--json").out)["images"] == 70


def test_the_paper_has_48_images_of_every_prompt_and_the_default_costs_11_percent_more(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    paper = load_experiment("paper")
    assert make_plan(paper).total("images") == 168_480
    more = load_experiment("paper", ["images={initial: 192, counterfactual: 48}"])
    assert make_plan(more).total("images") / 168_480 == pytest.approx(1.111, abs=0.001)


def test_the_images_of_a_number_are_the_first_of_those_of_the_mapping(load):
    experiment = load("")
    prompt = prompts_of(experiment.dataset, "nurse")[0]
    few, many = (batches_of(experiment, experiment.models[0], prompt, images) for images in (48, 192))
    assert many[: len(few)] == few
    assert many[-1].index[-1] == 191


def test_fresh_images_are_other_batches_with_other_seeds(load):
    experiment = load("")
    for prompt in prompts_of(experiment.dataset, "nurse")[:2]:
        seen, fresh = (batches_of(experiment, experiment.models[0], prompt, 48, start) for start in (0, FRESH))
        assert [batch.index[0] for batch in fresh] == [FRESH + first for first in range(0, 48, 8)]
        assert not {seed for batch in seen for seed in batch.seeds} & {seed for batch in fresh for seed in batch.seeds}
        assert not {batch.images for batch in seen} & {batch.images for batch in fresh}
    with pytest.raises(ValueError, match="begins"):
        batches_of(experiment, experiment.models[0], prompt, 48, 4)


def swept(tmp_path, images):
    """A sweep of one subject in the run directory of `tmp_path`, without Ray; the run directory's lab and job."""
    dataset = experiment_dataset()
    experiment = experiment_of(tmp_path, ["birch"], dataset, images, ())
    job = SweepJob(experiment)
    directory = RunDirectory(job)
    with directory.claimed():
        directory.write_config()
        asyncio.run(job.observe(DrawnLab(experiment), Events(lambda event, counts: None)))
        job.write(Events(lambda event, counts: None))
        directory.write_run_json("done")
    return experiment, directory


def experiment_dataset():
    from seesaw.experiments.dataset.load import load_dataset

    return load_dataset("occupation").select(subjects=["nurse"], axes=["gender", "clothing"])


def test_a_run_made_with_a_number_goes_on_with_the_mapping_and_uses_its_images(tmp_path):
    experiment, directory = swept(tmp_path, 8)
    store, folder = Store(experiment.store), experiment.models[0].folder
    before, answers = store.names(folder), pd.read_parquet(directory.path / "answers.parquet")
    assert directory.finished()

    swept(tmp_path, {"initial": 16, "counterfactual": 8})
    assert len(store.names(folder)) == len(before) + 1, "one batch more, of the initial prompt"
    more = pd.read_parquet(directory.path / "answers.parquet")
    both = answers.merge(more, how="left", indicator=True)
    assert (both["_merge"] == "both").all(), "what was answered is still there"
    matrices = pd.read_parquet(directory.path / "matrices.parquet")
    assert set(matrices["n_init"]) <= {15, 16}
    assert matrices["n_after"].max() <= 16

    for fewer, field in ((8, "images.initial: 16 -> 8"), ({"initial": 16, "counterfactual": 4}, "images.counterf")):
        with pytest.raises(RunDirectoryError, match=field):
            swept(tmp_path, fewer)


def test_a_run_with_unequal_numbers_has_the_same_report_as_any_other(tmp_path):
    run, _ = run_of(tmp_path, axes=("gender", "age"), images={"initial": 24, "counterfactual": 8})
    assert (run / "uncertainty.parquet").is_file()
    assert json.loads((run / "run.json").read_text())["fingerprint"]["images"] == {"initial": 24, "counterfactual": 8}
