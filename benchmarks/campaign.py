"""A sweep on several raylets while everything is killed at random: nothing may be lost or counted twice.

    python -m benchmarks.campaign [--kills 100] [--raylets 4] [--seed 0]

Ray and the signals are real, the engines are simulated. Five models and a VLM sweep over raylets that claim two GPUs
each. While the work goes on, a seed chooses the attacks: SIGKILL to an actor; SIGSTOP to an actor, whose engine then
hangs; SIGKILL to a raylet, which another one replaces; SIGKILL to the driver, after which the same command resumes with
one raylet more or fewer. At the end, tables and shards must be bit-identical to those of an undisturbed sweep, no
answer may be there twice, and no process may be left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from ray.cluster_utils import Cluster

CONFIG = """
models:
{models}
vqa: {{name: vlm, engine: simulated, settings: {{seconds: 0.001}}, gpus: 1, cpus: 0, seconds_per_question: 0.001}}
subjects: {subjects}
axes: [gender, age]
images: {images}
store: {folder}/store
run: {folder}/run
cluster: {{address: "{address}", attempts: 8, hang_seconds: 30, wait_seconds: 120}}
"""
MODEL = "  - {{name: tti-{i}, engine: simulated, settings: {{seconds: {s}}}, gpus: 1, cpus: 0, seconds_per_image: {s}}}"
SUBJECTS = ("nurse", "doctor", "chef", "farmer", "lawyer", "athlete", "mechanic", "scientist", "police", "musician")
KINDS = ("actor", "hang", "raylet", "driver")
WEIGHTS = (5, 2, 2, 1)
#: of a node: a small object store (bytes), and neither autoscaler nor log monitor, which nobody uses here
SMALL = {"object_store_memory": 100 * 2**20, "no_monitor": True, "include_log_monitor": False}
LONGEST = 3600.0  #: seconds after which a campaign counts as hung


@dataclass(frozen=True)
class Size:
    """The size of the sweep."""

    models: int = 5
    subjects: int = 10
    images: int = 48


@dataclass
class Campaign:
    """The attacks on a sweep, and their outcome."""

    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0  #: how often the driver was started
    batches: int = 0
    made: int = 0  #: batches of images that drivers reported; those beyond `batches` were made again
    redone: int = 0  #: batches that waited at replicas which died
    lost: int = 0  #: shards that the undisturbed sweep has and this one lacks or has with other bytes, or the reverse
    twice: int = 0  #: answers that are in the table more than once
    tables_equal: bool = False
    left: list[str] = field(default_factory=list)  #: processes of actors that outlived the driver
    seconds: float = 0.0


class Raylets:
    """A head without CPUs or GPUs, and raylets with two GPUs each, all on this machine. A context manager."""

    def __init__(self, count: int) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, **SMALL})
        self._pids: set[int] = set()
        for _ in range(count):
            self.join()

    def __enter__(self) -> Raylets:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def nodes(self) -> list[Any]:
        """All nodes but the head."""
        return [node for node in self.cluster.list_all_nodes() if node is not self.cluster.head_node]

    def join(self, **more: Any) -> Any:
        node = self.cluster.add_node(num_cpus=2, num_gpus=2, **SMALL, **more)
        self._pids.add(self.raylet(node).pid)
        return node

    def kill(self, node: Any) -> None:
        """Send SIGKILL to its raylet, and stop the other processes that Ray started for it."""
        self.raylet(node).kill()
        self.cluster.remove_node(node, allow_graceful=False)

    @staticmethod
    def raylet(node: Any) -> psutil.Process:
        return psutil.Process(node.all_processes["raylet"][0].process.pid)

    def actors(self) -> list[psutil.Process]:
        """Processes that serve models, by the title that Ray gives them; those of killed raylets are included."""
        actors = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(("ray::TTIActor", "ray::VQAActor")):
                    ours = int(process.environ().get("RAY_RAYLET_PID", 0)) in self._pids
                    if ours and process.status() != psutil.STATUS_ZOMBIE:
                        actors.append(process)
        return actors


def config(folder: Path, address: str, size: Size) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "campaign.yaml"
    each = "\n".join(MODEL.format(i=i, s=0.02 + 0.01 * i) for i in range(size.models))
    named = json.dumps(list(SUBJECTS[: size.subjects]))
    path.write_text(CONFIG.format(models=each, subjects=named, images=size.images, folder=folder, address=address))
    return path


class Driver:
    """`seesaw sweep` in a process of its own, whose events are counted as they arrive."""

    def __init__(self, config: Path) -> None:
        self.made = self.redone = 0
        self.end = ""
        self.process = subprocess.Popen(
            [Path(sys.executable).parent / "seesaw", "sweep", config, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # a line that a kill cut short
                event = json.loads(line)
                self.made += event["event"] == "images" and event["made"] > 0
                self.redone += event["held"] if event["event"] == "lost" else 0
                self.end = event["message"] if event["event"] == "end" else self.end

    def finished(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> str:
        """Wait for its end and return what it wrote to its standard error."""
        self._reader.join()
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return errors


def attack(kind: str, chance: random.Random, raylets: Raylets, driver: Driver) -> bool:
    """Carry out one attack. False if there is no such target at the moment."""
    if kind == "driver":
        driver.process.kill()
        driver.process.wait()
        if chance.random() < 0.5 and len(raylets.nodes) > 1:  # the next driver finds a changed cluster
            raylets.kill(chance.choice(raylets.nodes))
        else:
            raylets.join()
    elif kind == "raylet":
        raylets.kill(chance.choice(raylets.nodes))
        raylets.join()
    else:
        with suppress(psutil.NoSuchProcess):
            running = [p for p in raylets.actors() if p.status() != psutil.STATUS_STOPPED]
            if running:
                chance.choice(running).send_signal(signal.SIGKILL if kind == "actor" else signal.SIGSTOP)
                return True
        return False
    return True


def shards(store: Path) -> dict[str, str]:
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*.parquet"))
    }


def tables(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.glob("*.parquet"))}


def campaign(kills: int, raylets: int, seed: int, folder: Path, size: Size = Size()) -> Campaign:
    """Sweep once undisturbed and once under `kills` attacks. RuntimeError if either ends with a wrong exit code."""
    result, chance = Campaign(), random.Random(seed)
    with Raylets(raylets) as cluster:
        calm = Driver(config(folder / "calm", cluster.address, size))
        calm.process.wait(LONGEST)
        errors = calm.close()
        if calm.process.returncode:
            raise RuntimeError(f"the undisturbed sweep ended with {calm.process.returncode}: {errors}")
        attacked = config(folder / "attacked", cluster.address, size)
        answers = folder / "attacked" / "store" / "answers"
        expected = shards(folder / "calm" / "store")
        result.batches = sum(name.startswith("images/") for name in expected)
        began, driver = time.monotonic(), Driver(attacked)
        result.lives = 1
        while time.monotonic() - began < LONGEST:
            time.sleep(0.05)
            if driver.finished():
                errors = driver.close()
                result.made += driver.made
                result.redone += driver.redone
                if driver.process.returncode == 0:
                    break
                if driver.process.returncode != -signal.SIGKILL:
                    raise RuntimeError(f"a driver ended with {driver.process.returncode}: {errors or driver.end}")
                driver = Driver(attacked)
                result.lives += 1
            done = sum(1 for _ in answers.rglob("[!.]*.parquet")) if answers.is_dir() else 0
            if result.kills.total() < kills and done >= result.batches * (result.kills.total() + 0.5) / (kills + 1):
                kind = chance.choices(KINDS, WEIGHTS)[0]
                result.kills[kind] += attack(kind, chance, cluster, driver)
        result.seconds = time.monotonic() - began
        deadline = time.monotonic() + 60
        while cluster.actors() and time.monotonic() < deadline:
            time.sleep(0.5)
        result.left = [str(process) for process in cluster.actors()]
    _compare(folder, expected, result)
    return result


def _compare(folder: Path, expected: dict[str, str], result: Campaign) -> None:
    actual = shards(folder / "attacked" / "store")
    result.lost = sum(actual.get(name) != expected.get(name) for name in actual.keys() | expected.keys())
    result.tables_equal = tables(folder / "calm" / "run") == tables(folder / "attacked" / "run")
    rows: Any = pq.read_table(folder / "attacked" / "run" / "answers.parquet").to_pandas()
    result.twice = int(rows.duplicated(["model", "subject", "source_axis", "source_value", "image", "axis"]).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--raylets", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        result = campaign(args.kills, args.raylets, args.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    by_kind = ", ".join(f"{result.kills[kind]} {kind}" for kind in KINDS)
    print(f"{result.kills.total()} kills in {result.seconds:.0f} s over {result.lives} lives of the driver: {by_kind}")
    again = max(result.made - result.batches, 0)
    print(f"{result.batches} batches; {again} made again; {result.redone} were at replicas that died or hung")
    print(f"lost or other bytes: {result.lost}; answers counted twice: {result.twice}")
    print(f"tables bit-identical to the undisturbed sweep's: {result.tables_equal}; processes left: {len(result.left)}")


if __name__ == "__main__":
    main()
