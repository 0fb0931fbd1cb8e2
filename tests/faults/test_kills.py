"""Resumable: whatever is killed, whenever, the tables equal those of a run that nobody touched, bit for bit.

Real signals on real processes: SIGKILL to the driver's whole process group (Ray's daemons and all actors with it),
to the TTI actors, and to the vLLM actor, at random moments (a fixed seed chooses them) while work goes on.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.conftest import Command

pytestmark = pytest.mark.slow  # kills sweeps over and over

CONFIG = """
models: [pictogram-birch, pictogram-elm]
vqa: pictogram-vlm
subjects: [nurse, mechanic]
images: 24
store: {store}
run: {run}
cluster: {{attempts: 6, replicas: {{pictogram-birch: 1, pictogram-elm: 1, pictogram-vlm: 1}}}}
"""
DRIVERS, ACTORS = 3, 18  #: kills of each kind, 21 in all
GRACE = 60  #: seconds until the last process of a killed driver has ended; models end within three
#: Ray's own agents first try to tell a head that is gone of its end, for a minute or two; they hold no model
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kills")


def config(folder: Path, name: str) -> str:
    (folder / f"{name}.yaml").write_text(CONFIG.format(store=f"store-{name}", run=f"run-{name}"))
    return f"{name}.yaml"


def processes(command: Command, title: str) -> list[psutil.Process]:
    """Live actor processes of this driver's Ray, by the title that Ray gives them."""
    children = psutil.Process(command.process.pid).children(recursive=True)
    return [p for p in children if title in " ".join(_command_line(p)) and p.status() != psutil.STATUS_ZOMBIE]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def kill_one(command: Command, title: str, moments: random.Random) -> bool:
    found = processes(command, title)
    if not found:
        return False
    moments.choice(found).kill()
    return True


def tables(run: Path) -> dict[str, bytes]:
    return {t: (run / f"{t}.parquet").read_bytes() for t in ("answers", "matrices", "distributions", "failures")}


def orphans(group: int) -> list[str]:
    """Processes of a killed driver's session that still live, but for Ray's agents."""
    left = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                line = " ".join(process.cmdline())
                if not line.startswith(AGENTS):
                    left.append(f"{process.pid} {line[:80]}")
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return left


@pytest.mark.timeout(1200)
def test_killed_at_random_moments_a_sweep_ends_with_the_same_tables(folder, capsys):
    undisturbed = Command("sweep", config(folder, "undisturbed"), cwd=folder).finish(timeout=300)
    assert undisturbed.code == 0, undisturbed.err

    disturbed = config(folder, "disturbed")
    moments = random.Random(7)
    left = Counter(driver=DRIVERS, actor=ACTORS)
    killed: Counter[str] = Counter()
    # one life of the driver after the other; within a life actors are killed, at its end the driver itself
    lives = DRIVERS + 1
    for life in range(lives):
        command = Command("sweep", disturbed, "--json", cwd=folder)
        actors = -(-left["actor"] // (lives - life))
        due = moments.randint(0, 20)
        for event in command.events():
            if event["event"] not in ("images", "answers", "replica"):
                continue
            due -= 1
            if due > 0:
                continue
            due = moments.randint(1, 20)
            time.sleep(moments.uniform(0, 0.05))
            if actors:
                kinds = ["TTIActor", "VQAActor"]
                moments.shuffle(kinds)  # one of what is there: images are made ahead of their questions
                kind = next((kind for kind in kinds if kill_one(command, kind, moments)), None)
                if kind is not None:
                    killed[kind] += 1
                    left["actor"] -= 1
                    actors -= 1
            elif left["driver"] and event["event"] == "answers":
                command.kill_group()
                left["driver"] -= 1
                killed["driver"] += 1
                break
        if not command.process.stdout.closed:
            command.finish()
        deadline = time.monotonic() + GRACE  # a worker that was just starting looks for its raylet for half a minute
        while orphans(command.process.pid) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert orphans(command.process.pid) == []
    if command.process.returncode != 0 or left.total():
        pytest.fail(f"the last life ended with {command.process.returncode}; kills left {left}: {command.err[-2000:]}")

    record = json.loads((folder / "run-disturbed/run.json").read_text())
    with capsys.disabled():
        print(
            f"\nkills: {dict(killed)}; {lives} lives of the driver; images made in the last: "
            f"{record['counts']['images_made']}"
        )
    assert killed.total() >= 20
    assert min(killed["TTIActor"], killed["VQAActor"]) >= 2
    assert tables(folder / "run-disturbed") == tables(folder / "run-undisturbed")
    # every image shard too, though it was made by other processes in another order
    images = {
        p.relative_to(folder / "store-undisturbed"): p for p in (folder / "store-undisturbed").glob("*/*/*.parquet")
    }
    assert len(images) > 500
    for name, path in images.items():
        assert (folder / "store-disturbed" / name).read_bytes() == path.read_bytes()
    verified = Command("verify", folder / "store-disturbed", cwd=folder).finish()
    assert verified.code == 0, verified.out


def test_a_driver_killed_alone_leaves_no_model_and_no_worker_behind(folder):
    """Only the driver's process gets SIGKILL, as the kernel's out-of-memory killer would do it."""
    command = Command("sweep", config(folder, "alone"), "--json", cwd=folder)
    for event in command.events():
        if event["event"] == "images":
            break
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    command.process.stdout.close()
    command.process.stderr.close()
    deadline = time.monotonic() + GRACE
    while orphans(command.process.pid) and time.monotonic() < deadline:
        time.sleep(0.3)
    left = orphans(command.process.pid)
    for line in left:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    assert left == []


def test_a_reader_that_goes_away_does_not_stop_the_work(folder):
    """`seesaw sweep --json | head`: the display is lost, the sweep goes on to its end."""
    command = Command("sweep", config(folder, "deaf"), "vqa=simulated", "images=8", "--json", cwd=folder)
    next(command.events())
    command.process.stdout.close()
    command.process.stderr.close()
    assert command.process.wait(timeout=200) == 0
    assert json.loads((folder / "run-deaf/run.json").read_text())["state"] == "done"
