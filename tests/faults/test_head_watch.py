"""A head of Ray that dies while a driver joins it: Ray's own code would end the driver with 1 and without a word."""

import subprocess
import sys

import psutil
import pytest

from seesaw.results.errors import HeadLost
from tests.runner.test_cluster import Nodes

pytestmark = pytest.mark.slow  # starts a cluster

CONFIG = """
models: [{name: simt, engine: simulated, cpus: 0.25}]
vqa: simulated
subjects: [nurse]
axes: [gender]
images: 8
store: STORE
run: run
"""
#: joins a cluster, with its head killed as soon as it has answered
DRIVER = """
import os, signal, sys
from seesaw.runner.cluster import connect, head_watch
head_watch.SILENCE_SECONDS = 4  # in the place of most of a minute
def answer_and_die(address, check=connect.check_head):
    check(address)
    os.kill(int(os.environ["HEAD"]), signal.SIGKILL)
connect.check_head = answer_and_die
from seesaw.runner.cli import command
sys.argv = ["seesaw", *sys.argv[1:]]
command()
"""


def test_a_head_that_dies_while_it_is_joined_ends_the_run_resumable_with_a_message(tmp_path):
    nodes = Nodes(tmp_path)
    try:
        nodes.add()
        (tmp_path / "config.yaml").write_text(CONFIG.replace("STORE", str(tmp_path / "store")))
        processes = psutil.Process(nodes.process.pid).children(recursive=True)
        head = next(process for process in processes if process.name() == "gcs_server")
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, "sweep", "config.yaml", f"cluster.address={nodes.address}"],
            cwd=tmp_path, env={**nodes.env, "HEAD": str(head.pid)}, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert driver.returncode == HeadLost.exit_code, driver.stderr
        assert "does not answer any more" in driver.stderr
        assert "the same command goes on" in driver.stderr
        assert "Traceback" not in driver.stderr
    finally:
        nodes.process.kill()
        nodes.close()
