"""How parallel mitigations are: all subjects at once, beside the slowest of them alone, on the same replicas.

    python -m benchmarks.mitigation [--subjects 26] [--seconds 2] [--replicas 104]

The engines simulate latency, each in a process of its own, and there are enough of them for everything that all
subjects ask at once (four prompts each). If subjects or steps wait for each other anywhere, the ratio is above 1.
Neither side finds its own images or answers in the store, and all replicas have loaded before either is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from seesaw.experiments.mitigations import Mitigation, mitigate_all
from seesaw.experiments.trajectory import State
from seesaw.results.store.store import Store
from seesaw.runner.cluster.connect import connected
from seesaw.runner.cluster.preflight import preflight
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment, load_experiment
from seesaw.runner.fleet.fleet import Fleet
from seesaw.runner.jobs.mitigate import MitigateJob
from seesaw.runner.lab import FleetLab

CONFIG = """
models: [{{name: tti, engine: simulated, settings: {{seconds: {seconds}}}, cpus: 0.01}}]
vqa: {{name: vlm, engine: simulated, settings: {{seconds: 0}}, cpus: 0.01}}
axes: [gender, clothing]
images: 8
epsilon: 0
max_steps: 2
priorities: {{gender: 0.5, clothing: 0.5}}
cluster: {{replicas: {{tti: {replicas}, vlm: 4}}, in_flight: 1}}
store: {folder}/store
run: {folder}/run
"""


async def timed(experiment: Experiment, fleet: Fleet, seed: int) -> tuple[float, dict[str, float], list[State]]:
    """All mitigations under the root seed `seed`: their seconds, seconds to the end of each subject, last states."""
    ends: dict[str, float] = {}
    experiment = replace(experiment, seed=seed)
    job, events = MitigateJob(experiment), Events(lambda event, counts: None)
    lab = FleetLab(experiment, Store(experiment.store), fleet, events)
    began = time.perf_counter()

    def on_step(each: Mitigation, state: State) -> None:
        if state.outcome:
            ends[each.problem.subject] = time.perf_counter() - began

    states = await mitigate_all(job.mitigations(lab), on_step)
    return time.perf_counter() - began, ends, states


async def compare(experiment: Experiment, folder: Path) -> None:
    fleet = Fleet(experiment, folder / "logs", Events(lambda event, counts: None), preflight(experiment))
    try:
        began = time.perf_counter()
        await timed(experiment, fleet, 0)  # all replicas load
        print(f"replicas have loaded after {time.perf_counter() - began:.0f} s", flush=True)
        for seed in (1, 2, 3):
            together, ends, states = await timed(experiment, fleet, seed)
            slowest = max(ends, key=ends.__getitem__)
            alone = replace(experiment, dataset=experiment.dataset.select(subjects=[slowest]))
            for part in ("images", "answers"):  # the same trajectory again, from an empty store
                shutil.rmtree(Path(experiment.store) / part)
            seconds, _, (same,) = await timed(alone, fleet, seed)
            steps = max(len(state.mitigated) for state in states)
            print(
                f"{len(states)} subjects, up to {steps} steps: {together:.1f} s; {slowest} alone, "
                f"{len(same.mitigated)} steps: {seconds:.1f} s; ratio {together / seconds:.2f}",
                flush=True,
            )
    finally:
        await fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=26)
    parser.add_argument("--seconds", type=float, default=2.0, help="an image")
    parser.add_argument("--replicas", type=int, default=104)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        config = folder / "mitigation.yaml"
        config.write_text(CONFIG.format(seconds=args.seconds, replicas=args.replicas, folder=folder))
        experiment = load_experiment(str(config))
        subjects = experiment.dataset.subjects[: args.subjects]
        experiment = replace(experiment, dataset=experiment.dataset.select(subjects=subjects))
        Store(experiment.store).probe()
        with connected(experiment):
            asyncio.run(compare(experiment, folder))


if __name__ == "__main__":
    main()
