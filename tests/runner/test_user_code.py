"""A user's own engine, mitigator and strategy beside the config: loaded where they lie, and in the way of nothing."""

import json
import os
import subprocess
import sys

import pandas as pd
import psutil
import pytest
import yaml

from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.rundir import RunDirectory
from tests.conftest import Command

pytestmark = pytest.mark.slow  # starts Ray

CONFIG = """
name: own
models: [{name: own, engine: 'results:Mine', cpus: 0.25}]
vqa: simulated
subjects: [nurse]
axes: [gender, age]
images: 8
epsilon: 0.05
priorities: {gender: 0.5, age: 0.5}
"""
ENGINE = """
from seesaw.actors.simulated import SimulatedTTI


class Mine(SimulatedTTI):
    pass
"""
CHOICES = """
from seesaw.experiments.mitigators import PM


class Mine(PM):
    pass


class Alphabet:
    name, looks, stops = "alphabet", False, True

    def __init__(self, seed):
        self.seed = seed

    def candidates(self, axes, priority):
        return tuple(sorted(priority))

    def choose(self, view):
        return min(axis for axis in view.priority if axis not in view.mitigated)


class Greedy(Alphabet):
    name = "greedy"


class Nothing:
    def __init__(self, seed):
        pass
"""


#: modules of Python, of Seesaw and of what it needs, each of which ends the process that imports it from here
IN_THE_WAY = ("random", "types", "json", "actors", "runner", "experiments", "numpy", "ray", "yaml", "pyarrow")


@pytest.fixture
def project(tmp_path):
    """A folder of the user's, which is not the one that commands are run in: a config and an engine beside it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own.yaml").write_text(CONFIG)
    (folder / "results.py").write_text(ENGINE)
    return folder


def done(command) -> dict:
    assert command.code == 0, command.err
    return json.loads(command.out.splitlines()[-1])


def test_an_engine_in_a_file_named_as_a_room_of_seesaw_serves(seesaw, project, tmp_path):
    assert done(seesaw("sweep", "project/own.yaml", "run=run", "store=store", "--json"))["images_made"] == 48
    assert (tmp_path / "run/results.py").read_text() == ENGINE


def test_files_named_as_modules_take_the_place_of_none_in_driver_or_actors(project):
    for name in IN_THE_WAY:
        (project / f"{name}.py").write_text(f"import os, sys\nprint('{name}', file=sys.stderr)\nos._exit(99)\n")
    (project / "seesaw").mkdir()
    (project / "seesaw/__init__.py").write_text("raise SystemExit(99)\n")
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    sweep = Command("sweep", "own.yaml", "run=run", "store=store", "--json", cwd=project, env=env).finish()
    assert done(sweep)["images_made"] == 48
    assert done(Command("status", "run", "--json", cwd=project).finish())["state"] == "done"


def test_a_run_directory_has_all_that_later_commands_need(seesaw, project, tmp_path):
    (project / "mine.py").write_text(CHOICES)
    (project / "helper.py").write_text("")
    keys = ["mitigator=mine:Mine", "strategy=[greedy,mine:Alphabet]", "run=run", "store=store"]
    assert seesaw("mitigate", "project/own.yaml", *keys).code == 0
    for file in project.iterdir():
        file.unlink()
    project.rmdir()
    assert done(seesaw("status", "run", "--json"))["models"] == [
        {"model": "own", "batches": 6, "images": 6, "answers": 6}
    ]
    assert seesaw("report", "run").code == 0
    assert done(seesaw("sweep", "run/config.yaml", "--json"))["images_made"] == 0
    assert done(seesaw("mitigate", "run/config.yaml", "max_steps=5", "--json"))["images_made"] == 0
    frame = pd.read_parquet(tmp_path / "run/mitigation.parquet")
    assert set(frame.strategy) == {"greedy", "alphabet"}
    order = frame[(frame.strategy == "alphabet") & (frame.step > 0)].drop_duplicates("step").axis.tolist()
    assert order == sorted(order)
    resolved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (resolved["mitigator"], resolved["strategy"]) == ("mine:Mine", ["greedy", "mine:Alphabet"])


def test_changed_code_of_a_strategy_or_mitigator_is_another_experiment(seesaw, project):
    (project / "mine.py").write_text(CHOICES)
    first = ["mitigate", "project/own.yaml", "run=run", "store=store"]
    assert seesaw(*first, "strategy=greedy").code == 0
    assert seesaw(*first, "strategy=[greedy,mine:Alphabet]").code == 0  # a strategy may be added
    (project / "mine.py").write_text(CHOICES + "# changed\n")
    changed = seesaw(*first, "strategy=[greedy,mine:Alphabet]")
    assert changed.code == 2
    assert "alphabet, gender:0.5 age:0.5: epsilon, priorities, targets or the strategy's code changed" in changed.err
    assert "greedy, gender" not in changed.err


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("mine:Greedy", "strategy 'mine:Greedy': its name is 'greedy', and another strategy has that name"),
        (
            "mine:Nothing",
            "strategy 'mine:Nothing': its class must have 'name', 'looks', 'stops', 'candidates' and 'choose'",
        ),
        ("mine:Alphabt", "strategy 'mine:Alphabt': module 'mine' has no 'Alphabt'"),
        ("mine:Mine", "strategy 'mine:Mine' cannot be made: TypeError"),
        ("mien:Mine", "strategy 'mien:Mine': no module 'mien' can be imported"),
    ],
)
def test_what_is_no_strategy_is_one_message(strategy, message, seesaw, project):
    (project / "mine.py").write_text(CHOICES)
    refused = seesaw("mitigate", "project/own.yaml", f"strategy={strategy}")
    assert refused.code == 2
    assert message in refused.err
    assert refused.err.count("\n") == 1


def test_a_run_that_never_began_leaves_no_copy_that_bars_the_next(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(SweepJob(load_experiment("project/own.yaml", ["run=run"])))
    with directory.claimed():
        directory.write_config()
        assert (tmp_path / "run/results.py").is_file()
        directory.forget()
    with directory.claimed():
        assert not (tmp_path / "run/results.py").exists()


ELSEWHERE = """
import sys
from ray.cluster_utils import Cluster
head = dict(num_cpus=0, include_dashboard=False, object_store_memory=80_000_000)
cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


