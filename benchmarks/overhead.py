"""What Lab, store and fleet cost for each batch, with engines that return at once.

    python -m benchmarks.overhead [--batches 1250 12500 125000]

Every size runs in its own process, with its own Ray and store: one simulated model, one simulated VLM and 8 images a
batch, so the sizes are 10^4, 10^5 and 10^6 images. The figures are those of the driver: its CPU time, which other work
on the machine does not change, and its peak memory, after the sweep and after tables and report. The cost is flat if
nothing that is done for a batch grows with the number of batches: then the ratio to the first size is about 1, and the
last tenth of the largest sweep costs what the first tenth does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesaw.runner.display.event_types import Event
    from seesaw.runner.display.events import Counts

CONFIG = """
models: [{name: tti, engine: simulated, cpus: 0.25}]
vqa: simulated
axes: [gender]
images: 48
"""
BATCHES_A_SUBJECT = 3 * 6  # the initial prompt and two counterfactuals of 48 images each
IMAGES_A_BATCH = 8


def measure(batches: int) -> dict[str, Any]:
    """CPU and wall ms a batch to make, ask and commit, and to read again; peak MiB; all of this process.

    `tenths` are the CPU ms a batch to make, ask and commit in each tenth of the sweep.
    """
    from seesaw.experiments.sweep import sweep
    from seesaw.results.store.store import Store
    from seesaw.runner.cluster.connect import connected
    from seesaw.runner.cluster.preflight import preflight
    from seesaw.runner.display.events import Events
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.fleet.fleet import Fleet
    from seesaw.runner.jobs.sweep import SweepJob
    from seesaw.runner.lab import FleetLab
    from seesaw.runner.report import write_report
    from seesaw.runner.rundir import RunDirectory

    with tempfile.TemporaryDirectory() as folder:
        subjects = [f"subject {i}" for i in range(-(-batches // BATCHES_A_SUBJECT))]
        config = Path(folder) / "overhead.yaml"
        config.write_text(
            f"{CONFIG}dataset: {{extends: occupation, subjects: {json.dumps(subjects)}}}\n"
            f"store: {folder}/store\nrun: {folder}/run\n"
        )
        experiment = load_experiment(str(config))
        store = Store(experiment.store)
        store.probe()
        every, marks = max(batches // 10, 1), [(0.0, 0.0)]

        def mark(event: Event, counts: Counts) -> None:
            if (steps := done_of(counts)) >= marks[-1][0] + every:
                marks.append((steps, time.process_time()))

        job, events = SweepJob(experiment), Events(mark)
        directory = RunDirectory(job)

        async def once() -> tuple[float, float]:
            fleet = Fleet(experiment, directory.logs, events, preflight(experiment))
            lab = FleetLab(experiment, store, fleet, events)
            warm = experiment.dataset.select(subjects=subjects[:1])
            await sweep(lab, warm, ["tti"], 48)  # the actors load
            wall, cpu = time.perf_counter(), time.process_time()
            marks[:] = [(done_of(events.counts), cpu)]
            await job.observe(lab, events)
            spent = time.process_time() - cpu, time.perf_counter() - wall
            await fleet.close()
            return spent

        with directory.claimed():
            directory.write_config()
            with connected(experiment):
                made = asyncio.run(once())
                tenths = [1e3 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks)]
                read = asyncio.run(once())
            swept = peak()
            job.write(events)
            directory.write_failures([])
            directory.write_run_json("done")
            write_report(directory.path, directory.store)
    done = len(subjects) * BATCHES_A_SUBJECT
    figures = {"made": made[0], "read": read[0], "made_wall": made[1], "read_wall": read[1]}
    return {
        "batches": done,
        "tenths": tenths,
        "swept": swept,
        "memory": peak(),
        **{name: 1e3 * seconds / done for name, seconds in figures.items()},
    }


def done_of(counts: Counts) -> float:
    """Batches that were made and asked: each half counts half a batch, since the VLM may lag behind the model."""
    return (counts.images_made / IMAGES_A_BATCH + counts.batches_done) / 2


def peak() -> float:
    """The most MiB that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1_250, 12_500, 125_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    first: dict[str, Any] = {}
    for size in args.batches:
        run = [sys.executable, "-m", "benchmarks.overhead", "--one", str(size)]
        done = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True)
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        first = first or figures
        costs = [
            f"{verb} {figures[key]:.2f} ms/batch of the driver's CPU ({figures[key] / first[key]:.2f} x the first; "
            f"{figures[f'{key}_wall']:.2f} ms by the clock)"
            for verb, key in (("make and ask", "made"), ("read again", "read"))
        ]
        images = figures["batches"] * IMAGES_A_BATCH
        print(
            f"{figures['batches']:,.0f} batches, {images:,.0f} images: {'; '.join(costs)}; "
            f"make and ask by tenths of the sweep: {' '.join(f'{ms:.2f}' for ms in figures['tenths'])}; "
            f"driver peak {figures['swept']:,.0f} MiB, {figures['memory']:,.0f} with its tables and report",
            flush=True,
        )


if __name__ == "__main__":
    main()
