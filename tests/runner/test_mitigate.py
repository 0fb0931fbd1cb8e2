"""`seesaw mitigate` and `seesaw study` as a user sees them, through real Ray actors; engines without a model."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from seesaw.experiments.assignments import assignments_of
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.mitigators import PM
from seesaw.experiments.prompts import initial_prompt
from seesaw.results.errors import ConfigError
from seesaw.results.tables.read_mitigation import read_mitigation
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.mitigate import MitigateJob
from seesaw.runner.plan import batches_of, in_whole_batches

pytestmark = pytest.mark.slow  # every test starts Ray, and some several times

CONFIG = """
models: [{name: one, engine: pictogram-draw, settings: {world: alder}, cpus: 0.2}]
vqa: {name: vlm, engine: simulated, cpus: 0.2}
subjects: [nurse, chef]
axes: [gender, age, clothing]
images: 10
epsilon: 0.02
store: store
run: run
priorities: {gender: 0.5, age: 0.5}
"""
DATASET = load_dataset("occupation")


@pytest.fixture
def config(tmp_path):
    (tmp_path / "small.yaml").write_text(CONFIG)
    return "small.yaml"


def tables(run) -> dict[str, bytes]:
    names = ("mitigation", "mitigation_matrices", "failures")
    return {name: (run / f"{name}.parquet").read_bytes() for name in names}


def counts(run) -> dict[str, int]:
    return json.loads((run / "run.json").read_text())["counts"]


def test_a_mitigation_writes_the_contract_s_files_and_reuses_what_it_can(config, tmp_path, seesaw):
    first = seesaw("mitigate", config, "strategy=[greedy,all,own,random]")
    assert first.code == 0, first.err
    run = tmp_path / "run"
    columns = pq.read_schema(run / "mitigation.parquet").names
    assert {"model", "subject", "step", "axis", "tau", "gamma", "prompts", "outcome", "alerts"} <= set(columns)
    assert [name for name in columns if name.startswith("w_")] == ["w_gender", "w_age", "w_clothing"]
    cases = read_mitigation(run / "mitigation.parquet")
    assert {(c.subject, c.strategy) for c in cases} == set(
        itertools.product(["nurse", "chef"], ["greedy", "all", "own", "random"])
    )
    for case in cases:
        assert case.case == "gender:0.5 age:0.5"
        assert case.outcome in ("reached", "exhausted", "no_gain")
        assert len(set(case.mitigated)) == len(case.mitigated) == case.steps
        assert case.strategy == "greedy" or set(case.mitigated) <= {"gender", "age"}
        assert re.match(f"{case.subject} on one, {case.strategy}", case.subject + f" on one, {case.strategy}")
        assert f"{case.subject} on one, {case.strategy}, gender:0.5 age:0.5: {case.outcome} after" in first.err
    matrices = pd.read_parquet(run / "mitigation_matrices.parquet")
    for case in (case for case in cases if case.strategy == "greedy"):
        for step, taken in enumerate(case.trajectory[1:]):
            seen = matrices[
                (matrices.subject == case.subject) & (matrices.strategy == "greedy") & (matrices.step == step)
            ]
            mine = seen.set_index(["source_axis", "target_axis"])["is"]
            gammas = {a: 0.5 * mine[a, "gender"] + 0.5 * mine[a, "age"] for a in seen.source_axis.unique()}
            assert set(gammas) == {"gender", "age", "clothing"} - set(case.mitigated[:step])
            assert taken.axis == max(gammas, key=gammas.__getitem__)
            assert taken.gamma == pytest.approx(gammas[taken.axis], abs=1e-12)
    assert {path.name for path in (run / "tables").iterdir()} == {
        f"{name}.{kind}"
        for name in ("table1", "comparison", *(f"appendix-one-{s}" for s in ("greedy", "own", "random")))
        for kind in ("csv", "md", "tex")
    }
    page = (run / "report/index.html").read_text()
    assert "gender:0.5 age:0.5" in page
    assert counts(run)["images_made"] < counts(run)["images_asked"]

    before = tables(run)
    again = seesaw("mitigate", config, "strategy=[greedy,all,own,random]")
    assert again.code == 0
    assert "nothing to do" in again.err
    status = json.loads(seesaw("status", "run", "--json").out)
    assert (status["command"], status["state"]) == ("mitigate", "done")
    assert sum(status["mitigations"].values()) == 8

    # another run over the same store generates nothing, and comes to the same decisions
    elsewhere = seesaw("mitigate", "run/config.yaml", "run=other")
    assert elsewhere.code == 0, elsewhere.err
    assert counts(tmp_path / "other")["images_made"] == 0
    assert tables(tmp_path / "other") == before

    # a second priority vector, in the same directory, generates at most half of what the first did
    made = counts(tmp_path / "run")["images_made"]
    more = seesaw(
        "mitigate", config, "strategy=[greedy,all,own,random]", "priorities=[{gender: 0.5, age: 0.5}, {clothing: 1}]"
    )
    assert more.code == 0, more.err
    assert counts(run)["images_made"] <= made / 2
    both = read_mitigation(run / "mitigation.parquet")
    assert repr([case for case in both if case.case == "gender:0.5 age:0.5"]) == repr(cases)  # NaN is not itself
    refused = seesaw("mitigate", config, "strategy=[greedy,all,own,random]")
    assert refused.code == 2
    assert "without chef on one, all, clothing:1" in refused.err

    # a sweep of the same config shares the directory: its cells are the first step's
    sweep = seesaw("sweep", config, "strategy=[greedy,all,own,random]")
    assert sweep.code == 0, sweep.err
    assert counts(run)["images_made"] == 0
    assert "nothing to do" in seesaw("sweep", config).err
    assert repr(read_mitigation(run / "mitigation.parquet")) == repr(both)
    both_page = (run / "report/index.html").read_text()
    assert "gender:0.5 age:0.5" in both_page
    assert 'id="pair-0"' in both_page


def test_studies_take_what_a_sweep_has_and_measure_in_fresh_images(config, tmp_path, seesaw):
    assert seesaw("sweep", config).code == 0
    held = len(list((tmp_path / "store/images").glob("*/*.parquet")))
    study = seesaw("study", "validation", config)
    assert study.code == 0, study.err
    made = len(list((tmp_path / "store/images").glob("*/*.parquet"))) - held
    assert 0 < made <= held  # fresh ones alone: those that predict are the sweep's
    before = pd.read_parquet(tmp_path / "run/effects.parquet").before
    shown = pd.read_parquet(tmp_path / "run/uncertainty.parquet").is_matched
    assert before.to_numpy() == pytest.approx(shown.to_numpy())
    table = pd.read_csv(tmp_path / "run/validation.csv")
    assert table[["model", "subject", "pairs"]].to_numpy().tolist() == [["one", "chef", 9], ["one", "nurse", 9]]
    assert "IS as predicted and as measured in fresh images correlate at" in study.err
    assert len(pd.read_parquet(tmp_path / "run/effects.parquet")) == 2 * 9
    other = seesaw("study", "negatives", config)
    assert other.code == 0, other.err
    assert pd.read_csv(tmp_path / "run/negatives.csv")["pairs"].tolist() == [12]
    assert "nothing to do" in seesaw("study", "validation", config).err
    assert "nothing to do" in seesaw("sweep", config).err
    wrong = seesaw("study", "validatio", config)
    assert wrong.code == 2
    assert "did you mean 'validation'?" in wrong.err


def test_real_images_become_d_star_and_turn_signs(config, tmp_path, seesaw):
    """Eleven real nurses, no whole batch of eight, and nine chefs; every file is asked once, and none that is not."""
    for subject, number in (("nurse", 11), ("chef", 9)):
        (tmp_path / "photos" / subject).mkdir(parents=True)
        for i in range(number):
            pixels = np.random.default_rng([number, i]).integers(256, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / subject / f"{i:03}.png")
    study = seesaw("study", "target", config, "--real", "photos")
    assert study.code == 0, study.err
    target = pd.read_csv(tmp_path / "run/target.csv")
    assert target.groupby(["subject", "axis"]).share.sum().to_numpy() == pytest.approx(1)
    assert target.groupby("subject").n.max().to_dict() == {"chef": 9, "nurse": 11}
    flips = pd.read_parquet(tmp_path / "run/flips.parquet")
    assert len(flips) == 2 * 9
    assert flips.model.unique().tolist() == ["one"]
    # what was measured is a table of shares, which says the same when it is given
    shares = seesaw("study", "target", config, "--real", "run/target.csv", "run=given")
    assert shares.code == 0, shares.err
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "given/flips.parquet"), flips)
    assert "nothing to do" in seesaw("study", "target", config, "--real", "photos").err
    for real, message in (("photo", "photo"), ("small.yaml", "small.yaml")):
        refused = seesaw("study", "target", config, "--real", real)
        assert refused.code == 2
        assert message in refused.err
        assert "Traceback" not in refused.err
    (tmp_path / "photos/nurse/000.png").unlink()
    other = seesaw("study", "target", config, "--real", "photos")
    assert other.code == 0  # other photos are another D*, which the same directory may have
    assert "nothing to do" not in other.err
    assert pd.read_csv(tmp_path / "run/target.csv").groupby("subject").n.max().to_dict() == {"chef": 9, "nurse": 10}
    assert "--real PATH" in seesaw("study", "target", config).err


def test_what_fails_is_undefined_and_mended_by_the_same_command(config, tmp_path, seesaw):
    text = CONFIG.replace(
        "engine: pictogram-draw, settings: {world: alder}", "engine: simulated, settings: {fails: old }"
    )
    (tmp_path / "broken.yaml").write_text(text)
    failed = seesaw("mitigate", "broken.yaml", "subjects=[nurse]", "cluster.attempts=1")
    assert failed.code == 1
    assert "Traceback" not in failed.err
    (case,) = read_mitigation(tmp_path / "run/mitigation.parquet")
    assert case.outcome == "undefined"
    assert any("A photo of an old nurse" in alert for step in case.trajectory for alert in step.alerts)
    assert pd.read_parquet(tmp_path / "run/failures.parquet").cell.str.contains("age=old").any()
    again = seesaw("mitigate", "broken.yaml", "subjects=[nurse]", "cluster.attempts=1")
    assert again.code == 1  # it is tried again, and still fails
    assert "nothing to do" not in again.err


def test_blank_images_are_failures_and_no_observations(config, tmp_path, seesaw):
    text = CONFIG.replace(
        "engine: pictogram-draw, settings: {world: alder}", "engine: simulated, settings: {blank: old }"
    )
    (tmp_path / "blank.yaml").write_text(text)
    command = seesaw("mitigate", "blank.yaml", "subjects=[nurse]", "max_steps=1")
    assert command.code == 1
    assert "some images are blank" in command.err
    failures = pd.read_parquet(tmp_path / "run/failures.parquet")
    assert failures.error.unique().tolist() == ["blank"]
    assert failures.cell.tolist() == ["one / nurse / age=old"]
    (case,) = read_mitigation(tmp_path / "run/mitigation.parquet")
    assert case.outcome not in ("", "undefined")


def test_a_stopped_mitigation_resumes(config, tmp_path, start, seesaw):
    slow = CONFIG.replace("engine: simulated", "engine: simulated, settings: {seconds: 0.003}")
    (tmp_path / "slow.yaml").write_text(slow)
    command = start("mitigate", "slow.yaml", "--json")
    for event in command.events():
        if event["event"] == "answers":
            break
    command.process.terminate()
    assert command.finish().code == 3
    assert json.loads((tmp_path / "run/run.json").read_text())["state"] == "interrupted"
    assert seesaw("mitigate", "slow.yaml").code == 0
    assert seesaw("mitigate", "slow.yaml", "run=fresh", "store=fresh-store").code == 0
    assert tables(tmp_path / "run") == tables(tmp_path / "fresh")


BAD = {
    "priorities: {gender: 0.5, age: 0.4}": r"sum to 0.9, not 1.*normalize: true",
    "priorities: {gender: 1.5, age: -0.5}": "priority of axis 'age' is -0.5",
    "priorities: {gendr: 1}": "no axis.*did you mean 'gender'",
    "priorities: {gender: high}": "priority of axis 'gender' is 'high'",
    "priorities: {gender: .nan}": "priority of axis 'gender' is nan",
    "priorities: {}": "priorities is {}",
    "priorities: 3": "priorities is 3; it must be 'draw'",
    "priorities: [gender]": "'gender' in the list is neither a mapping",
    "priorities: drw": "priorities is 'drw'; it must be 'draw'",
    "priorities: nowhere.csv": "nowhere.csv: cannot be read",
    "priorities: {draw: 0}": "draw is 0; it must be the number",
    "priorities: {draw: many}": "draw is 'many'",
    "priorities: {nurs: {gender: 1}}": "no subject 'nurs'.*did you mean 'nurse'",
    "priorities: [{priority: {gender: 1}, model: tw}]": "no model 'tw'",
    "priorities: [{priority: {gender: 1}, subjct: nurse}]": "key 'subjct'; did you mean 'subject'",
    "priorities: [{priority: {gender: 1}, epsilon: 2}]": "epsilon is 2",
    "priorities: [{priority: {gender: 1}, targets: 3}]": "targets of an entry of priorities are 3",
    "priorities: [{priority: {gender: 1}, targets: {gender: [0.4, 0.7]}}]": "gender.* sum",
    "priorities: [{priority: {gender: 1}, targets: {gender: {male: 1}}}]": "no share for 'female'",
    "priorities: [{priority: {gender: 1}, targets: {gender: null}}]": "target of axis 'gender' is None",
    "priorities: [{priority: {gender: 1}, targets: {1: [0.5, 0.5]}}]": "dataset 'occupation' has no axis '1'",
    "priorities: {gender: 1.0e+308, age: 1.0e+308}": "priority of axis 'gender' is 1e\\+308; it must be 0 or more",
    "priorities: [{gender: 0.12345671, age: 0.87654329}, {gender: 0.12345674, age: 0.87654326}]": "leave one out",
    "strategy: [[greedy]]": "there is no strategy",
    "targets: [1]": r"targets is \[1\]",
    "epsilon: -0.1": "epsilon is -0.1; it must be a number from 0 to 1",
    "epsilon: often": "epsilon is 'often'",
    "epsilon: true": "epsilon is True",
    "strategy: greedi": "there is no strategy 'greedi'; did you mean 'greedy'",
    "strategy: []": "strategy is",
    "mitigator: pn": "mitigator 'pn' is unknown; did you mean 'pm'",
    "max_steps: 0": "max_steps is 0; it must be 1 or more",
    "max_steps: chose": "max_steps is 'chose'; it must be 1 or more, 'chosen'",
    "margin: 2": "margin is 2; it must be a number from 0 to 1",
    "fresh: perhaps": "fresh must be true or false, got 'perhaps'",
    "targets: {gender: [0.5, 0.6]}": "gender",
    "intervention: targt": "did you mean 'target'",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_keys_are_refused_with_what_would_be_right(line, tmp_path):
    key = line.partition(":")[0]
    kept = "".join(each + "\n" for each in CONFIG.splitlines() if not each.startswith(f"{key}:"))
    (tmp_path / "bad.yaml").write_text(kept + line + "\n")
    with pytest.raises(ConfigError, match=BAD[line]):
        MitigateJob(load_experiment(str(tmp_path / "bad.yaml")))


def test_a_refusal_is_one_message_with_exit_code_2(config, seesaw):
    refused = seesaw("mitigate", config, "priorities={gender: 0.5, age: 0.4}")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert "sum to 0.9, not 1" in refused.err


def test_priorities_take_the_forms_that_a_user_would_write(tmp_path):
    models, few = ["a", "b"], DATASET.select(subjects=["nurse", "chef"])

    def asked(given, **how):
        return [(a.model, a.subject, a.name) for a in assignments_of(few, models, given, **how)]

    everyone = [(m, s) for m in models for s in ("chef", "nurse")]  # as the dataset has them
    assert asked({"gender": 0.5, "age": 0.5}) == [(*pair, "gender:0.5 age:0.5") for pair in everyone]
    assert asked({"nurse": {"gender": 1}}) == [(m, "nurse", "gender:1") for m in models]
    entry = {"priority": {"age": 1}, "subject": "chef", "model": "b", "epsilon": 0.2, "targets": {"gender": [0.4, 0.6]}}
    assert asked([entry, {"gender": 1}, {"gender": 1.0}]) == [
        ("a", "chef", "gender:1"), ("a", "nurse", "gender:1"),
        ("b", "chef", "age:1 epsilon:0.2 target-gender:[0.4,0.6]"), ("b", "chef", "gender:1"),
        ("b", "nurse", "gender:1"),
    ]  # fmt: skip
    assert asked({"gender": 1, "age": 1, "clothing": 2}, normalize=True)[0][2] == "gender:0.25 age:0.25 clothing:0.5"
    drawn = asked({"draw": 3}, seed=5)
    assert drawn == asked({"draw": 3}, seed=5) != asked({"draw": 3}, seed=6)
    assert len(drawn) == 12
    assert asked("draw") == asked(None) == asked({"draw": 1})
    # a priority is the same whichever subjects are beside it
    alone = [(a.model, a.subject, a.name) for a in assignments_of(DATASET.select(subjects=["chef"]), models, None)]
    assert alone == [each for each in asked(None) if each[1] == "chef"]


def test_a_csv_of_priorities_is_found_beside_the_config_and_kept_in_the_resolved_one(config, tmp_path):
    (tmp_path / "weights.csv").write_text("occupation,gender,age\nnurse,1,1\nchef,,3\n")
    experiment = load_experiment(str(tmp_path / config), ["priorities=weights.csv", "normalize=true"])
    found = [(a.subject, a.name) for a in MitigateJob(experiment)._assignments]
    assert found == [("chef", "age:1"), ("nurse", "gender:0.5 age:0.5")]
    resolved = experiment.resolved()
    assert resolved["normalize"] is False
    assert resolved["priorities"][1] == {"subject": "chef", "priority": {"age": 1.0}}


def test_targets_of_a_case_s_own_are_those_that_it_is_measured_against(config, tmp_path):
    given = "priorities=[{priority: {gender: 1}}, {priority: {gender: 1}, targets: {gender: [0.25, 0.75]}}]"
    job = MitigateJob(load_experiment(str(tmp_path / config), [given]))
    targets = [mitigator.settings.targets["gender"].tolist() for mitigator in job._mitigators.values()]
    assert targets == [[0.5, 0.5], [0.25, 0.75]]


def test_images_of_a_prompt_that_states_many_axes_come_in_small_batches(config, tmp_path):
    """A model mitigated on four axes is 2 x 3 x 6 x 3 prompts, of which one image each is looked at."""
    experiment = load_experiment(str(tmp_path / config), ["axes=all"])
    dataset, model = experiment.dataset, experiment.models[0]
    mitigator = PM(experiment.settings, 48)
    current, sizes = mitigator.initial("nurse"), []
    for axis in ("gender", "age", "ethnicity", "bodytype", "environment"):
        current = mitigator.mitigate(current, axis)
        cut = batches_of(experiment, model, current.prompts[0], current.images[0])
        sizes.append((current.images[0], [len(batch.index) for batch in cut]))
        assert in_whole_batches(current.prompts[0].stated, current.images[0]) == sum(sizes[-1][1])
    assert sizes == [(24, [8] * 3), (8, [8]), (2, [4]), (1, [2]), (1, [1])]
    assert [len(batch.index) for batch in batches_of(experiment, model, initial_prompt(dataset, "nurse"), 9)] == [8, 8]
