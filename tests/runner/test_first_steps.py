"""What a new user types first: init, models, vlms, datasets, doctor, ls; and the limits of a machine."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

from seesaw.runner.cluster import machine
from seesaw.runner.cluster.machine import machine_checks

ROOT = Path(__file__).resolve().parents[2]


def events(command) -> list[dict]:
    assert command.code == 0, command.err
    return [json.loads(line) for line in command.out.splitlines()]


def test_init_writes_a_config_that_plans_and_never_overwrites_one(seesaw, tmp_path):
    assert seesaw("init", "audit.yaml").code == 0
    assert "# " in (tmp_path / "audit.yaml").read_text()
    planned = json.loads(seesaw("plan", "audit.yaml", "--json").out)
    assert (planned["name"], planned["cells"]) == ("audit", 2 * 27)
    again = seesaw("init", "audit.yaml")
    assert (again.code, again.err.strip()) == (2, "seesaw: 'audit.yaml' is there already; give another name")


def test_init_takes_subjects_of_ones_own(seesaw, tmp_path):
    (tmp_path / "subjects.txt").write_text("tram driver\nbaker\nbaker\n")
    assert seesaw("init", "mine.yaml", "--subjects", "subjects.txt", "--vqa", "simulated").code == 0
    assert json.loads(seesaw("plan", "mine.yaml", "--json").out)["cells"] == 2 * 27


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit"], "has no suffix .yaml"),
        (["a.yaml", "--model", "pictogram-ds"], "did you mean 'pictogram-sd'?"),
        (["a.yaml", "--subjects", "none.txt"], "none.txt cannot be read"),
    ],
)
def test_init_refuses_what_it_cannot_write_and_writes_nothing(seesaw, tmp_path, arguments, message):
    command = seesaw("init", *arguments)
    assert command.code == 2
    assert message in command.err
    assert list(tmp_path.glob("*.yaml")) == []


def test_models_and_vlms_say_licence_memory_and_whether_weights_are_here(seesaw, tmp_path):
    nowhere = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    models = {row["name"]: row for row in events(seesaw("models", "--json", env=nowhere))}
    assert models["pictogram-sd"]["lacks"] == ""
    assert models["pictogram-sd"]["licence"] == "Apache-2.0"
    assert "hf download CompVis/stable-diffusion-v1-4" in models["sd14"]["lacks"]
    assert models["flux1-dev"]["licence"].endswith("gated")
    vlms = {row["name"]: row for row in events(seesaw("vlms", "--json", env=nowhere))}
    assert vlms["simulated"]["lacks"] == ""
    assert vlms["qwen2.5-vl-7b"]["memory_gb"] == 22
    assert "sd14" in seesaw("models", env=nowhere).out


def test_datasets_list_subjects_and_axes(seesaw):
    (occupation,) = events(seesaw("datasets", "--json"))
    assert (occupation["name"], len(occupation["subjects"]), len(occupation["axes"])) == ("occupation", 26, 8)


def test_doctor_says_that_this_machine_can_run_the_demo(seesaw):
    command = seesaw("doctor")
    assert command.code == 0, command.out
    assert "This machine can run `seesaw sweep demo`" in command.out
    assert "MISSING" not in command.out


def test_too_low_a_limit_of_processes_is_exit_4_with_the_remedy(tmp_path):
    """As an ordinary user, whom the limit binds: the superuser's own processes have none."""
    program = """
import os, resource, sys
from seesaw.results.errors import EnvironmentFault
from seesaw.runner.cluster.machine import check_machine
resource.setrlimit(resource.RLIMIT_NPROC, (150, 150))
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    check_machine(cpus=2, object_store_gb=0.1)
except EnvironmentFault as fault:
    print(fault)
    sys.exit(fault.exit_code)
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert child.returncode == 4, child.stderr
    assert "this user may have 150 processes and threads (ulimit -u)" in child.stdout
    assert "raise the limit (ulimit -u" in child.stdout


def test_a_small_dev_shm_is_told_with_what_fits():
    free = shutil.disk_usage(machine.SHM).free / 2**30
    (problem,) = [check.problem for check in machine_checks(2, free + 1) if check.problem]
    assert "--shm-size=" in problem
    assert f"cluster.object_store_gb={free - 0.05:.2f}" in problem


def test_a_temporary_folder_too_long_for_sockets_gives_way_to_a_short_one(monkeypatch, tmp_path):
    long = tmp_path / ("slurm_jobdir_" * 6)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert machine.session_folder() == Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert [check.problem for check in machine_checks(2, 0.1) if check.problem] == []


def test_ls_lists_runs_with_their_state(seesaw, tmp_path):
    run = tmp_path / "outputs" / "a"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"command": "sweep", "state": "done", "fingerprint": {}}))
    (tmp_path / "outputs" / "b").mkdir()
    (row,) = events(seesaw("ls", "--json"))
    assert (row["run"], row["command"], row["state"]) == ("outputs/a", "sweep", "done")
    assert "outputs/a" in seesaw("ls").out
    (run / "run.json").write_text(json.dumps({"command": "sweep", "state": "running", "fingerprint": {}}))
    (run / ".lock").touch()
    with FileLock(run / ".lock"):
        assert events(seesaw("ls", "--json"))[0]["state"] == "running"
    assert events(seesaw("ls", "--json"))[0]["state"] == "killed"
    assert seesaw("ls", "nowhere").code == 2


def test_an_error_of_seesaws_own_has_a_code_of_its_own_and_says_where_its_traceback_is(tmp_path):
    """1 means "done, some cells failed" and nothing else."""
    program = """
import sys
from seesaw.runner import cli
def broken(**arguments):
    raise RuntimeError("a bug, quoting hf_abcdefghijklmnopqrstuvwx")
cli.main.commands["plan"].callback = cli._answerable(broken)
sys.argv = ["seesaw", "plan", "demo"]
cli.command()
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert child.returncode == 70
    assert child.stderr.startswith("seesaw: this is an error of Seesaw's own, please report it; RuntimeError: a bug")
    assert child.stderr.count("\n") == 1
    kept = Path(child.stderr.strip().rpartition("traceback is in ")[2])
    try:
        assert "Traceback (most recent call last)" in kept.read_text()
        assert "hf_abcdef" not in kept.read_text() + child.stderr
    finally:
        kept.unlink()


@pytest.mark.parametrize(
    ("config", "slow"),
    [
        ("small.yaml", {"pandas", "scipy", "transformers", "torch", "ray"}),
        ("demo", {"pandas", "scipy", "torch", "ray"}),  # the tokenizers of its models are loaded, without torch
    ],
)
def test_a_plan_imports_nothing_that_takes_long(config, slow, tmp_path):
    (tmp_path / "small.yaml").write_text(
        "{models: [{name: one, engine: simulated}], vqa: simulated, subjects: [nurse], axes: [gender], images: 8}"
    )
    command = [sys.executable, "-X", "importtime", "-m", "seesaw", "plan", config]
    planned = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line for line in planned.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "seesaw.runner.plan" in imported
    assert not slow & imported
