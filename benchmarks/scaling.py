"""How well a sweep fills a cluster: 1 to 64 workers, and five models on eight GPUs beside simulator and lower bound.

    python -m benchmarks.scaling [--workers 1 4 16 64] [--gpus 8] [--minutes 3]

The engines only sleep, and Ray is told that this machine has so many GPUs, so everything but the models is measured.
First, replicas of one model with equal work each, and a VLM that answers at once: the time that the sleeping alone
takes, divided by the time that the sweep took. Then five models and a VLM on `gpus`, where the policy decides: seconds
from its first decision to the last answer, divided by the simulator's seconds (with the load times of this run, process
start included) and by the lower bound (`runner.scheduling.simulate.lower_bound`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from seesaw.results.store.identity import BATCH
from seesaw.results.store.store import Store
from seesaw.runner.display.event_types import (
    AnswersDone,
    Event,
    FleetDecision,
    FleetState,
    ImagesDone,
    ReplicaReady,
)
from seesaw.runner.display.events import Counts
from seesaw.runner.experiment import Experiment, load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.plan import demand_of, make_plan, nodes_of
from seesaw.runner.run import run
from seesaw.runner.scheduling.simulate import lower_bound, simulate

CONFIG = """
dataset: {{extends: occupation, subjects: {subjects}}}
models: [{models}]
vqa: {{name: vlm, engine: simulated, settings: {vlm}, gpus: {vlm_gpus}, cpus: 0, seconds_per_question: {question},
  load_seconds: {vlm_load}}}
axes: [gender]
images: {images}
store: {folder}/store
run: {folder}/run
cluster: {{gpus: {gpus}, replicas: {replicas}}}
"""
MODEL = (
    "{{name: {name}, engine: simulated, settings: {{seconds: {seconds}, load: {load}}}, gpus: 1, cpus: 0, "
    "seconds_per_image: {seconds}, load_seconds: {load}}}"
)
CELLS = 3  #: of a subject: the initial prompt and two counterfactuals


class Clock:
    """When replicas became ready and batches were made, from the events of a run."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ready: list[tuple[float, str]] = []
        self.made: list[float] = []
        self.loads: list[float] = []
        self.first = self.last = 0.0
        self.decisions = 0
        self.idle = 1.0

    def __call__(self, event: Event, counts: Counts) -> None:
        now = time.monotonic() - self.began
        match event:
            case ReplicaReady():
                self.ready.append((now, event.name))
                self.loads.append(event.start_seconds)
            case FleetDecision():
                self.first = self.first or now
                self.decisions += 1
            case AnswersDone():
                self.last = now
            case ImagesDone() if event.made:
                self.made.append(now)
            case FleetState() if event.gpu_idle is not None:
                self.idle = event.gpu_idle


def timed_sweep(folder: Path, config: str) -> tuple[Experiment, Clock]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / "scaling.yaml"
    path.write_text(config)
    clock, experiment = Clock(), load_experiment(str(path))
    if run(SweepJob(experiment), clock):
        raise RuntimeError("the sweep did not end well")
    return experiment, clock


def workers(folder: Path, count: int, each: int, seconds: float) -> float:
    """Share of linear speed, over the batches that were made after the last replica was ready.

    Some of them had begun before, which raises the share; at the end some replicas are idle, which lowers it.
    """
    subjects = max(count * each // CELLS, 1)
    config = CONFIG.format(
        subjects=json.dumps([f"subject {i}" for i in range(subjects)]),
        models=MODEL.format(name="tti", seconds=seconds / BATCH, load=0),
        vlm="{}", vlm_gpus=0, question=0.0001, vlm_load=0, images=BATCH, folder=folder, gpus=count,
        replicas=json.dumps({"tti": count, "vlm": 1}),
    )  # fmt: skip
    _, clock = timed_sweep(folder, config)
    ready = sorted(at for at, name in clock.ready if name.startswith("tti"))
    if len(ready) < count:
        raise RuntimeError(f"{len(ready)} of {count} replicas were ready")
    after = [at for at in clock.made if at > ready[-1]]
    return len(after) * seconds / count / (after[-1] - ready[-1])


def models(folder: Path, gpus: int, minutes: float) -> None:
    """Five models of different speed and a VLM under the policy, beside the simulator and the lower bound."""
    load, seconds = 4.0, [0.8, 1.2, 2.0, 3.2, 4.8]
    subjects = max(round(minutes * 60 * gpus / (CELLS * (sum(seconds) + 5 * 0.3))), 1)
    made = ", ".join(MODEL.format(name=f"tti-{i}", seconds=s / BATCH, load=load) for i, s in enumerate(seconds))
    config = CONFIG.format(
        subjects=json.dumps([f"subject {i}" for i in range(subjects)]), models=made,
        vlm=f"{{seconds: {0.3 / BATCH / 2}, load: {load}}}", vlm_gpus=1, question=0.3 / BATCH / 2, vlm_load=load,
        images=BATCH, folder=folder, gpus=gpus, replicas="{}",
    )  # fmt: skip
    experiment, clock = timed_sweep(folder, config)
    makespan, loading = clock.last - clock.first, sum(clock.loads) / len(clock.loads)
    shutil.rmtree(folder / "store")  # the plan is to count all of the work as left
    plan = make_plan(experiment, Store(experiment.store))
    works = []
    for model, counts in zip(experiment.models, plan.models, strict=True):
        work = demand_of(model.spec, {}, BATCH * model.spec.seconds_per_image)
        works.append(replace(work, queued=counts.batches, load_seconds=loading))
    asks = BATCH * len(experiment.questionnaire.all) * experiment.vlm.spec.seconds_per_question
    vlm = replace(demand_of(experiment.vlm.spec, {}, asks), load_seconds=loading)
    nodes = nodes_of(gpus, 0.0)
    simulated, bound = simulate(works, vlm, nodes).makespan, lower_bound(works, vlm, nodes)
    print(
        f"5 models and a VLM on {gpus} GPUs: {makespan:.0f} s, simulated {simulated:.0f} ({makespan / simulated:.3f}), "
        f"bound {bound:.0f} s ({makespan / bound:.3f}); {len(clock.loads)} loads of {loading:.1f} s, "
        f"{clock.decisions} decisions, GPUs idle {clock.idle:.1%} of their time, loading included",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--each", type=int, default=24, help="batches for every worker")
    parser.add_argument("--seconds", type=float, default=4.0, help="a batch, for the workers")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=3.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for count in args.workers:
            share = workers(Path(name) / "run", count, args.each, args.seconds)
            print(f"{count:3d} workers: {share:.3f} of linear", flush=True)
        models(Path(name) / "run", args.gpus, args.minutes)


if __name__ == "__main__":
    main()
