"""The wall time of a sweep beside the same batches run bare in one process: no Ray, no store, no retries.

    python -m benchmarks.sweep [--repeats 3] [--images 48]

Both sides are whole processes that run in turn, so imports and model loading count. `sweep` is `seesaw sweep` as users
run it, with one VLM (like bare) and with two. Bare draws every batch and asks it, one after the other, and keeps the
answers in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
models: [pictogram-alder, pictogram-birch]
subjects: [nurse, engineer]
vqa: pictogram-vlm
images: {images}
"""


def bare(config: str) -> None:
    """Every batch of the experiment, one after the other, in this process."""
    from seesaw.actors.engines import VQAQuestion
    from seesaw.actors.vqa import VQAQuestionnaire, ask_images
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.plan import all_batches

    experiment = load_experiment(config)
    asked = experiment.questionnaire
    assert asked.person is not None
    questionnaire = VQAQuestionnaire(
        VQAQuestion(asked.person.text, asked.person.choices),
        tuple(VQAQuestion(q.text, q.choices) for q in asked.questions),
    )
    vlm = experiment.vlm.spec
    engine = experiment.vlm.engine.load()(vlm.settings)
    engine.check(questionnaire.all)
    kept = []
    for model in experiment.models:
        tti = model.engine.load()(model.spec.settings)
        for batch in all_batches(experiment, model):
            images = tti.generate(batch.prompt.text, batch.seeds)
            kept.append(ask_images(engine, images, questionnaire))
    print(f"{len(kept)} batches, {sum(len(a) for b in kept for a in b)} answers")


def timed(command: list[str], folder: str, threads: int | None = None) -> float:
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    began = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        bare(args.bare)
        return
    seconds: dict[str, list[float]] = {}
    for repeat in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "bench.yaml").write_text(CONFIG.format(images=args.images))
            sweep = [str(Path(sys.executable).parent / "seesaw"), "sweep", "bench.yaml"]
            alone = [sys.executable, "-m", "benchmarks.sweep", "--bare", "bench.yaml"]
            two = ["run=two", "store=store-two", "cluster.replicas.pictogram-vlm=2"]
            ways: list[tuple[str, list[str], int | None]] = [
                ("bare, 1 thread", alone, 1),
                ("bare, 2 threads", alone, 2),
                ("sweep, 1 VLM", sweep, None),
                ("sweep, 2 VLMs", [*sweep, *two], None),
            ]
            for name, command, threads in ways if repeat % 2 == 0 else reversed(ways):
                seconds.setdefault(name, []).append(timed(command, folder, threads))
    best = min((n for n in seconds if n.startswith("bare")), key=lambda n: statistics.median(seconds[n]))
    print(f"{'way':18s} {'seconds':>8s}   {best} / way")
    for name in sorted(seconds):
        ratio = statistics.median(a / b for a, b in zip(seconds[best], seconds[name], strict=True))
        print(f"{name:18s} {statistics.median(seconds[name]):8.1f}   {ratio:.2f}")


if __name__ == "__main__":
    main()
