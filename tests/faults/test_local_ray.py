"""A Ray of the run's own: its only node dies, its folder is the user's alone and goes with it, TMPDIR may be long."""

import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow  # each starts a real Ray

CONFIG = """
models: [{name: simt, engine: simulated, cpus: 0.25, settings: {seconds: 0.2}}]
vqa: simulated
subjects: [nurse]
axes: [gender]
images: 160
store: store
run: run
cluster: {wait_seconds: 900}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)


def session_of(pid: int) -> Path | None:
    return next(iter(Path(tempfile.gettempdir()).glob(f"seesaw-{pid}-*")), None)


def at_work(command) -> None:
    """Wait until the first images are made."""
    for event in command.events():
        if event["event"] == "images":
            return


def test_a_killed_raylet_ends_the_run_in_seconds_and_the_same_command_goes_on(start, seesaw, config, tmp_path):
    command = start("sweep", "config.yaml", "--json")
    at_work(command)
    raylet = next(p for p in psutil.Process(command.process.pid).children(recursive=True) if p.name() == "raylet")
    began = time.monotonic()
    raylet.send_signal(signal.SIGKILL)
    command.finish(timeout=120)
    assert time.monotonic() - began < 60
    assert command.code == 3, command.err
    assert "the run's own Ray has lost its only node" in command.err
    again = seesaw("sweep", "config.yaml", "images=16")
    assert again.code == 2  # images may be added, not taken away: it is the same run
    assert seesaw("status", "run").code == 0


def test_the_folder_of_ray_is_the_users_alone_and_goes_with_the_run(start, config):
    command = start("sweep", "config.yaml", "images=24", "--json")
    at_work(command)
    folder = session_of(command.process.pid)
    assert folder is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert command.finish().code == 0, command.err
    assert not folder.exists()


def test_the_folder_of_a_driver_that_was_killed_is_removed_by_the_next(start, seesaw, config):
    command = start("sweep", "config.yaml", "--json")
    at_work(command)
    folder = session_of(command.process.pid)
    command.kill_group()
    assert folder is not None
    assert folder.exists()
    os.utime(folder, (0, 0))
    assert seesaw("sweep", "config.yaml", "images=160", "run=other").code == 0
    assert not folder.exists()


def test_a_long_temporary_folder_does_for_a_sweep(seesaw, config, tmp_path):
    long = tmp_path / ("slurm_jobdir_" * 6) / "12345678.batch"
    long.mkdir(parents=True)
    assert seesaw("sweep", "config.yaml", "images=8", env={"TMPDIR": str(long)}).code == 0
