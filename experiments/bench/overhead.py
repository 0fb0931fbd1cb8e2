"""What Lab, store and fleet cost a batch, with engines that return at once.

    python -m experiments.bench.overhead [--batches 1000 10000 100000]

Every size runs in a process, a Ray and a store of its own: one simulated model, one simulated VLM, 8 images a batch.
Flat means that nothing that is done a batch grows with the number of batches; the driver's peak memory says whether
something is kept that need not be.
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
from pathlib import Path

CONFIG = """
models: [{name: tti, engine: simulated, cpus: 0.25}]
vqa: simulated
axes: [gender]
images: 48
"""
BATCHES_A_SUBJECT = 3 * 6  # the initial prompt and two counterfactuals of 48 images each


def measure(batches: int) -> dict[str, float]:
    """Seconds to make, ask, commit and reduce, and then to read again, `batches` batches; in this process."""
    from experiments.sweep import sweep
    from results.store import Store
    from runner.cluster import connected
    from runner.events import Events
    from runner.experiment import load_experiment
    from runner.fleet import Fleet
    from runner.lab import FleetLab
    from runner.preflight import preflight

    with tempfile.TemporaryDirectory() as folder:
        subjects = [f"subject {i}" for i in range(-(-batches // BATCHES_A_SUBJECT))]
        config = Path(folder) / "overhead.yaml"
        config.write_text(
            f"{CONFIG}dataset: {{extends: occupation, subjects: {json.dumps(subjects)}}}\n"
            f"store: {folder}/store\nrun: {folder}/run\n"
        )
        experiment = load_experiment(str(config))
        store = Store(experiment.store)
        (Path(folder) / "logs").mkdir()

        async def once() -> float:
            events = Events(lambda kind, fields, counts: None)
            fleet = Fleet(experiment, Path(folder) / "logs", events, preflight(experiment))
            lab = FleetLab(experiment, store, fleet, events)
            warm = experiment.dataset.select(subjects=subjects[:1])
            await sweep(lab, warm, ["tti"], 48)  # the actors load
            began = time.perf_counter()
            await sweep(lab, experiment.dataset, ["tti"], 48)
            seconds = time.perf_counter() - began
            await fleet.close()
            return seconds

        with connected(experiment):
            made = asyncio.run(once())
            read = asyncio.run(once())
    done = len(subjects) * BATCHES_A_SUBJECT
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"batches": done, "made": 1e3 * made / done, "read": 1e3 * read / done, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    print(f"{'batches':>9s} {'made, ms/batch':>15s} {'read, ms/batch':>15s} {'driver peak, MiB':>17s}", flush=True)
    for size in args.batches:
        run = [sys.executable, "-m", "experiments.bench.overhead", "--one", str(size)]
        done = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{figures['batches']:9.0f} {figures['made']:15.2f} {figures['read']:15.2f} {figures['memory']:17.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
