"""Memory after swapping models again and again: a replica is a process, and its memory ends with it.

    python -m benchmarks.swap [--swaps 20]

In a Ray of its own, a TTI actor with the trained pipeline and one with the exact renderer take turns: each is loaded,
makes a batch, and is killed as the fleet kills actors. After every swap, once the process has ended, this prints the
memory of Ray's processes and of this one, and what the machine has in use. The last line compares the end with the
first swap.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import psutil
import ray

from seesaw.actors.tti import ImageBatch, TTIActor
from seesaw.runner.config import ModelConfig, load_named

MODELS = ("pictogram-sd", "pictogram-alder")


def memory() -> tuple[float, float]:
    """MB that Ray's processes and this one have for themselves, and MB in use on the whole machine."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    own = 0.0
    for process in processes:
        try:
            own += process.memory_full_info().uss
        except psutil.Error:  # it has just ended
            continue
    return own / 1e6, psutil.virtual_memory().used / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swaps", type=int, default=20)
    args = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**28)
    figures = []
    with tempfile.TemporaryDirectory() as store:
        for swap in range(1, args.swaps + 1):
            spec = load_named(ModelConfig, "models", MODELS[swap % 2 - 1], [])
            make = ray.remote(num_cpus=1, max_restarts=0)(TTIActor)
            actor = make.remote(f"{spec.name}-{swap}", spec.engine, spec.settings, store, 1, "")
            about = ray.get(actor.load.remote())
            keys = tuple(f"{swap}-{i}" for i in range(8))
            batch = ImageBatch(f"images/x/{swap}.parquet", spec.name, "A photo of a nurse", "", tuple(range(8)), keys)
            ray.get(actor.generate.remote(batch))
            ray.get(actor.commit.remote(batch))
            loaded = memory()[0]
            ray.kill(actor)
            del actor
            while psutil.pid_exists(about["pid"]):
                time.sleep(0.1)
            time.sleep(1)
            figures.append(memory())
            print(
                f"swap {swap:2d} {spec.name:16s} loaded in {about['load_seconds']:5.1f} s; "
                f"{loaded:6.0f} MB with the model, {figures[-1][0]:6.0f} MB after it; machine {figures[-1][1]:.0f} MB",
                flush=True,
            )
    ray.shutdown()
    print(
        f"after {args.swaps} swaps, compared with the first: {figures[-1][0] - figures[0][0]:+.0f} MB in these "
        f"processes, {figures[-1][1] - figures[0][1]:+.0f} MB on the machine"
    )


if __name__ == "__main__":
    main()
