"""`vqa: [a, b]` in a config, and the whole pipeline over a world whose VLM misreads in a known way."""

import json

import pandas as pd
import pytest

from seesaw.actors.pictogram.world import WORLDS
from seesaw.results.errors import ConfigError
from seesaw.runner.experiment import load_experiment
from seesaw.runner.labels import import_labels, plan_labels
from seesaw.runner.plan import make_plan, time_plan

MISREADS = {
    "name": "misreads",
    "engine": "misreading",
    "settings": {
        "engine": "vllm",
        "settings": {"model": "pictogram", "answers": "score"},
        "misread": {"gender": {"female": {"male": 0.3}}, "clothing": 0.1},
    },
    "cpus": 0.75,
    "threads": 1,
    "memory_gb": 1.2,
    "load_seconds": 10,
    "seconds_per_question": 0.002,
}
WORLD = {"name": "alder", "engine": "pictogram-draw", "settings": {"world": "alder"}, "truth": "alder", "cpus": 0.25}


def config(tmp_path, vqa, **keys):
    values = {
        "dataset": "occupation", "models": [WORLD], "subjects": ["nurse", "police"], "axes": ["gender", "clothing"],
        "images": 48, "vqa": vqa, "store": str(tmp_path / "store"), "run": str(tmp_path / "run"), **keys,
    }  # fmt: skip
    path = tmp_path / "two.yaml"
    path.write_text(json.dumps(values))
    return path


def test_a_plan_counts_the_questions_to_both_vlms_and_their_hours(tmp_path):
    one = make_plan(load_experiment(str(config(tmp_path, MISREADS))))
    experiment = load_experiment(str(config(tmp_path, [MISREADS, "pictogram-vlm"])))
    two = make_plan(experiment)
    assert two.total("questions") == 2 * one.total("questions")
    assert two.total("images") == one.total("images")
    assert two.vqa_hours == pytest.approx(1.5 * one.vqa_hours)  # 0.002 and 0.001 s a question
    assert [name for name, *_ in two.memory] == ["alder", "misreads", "pictogram-vlm"]
    timed = time_plan(experiment, two, 0, 0)
    assert timed.hours > time_plan(load_experiment(str(config(tmp_path, MISREADS))), one, 0, 0).hours
    assert [cost.name for cost in timed.costs] == ["misreads", "pictogram-vlm"]


def test_a_second_vlm_may_be_added_to_a_run_and_its_config_names_both(tmp_path):
    one = load_experiment(str(config(tmp_path, MISREADS)))
    two = load_experiment(str(config(tmp_path, [MISREADS, "pictogram-vlm"])))
    shared = {key: value for key, value in two.fingerprint().items() if key in one.fingerprint()}
    assert shared == one.fingerprint()
    again = load_experiment(str(config(tmp_path, two.resolved()["vqa"])))
    assert again.fingerprint() == two.fingerprint()
    assert two.second is not None
    assert two.second.vlm.name == "pictogram-vlm"
    assert two.second.second is None


@pytest.mark.parametrize(
    ("vqa", "message"),
    [
        ([], "expected one VLM, or a list of two, got 0"),
        (["pictogram-vlm"] * 3, "expected one VLM, or a list of two, got 3"),
        (["pictogram-vlm", "pictogram-vlm"], "both VLMs are called 'pictogram-vlm'"),
        (
            ["pictogram-vlm", {"name": "b", "engine": "vllm", "settings": {"model": "pictogram", "answers": "score"}}],
            "'pictogram-vlm' and 'b' are one VLM",
        ),
        (["pictogram-vlm", {**MISREADS, "name": "alder"}], "the VLM and a model are both called 'alder'"),
        (["pictogram-vlm", "pictogram-vlx"], "did you mean 'pictogram-vlm'?"),
    ],
)
def test_two_vlms_that_cannot_be_are_refused(tmp_path, vqa, message):
    with pytest.raises(ConfigError) as error:
        load_experiment(str(config(tmp_path, vqa)))
    assert message in str(error.value)


@pytest.mark.slow  # Ray and vLLM, twice
def test_a_world_that_is_misread_is_measured_right_after_labels_and_a_second_vlm_finds_the_misreadings(
    tmp_path, seesaw
):
    path = config(tmp_path, [MISREADS, "pictogram-vlm"])
    done = seesaw("sweep", path, "--json", timeout=400)
    assert done.code == 0, done.err
    run = tmp_path / "run"
    first, second = (pd.read_parquet(run / f"{name}.parquet") for name in ("answers", "second_answers"))
    assert set(first["vlm"]) == {"misreads"}
    assert set(second["vlm"]) == {"pictogram-vlm"}
    assert len(pd.read_parquet(run / "failures.parquet")) == 0

    world = WORLDS["alder"]
    drawn = {key: world.sample(prompt, int(seed)) for key, prompt, seed in _images(second)}
    seen = second[second["axis"] != "person"]
    truth = [(drawn[key] or {}).get(axis) for key, axis in zip(seen["image_key"], seen["axis"], strict=True)]
    assert (seen["answer"] == truth).mean() > 0.99  # the embedded VLM reads pictograms
    female = (second["axis"] == "gender") & (second["answer"] == "female")
    both = second[female].merge(first, on=["image_key", "axis"])
    assert (both["answer_y"] == "male").mean() == pytest.approx(0.3, abs=0.08)

    right = pd.read_parquet(run / "tables" / "hui_walter.parquet").set_index(["vlm", "axis", "attribute"])["accuracy"]
    assert right["misreads", "clothing", ""] == pytest.approx(0.9, abs=0.04)
    assert right["misreads", "gender", "female"] == pytest.approx(0.7, abs=0.08)
    assert right["pictogram-vlm", "gender", ""] > 0.96

    plan = plan_labels(run, 150)
    labels = pd.read_csv(plan, dtype=str, keep_default_na=False)
    labels["label"] = [drawn[key][axis] for key, axis in zip(labels["image_key"], labels["axis"], strict=True)]
    labels.to_csv(plan, index=False)
    import_labels(run, plan)
    exact = pd.read_parquet(run / "truth.parquet").rename(columns={"is": "exact"})
    key = ["model", "subject", "source_axis", "target_axis"]
    plain = pd.read_parquet(run / "uncertainty.parquet").merge(exact, on=key)
    corrected = pd.read_parquet(run / "tables" / "corrected.parquet").merge(exact, on=key)
    assert set(corrected["method"]) == {"confusion matrix"}
    assert _error(corrected) < 0.8 * _error(plain)
    assert ((corrected["low"] <= corrected["exact"]) & (corrected["exact"] <= corrected["high"])).mean() >= 0.85
    accuracy = pd.read_parquet(run / "tables" / "accuracy.parquet").set_index(["vlm", "axis", "group_axis", "group"])
    assert accuracy.loc[("misreads", "gender", "gender", "female"), "accuracy"] == pytest.approx(0.7, abs=0.15)
    assert accuracy.loc[("pictogram-vlm", "gender", "", ""), "accuracy"] > 0.95


def _images(answers):
    return answers[["image_key", "prompt", "seed"]].drop_duplicates().itertuples(index=False, name=None)


def _error(entries) -> float:
    return float(((entries["is_matched"] - entries["exact"]) ** 2).mean() ** 0.5)
