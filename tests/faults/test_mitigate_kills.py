"""Killed at random moments, a mitigation comes to the decisions, tables and images of one that nobody touched."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from seesaw.results.tables.read_mitigation import read_mitigation
from tests.conftest import Command

pytestmark = pytest.mark.slow  # kills mitigations over and over

CONFIG = """
models: [{{name: one, engine: pictogram-draw, settings: {{world: alder}}, cpus: 0.2}}]
vqa: {{name: vlm, engine: simulated, settings: {{seconds: 0.0005}}, cpus: 0.2}}
subjects: [nurse, chef, farmer]
axes: [gender, age, clothing, emotion]
images: 8
epsilon: 0.01
max_steps: 3
strategy: [greedy, all]
priorities: [{{gender: 0.5, age: 0.5}}, {{clothing: 0.3, emotion: 0.7}}]
store: store-{name}
run: run-{name}
"""
KILLS = 10


@pytest.fixture
def config(tmp_path):
    for name in ("undisturbed", "disturbed"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG.format(name=name))
    return tmp_path


def held(folder: Path, name: str) -> dict[str, bytes]:
    store = folder / f"store-{name}"
    return {str(path.relative_to(store)): path.read_bytes() for path in store.glob("*/*/*.parquet")}


def test_killed_at_random_moments_a_mitigation_comes_to_the_same_decisions(config, capsys):
    undisturbed = Command("mitigate", "undisturbed.yaml", cwd=config).finish()
    assert undisturbed.code == 0, undisturbed.err
    batches = len(held(config, "undisturbed")) // 2

    # new answers, in all, at each kill: anywhere before the last fifth, since a killed driver has not told all it did
    moments = sorted(random.Random(3).sample(range(1, 4 * batches // 5), KILLS))
    steps = []  # that were known when it was killed
    for before, moment in pairwise([0, *moments]):
        command = Command("mitigate", "disturbed.yaml", "--json", cwd=config)
        due = moment - before
        for event in command.events():
            due -= event["event"] == "answers"
            if due <= 0:
                steps.append(event["steps"])
                command.kill_group()
                break
        assert command.process.returncode == -9, "it came to its end before it was killed"
    last = Command("mitigate", "disturbed.yaml", cwd=config).finish()
    assert last.code == 0, last.err
    answers = json.loads((config / "run-disturbed/run.json").read_text())["counts"]["answers"]
    with capsys.disabled():
        print(f"\n{KILLS} kills after {steps} steps; {batches} batches; {answers} answers at last")
    assert answers > 0  # images are made ahead of their questions, and may all have been there
    assert max(steps) > 5  # not all of them before anything was decided

    for table in ("mitigation", "mitigation_matrices", "failures"):
        ours, theirs = (config / f"run-{name}/{table}.parquet" for name in ("disturbed", "undisturbed"))
        assert ours.read_bytes() == theirs.read_bytes()
    assert held(config, "disturbed") == held(config, "undisturbed")
    cases = read_mitigation(config / "run-disturbed/mitigation.parquet")
    assert len(cases) == 3 * 2 * 2
    assert max(case.steps for case in cases) >= 2
