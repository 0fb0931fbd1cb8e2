"""A sweep on a cluster of several raylets while everything is killed at random: nothing lost, nothing counted twice.

    python -m benchmarks.campaign [--kills 100] [--raylets 4] [--seed 0]

Real Ray, real signals, simulated engines. Five models and a VLM sweep over raylets of two (imagined) GPUs each. Spread
over the work, a seed chooses what is next: SIGKILL for an actor, SIGSTOP for an actor (its engine hangs), SIGKILL for a
raylet (another joins in its place), SIGKILL for the driver (the same command goes on, with a raylet more or less). At
the end tables and shards equal those of a sweep that nobody touched, bit for bit, no answer is there twice, and no
process is left.
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
MEMORY = 100 * 2**20  #: bytes of a raylet's object store
LONGEST = 3600.0  #: seconds after which a campaign has hung


@dataclass(frozen=True)
class Size:
    """Of the sweep."""

    models: int = 5
    subjects: int = 10
    images: int = 48


@dataclass
class Campaign:
    """What was done to a sweep, and what came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0  #: of the driver
    batches: int = 0
    made: int = 0  #: batches of images that drivers lived to tell of: those above `batches` were made again
    redone: int = 0  #: batches that were in line at replicas that died
    lost: int = 0  #: batches of the undisturbed sweep that are not in the store, or are other bytes
    twice: int = 0  #: answers that are there more than once
    tables_equal: bool = False
    left: list[str] = field(default_factory=list)  #: processes that outlived driver and cluster
    seconds: float = 0.0


class Raylets:
    """A head without CPUs or GPUs, and raylets of two GPUs each, all on this machine; use it as a context."""

    def __init__(self, count: int) -> None:
        small = {"object_store_memory": MEMORY}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, **small})
        self._ever: set[int] = set()
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
        """All but the head."""
        return [node for node in self.cluster.list_all_nodes() if node is not self.cluster.head_node]

    def join(self, **more: Any) -> Any:
        node = self.cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=MEMORY, **more)
        self._ever.add(self.raylet(node).pid)
        return node

    def kill(self, node: Any) -> None:
        """SIGKILL to its raylet; whatever else Ray has started for it goes too."""
        self.raylet(node).kill()
        self.cluster.remove_node(node, allow_graceful=False)

    @staticmethod
    def raylet(node: Any) -> psutil.Process:
        return psutil.Process(node.all_processes["raylet"][0].process.pid)

    def actors(self) -> list[psutil.Process]:
        """Processes that serve models here, by the title that Ray gives them, those of killed raylets too."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(("ray::TTIActor", "ray::VQAActor")):
                    mine = int(process.environ().get("RAY_RAYLET_PID", 0)) in self._ever
                    if mine and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found


def config(folder: Path, address: str, size: Size) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "campaign.yaml"
    each = "\n".join(MODEL.format(i=i, s=0.02 + 0.01 * i) for i in range(size.models))
    named = json.dumps(list(SUBJECTS[: size.subjects]))
    path.write_text(CONFIG.format(models=each, subjects=named, images=size.images, folder=folder, address=address))
    return path


class Driver:
    """`seesaw sweep` in a process of its own; what it tells is counted while it works."""

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
            with suppress(ValueError):  # cut short by a kill
                event = json.loads(line)
                self.made += event["event"] == "images" and event["made"] > 0
                self.redone += event["held"] if event["event"] == "lost" else 0
                self.end = event["message"] if event["event"] == "end" else self.end

    def finished(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> str:
        """What it said on its standard error, after its end."""
        self._reader.join()
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        said = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return said


def attack(kind: str, chance: random.Random, there: Raylets, driver: Driver) -> bool:
    """Do it; False if there is nothing of the kind at the moment."""
    if kind == "driver":
        driver.process.kill()
        driver.process.wait()
        if chance.random() < 0.5 and len(there.nodes) > 1:  # it will find another cluster than it had
            there.kill(chance.choice(there.nodes))
        else:
            there.join()
    elif kind == "raylet":
        there.kill(chance.choice(there.nodes))
        there.join()
    else:
        with suppress(psutil.NoSuchProcess):
            running = [p for p in there.actors() if p.status() != psutil.STATUS_STOPPED]
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
    """Sweep once undisturbed and once under `kills` attacks; RuntimeError if either ends otherwise than it should."""
    found, chance = Campaign(), random.Random(seed)
    with Raylets(raylets) as there:
        calm = Driver(config(folder / "calm", there.address, size))
        calm.process.wait(LONGEST)
        said = calm.close()
        if calm.process.returncode:
            raise RuntimeError(f"the undisturbed sweep ended with {calm.process.returncode}: {said}")
        attacked = config(folder / "attacked", there.address, size)
        answers = folder / "attacked" / "store" / "answers"
        wanted = shards(folder / "calm" / "store")
        found.batches = sum(name.startswith("images/") for name in wanted)
        began, driver = time.monotonic(), Driver(attacked)
        found.lives = 1
        while time.monotonic() - began < LONGEST:
            time.sleep(0.05)
            if driver.finished():
                said = driver.close()
                found.made += driver.made
                found.redone += driver.redone
                if driver.process.returncode == 0:
                    break
                if driver.process.returncode != -signal.SIGKILL:
                    raise RuntimeError(f"a driver ended with {driver.process.returncode}: {said or driver.end}")
                driver = Driver(attacked)
                found.lives += 1
            done = sum(1 for _ in answers.rglob("[!.]*.parquet")) if answers.is_dir() else 0
            if found.kills.total() < kills and done >= found.batches * (found.kills.total() + 0.5) / (kills + 1):
                kind = chance.choices(KINDS, WEIGHTS)[0]
                found.kills[kind] += attack(kind, chance, there, driver)
        found.seconds = time.monotonic() - began
        deadline = time.monotonic() + 60
        while there.actors() and time.monotonic() < deadline:
            time.sleep(0.5)
        found.left = [str(process) for process in there.actors()]
    _compare(folder, wanted, found)
    return found


def _compare(folder: Path, wanted: dict[str, str], found: Campaign) -> None:
    got = shards(folder / "attacked" / "store")
    found.lost = sum(got.get(name) != digest for name, digest in wanted.items()) + len(got.keys() - wanted.keys())
    found.tables_equal = tables(folder / "calm" / "run") == tables(folder / "attacked" / "run")
    rows: Any = pq.read_table(folder / "attacked" / "run" / "answers.parquet").to_pandas()
    found.twice = int(rows.duplicated(["model", "subject", "source_axis", "source_value", "image", "axis"]).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--raylets", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        found = campaign(args.kills, args.raylets, args.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    by_kind = ", ".join(f"{found.kills[kind]} {kind}" for kind in KINDS)
    print(f"{found.kills.total()} kills in {found.seconds:.0f} s over {found.lives} lives of the driver: {by_kind}")
    again = max(found.made - found.batches, 0)
    print(f"{found.batches} batches; {again} made again; {found.redone} were at replicas that died or hung")
    print(f"lost or other bytes: {found.lost}; answers counted twice: {found.twice}")
    print(f"tables equal the undisturbed sweep's bit for bit: {found.tables_equal}; processes left: {len(found.left)}")


if __name__ == "__main__":
    main()
