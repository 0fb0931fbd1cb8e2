"""Images a second of the diffusers engine, beside a bare pipeline and beside other ways to call one.

    python -m benchmarks.engine [--model pictogram-sd] [--batches 6] [--repeats 5] [--threads 2]

One process, one pipeline. Every repeat makes the same images of a few prompts in four ways, in turn: by a bare
`pipe([prompt] * 8, generator=[...])` for each batch, by `DiffusersEngine.generate`, by the engine with its encoded
prompts deleted before every batch, and by one bare call for each image. Then a TTI actor writes in two ways, with an
engine that takes the time of a GPU and returns pictures of 1024 pixels: committing each batch before the next one
begins, and committing it while the next one is made. Ratios are medians over the repeats of the ratios within a repeat.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.actors.plugins import find_plugin
from seesaw.actors.tti import ImageBatch, TTIActor
from seesaw.results.store.store import Store
from seesaw.runner.config import ModelConfig, load_named

BATCH = 8


class Slow:
    """An engine that, like a GPU, leaves the CPU idle for `seconds` a batch; its pictures compress like photographs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.seconds, side = settings["seconds"], settings["side"]
        noise = np.random.default_rng(0).normal(128, 40, (BATCH, side // 4, side // 4, 3)).clip(0, 255)
        small = [Image.fromarray(image.astype(np.uint8)) for image in noise]
        self.images = [image.resize((side, side), Image.Resampling.BICUBIC) for image in small]

    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[Image.Image]:
        time.sleep(self.seconds)
        return self.images


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def pipelines(args: argparse.Namespace) -> None:
    spec = load_named(ModelConfig, "models", args.model, [])
    settings = {**spec.settings, **({"size": args.size} if args.size else {})}
    engine = DiffusersEngine(settings)
    other = DiffusersEngine(settings)  # its pipeline is called bare, without anything of ours
    pipe, call = other._pipeline, other.settings.call_arguments
    del pipe.encode_prompt
    cells = ["A photo of a nurse", "A photo of an old chef"]
    batches = [(text, list(range(i * BATCH, (i + 1) * BATCH))) for text in cells for i in range(args.batches // 2)]

    def bare() -> None:
        for text, seeds in batches:
            pipe([text] * BATCH, generator=[torch.Generator("cpu").manual_seed(s) for s in seeds], **call)

    def single() -> None:
        for text, seeds in batches:
            for seed in seeds:
                pipe(text, generator=torch.Generator("cpu").manual_seed(seed), **call)

    def ours() -> None:
        for text, seeds in batches:
            engine.generate(text, seeds)

    def forgetful() -> None:
        for text, seeds in batches:
            engine._pipeline.encode_prompt.results.clear()
            engine.generate(text, seeds)

    ways = {
        "bare, a batch a call": bare,
        "engine": ours,
        "engine, encoding again": forgetful,
        "bare, an image a call": single,
    }
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeats):
        for name, way in ways.items():
            seconds[name].append(timed(way))
    images = len(batches) * BATCH
    print(f"{args.model}: {images} images of {len(cells)} prompts, {torch.get_num_threads()} threads")
    for name, each in seconds.items():
        print(f"  {name:24s} {images / statistics.median(each):6.1f} images/s")
    for name in list(ways)[1:]:
        against = "bare, a batch a call" if name == "engine" else "engine"
        pairs = zip(seconds[against], seconds[name], strict=True)
        ratio = statistics.median(one / two for one, two in pairs)
        print(f"  {name} / {against}: {ratio:.3f}")


def writing(args: argparse.Namespace) -> None:
    """Committing before the next batch begins, and while it is made, in an actor with two threads as in the fleet."""
    with tempfile.TemporaryDirectory() as folder:
        ratios = []
        for repeat in range(args.repeats):
            seconds = []
            for overlap in (False, True):
                store = Path(folder) / f"{repeat}-{overlap}"
                Store(store).probe()
                settings = {"seconds": args.gpu_seconds, "side": 1024}
                actor = TTIActor("bench", find_plugin(f"{__name__}:Slow", {}), settings, str(store), 1, "")
                actor._engine = Slow(settings)
                seconds.append(timed(lambda a=actor, o=overlap: run(a, o, args.batches)))
            ratios.append(seconds[0] / seconds[1])
        print(
            f"writing while the next batch is made: {statistics.median(ratios):.2f} x writing before it "
            f"(8 images of 1024 pixels a batch, {args.gpu_seconds} s of a GPU each batch)"
        )


def run(actor: TTIActor, overlap: bool, batches: int) -> None:
    writer: threading.Thread | None = None
    for number in range(batches):
        keys = tuple(f"{number}-{i}" for i in range(BATCH))
        batch = ImageBatch(f"images/bench/{number}.parquet", "bench", "a prompt", "", tuple(range(BATCH)), keys)
        actor.generate(batch)
        if writer:
            writer.join()
        writer = threading.Thread(target=actor.commit, args=(batch,))
        writer.start()
        if not overlap:
            writer.join()
    if writer:
        writer.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pictogram-sd")
    parser.add_argument("--size", type=int, help="another size than the model's")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpu-seconds", type=float, default=2.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pipelines(args)
    writing(args)


if __name__ == "__main__":
    main()
