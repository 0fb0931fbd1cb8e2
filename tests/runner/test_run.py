"""Runs in a process that goes on afterwards: in any thread, beside an event loop, one after the other; and signals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import SEESAW

pytestmark = pytest.mark.slow

CONFIG = """
models: [{name: one, engine: simulated, settings: {bytes: 64, seconds: 0.001}, cpus: 0.2}]
vqa: {name: vlm, engine: simulated, cpus: 0.2}
subjects: [nurse]
axes: [gender]
images: 8
store: store
run: a run
cluster: {replicas: {one: 1}}
"""
#: a process that runs two sweeps and goes on; what it prints last is what is left of them
TWICE = """
import asyncio, json, signal, sys, threading
import psutil, ray
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.run import run

ends, shown_in = [], set()
def show(event, counts):
    shown_in.add(threading.current_thread() is threading.main_thread())
    if event.kind == "end":
        ends.append(event.fields())

def sweep(*overrides):
    return run(SweepJob(load_experiment("config.yaml", overrides)), show)

numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: None)
before = [signal.getsignal(number) for number in numbers]

async def beside_a_loop():
    asyncio.get_running_loop().call_later(0, lambda: None)
    return sweep("images=16", "run=other")

codes = [sweep(), asyncio.run(beside_a_loop())]
handlers_are_back = [signal.getsignal(number) for number in numbers] == before
thread = threading.Thread(target=lambda: codes.append(sweep()))  # all is there: nothing of Ray is started
thread.start()
thread.join()
_, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)
print(json.dumps({
    "codes": codes, "ends": ends, "handlers are back": handlers_are_back, "Ray": ray.is_initialized(),
    "left": [p.name() for p in left if p.status() != psutil.STATUS_ZOMBIE], "shown in": sorted(shown_in),
}))
"""
#: a process in whose event loop a sweep is stopped by Ctrl-C, as in a notebook, and that goes on
STOPPED = """
import asyncio, signal
import ray
from seesaw.results.errors import Interrupted
from seesaw.runner.display.streams import own
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.run import run

out = own(1)  # a run diverts standard output

def show(event, counts):
    if event.kind == "answers":
        print("answers", file=out, flush=True)

async def cell():
    overrides = "images=800", "models=[{name: one, engine: simulated, settings: {seconds: 0.02}, cpus: 0.2}]"
    try:
        run(SweepJob(load_experiment("config.yaml", overrides)), show)
    except Interrupted as error:
        print(error)

asyncio.run(cell())
print(ray.is_initialized(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def test_two_sweeps_in_one_process_leave_it_as_it_was(folder):
    done = subprocess.run([sys.executable, "-c", TWICE], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["codes"] == [0, 0, 0]
    assert said["handlers are back"]
    assert not said["Ray"]
    assert said["left"] == []
    assert said["shown in"] == [False, True]  # beside an event loop it ran in a thread of its own
    first, second, _ = said["ends"]
    assert first["report"] == str(folder / "a run" / "report" / "index.html")  # a path with a space in it
    assert second["report"] == str(folder / "other" / "report" / "index.html")
    assert (folder / "a run" / "report" / "index.html").is_file()


def test_ctrl_c_beside_an_event_loop_stops_the_run_and_not_the_process(folder):
    with subprocess.Popen([sys.executable, "-c", STOPPED], cwd=folder, text=True, stdout=subprocess.PIPE) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert first == "answers\n"
    assert process.returncode == 0
    *_, message, after = out.splitlines()
    assert "the same command goes on where this one was" in message
    assert after == "False True"


def test_a_signal_that_was_ignored_stays_ignored(folder):
    """`nohup seesaw sweep ...`: the terminal is closed, and the sweep goes on to its end."""
    command = [
        "nohup", SEESAW, "sweep", "config.yaml", "images=80", "--json",
        "models=[{name: one, engine: simulated, settings: {seconds: 0.02}, cpus: 0.2}]",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    events = (json.loads(line) for line in process.stdout)
    assert next(event for event in events if event["event"] == "answers")
    os.kill(process.pid, signal.SIGHUP)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGHUP)
    assert next(event for event in events if event["event"] == "end")["state"] == "done"
    assert process.wait(timeout=60) == 0
    process.stdout.close()
    process.stderr.close()


def test_nothing_of_the_current_directory_is_imported_in_a_worker(folder, seesaw):
    """Names that the standard library, Seesaw and its rooms have: each raises if anybody imports it."""
    (folder / "results").mkdir()
    for name in (
        "random.py",
        "types.py",
        "results/__init__.py",
        "actors.py",
        "runner.py",
        "ray.py",
        "sitecustomize.py",
    ):
        (folder / name).write_text(f"raise RuntimeError('{name} was imported')\n")
    command = seesaw("sweep", "config.yaml")
    assert command.code == 0, command.err
    assert (folder / "a run" / "matrices.parquet").is_file()