@pytest.fixture
def raylets(tmp_path):
    """The address of a cluster that was started by others: from another folder, in an environment of its own."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123abcd" * 8}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, cwd=folder, start_new_session=True,
        )  # fmt: skip
        address = process.stdout.readline().strip()
        started = psutil.Process(process.pid).children(recursive=True)
        try:
            yield {key: env[key] for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")} | {"RAY_ADDRESS": address}
        finally:
            process.communicate("\n", timeout=60)
            for left in started:
                if left.is_running():
                    left.kill()


def test_a_cluster_that_others_started_serves_an_engine_that_lies_beside_the_config(seesaw, project, raylets, tmp_path):
    (project / "random.py").write_text("raise SystemExit(99)\n")
    keys = ["run=run", f"store={tmp_path / 'store'}", "cluster.address=auto"]
    sweep = seesaw("sweep", "project/own.yaml", *keys, "--json", env=raylets)
    assert done(sweep)["images_made"] == 48


def test_an_import_that_a_node_lacks_is_named_before_work_starts(seesaw, project, raylets, tmp_path):
    """The driver finds the sibling in its environment; the raylets, started in another, do not."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/only_here.py").write_text("")
    (project / "results.py").write_text("import only_here\n" + ENGINE)
    env = {**raylets, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path / "site")])}
    keys = ["run=run", f"store={tmp_path / 'store'}", "cluster.address=auto"]
    refused = seesaw("sweep", "project/own.yaml", *keys, env=env)
    assert refused.code == 4, refused.err
    assert "own: engine 'results:Mine': " in refused.err
    assert "No module named 'only_here'" in refused.err
