"""Questions a second through the VQA actor, beside bare vLLM and beside other ways to ask.

    python -m benchmarks.questions [--images 64] [--repeats 7] [--answers constrain] [--threads 1]

One Ray actor holds one engine. In every repeat it answers the same questions about the same newly drawn pictograms in
four ways, in turn: through `VQAActor.ask` (encoded images go in through Ray, replies come out); by one bare
`LLM.generate` for each batch of the same requests (timed inside the process, with nothing but decoding the images
added); by one `generate` for each image; and by one `generate` for each question, as in a script that loops over its
questions. Ratios are medians over the repeats of the ratios within a repeat, so that a slow moment of the machine
slows both sides.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
from collections.abc import Iterator, Sequence

import ray

from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS
from seesaw.actors.pictogram.draw import draw
from seesaw.actors.vqa import VQAActor, VQAQuestionnaire

BATCH = 8


class BenchActor(VQAActor):
    """A VQA actor that can also be asked in the other ways. Each returns its seconds inside the process."""

    def bare(self, batches: Sequence[Sequence[bytes]]) -> float:
        return self._generate([[(image, self.questionnaire.all) for image in batch] for batch in batches])

    def by_image(self, batches: Sequence[Sequence[bytes]]) -> float:
        return self._generate([[(image, self.questionnaire.all)] for batch in batches for image in batch])

    def by_question(self, batches: Sequence[Sequence[bytes]]) -> float:
        questions = self.questionnaire.all
        return self._generate([[(image, (q,))] for batch in batches for image in batch for q in questions])

    def forget(self) -> None:
        """Empty every cache, so that no way profits from the images that another one has processed."""
        self.engine.llm.reset_mm_cache()
        self.engine.llm.reset_prefix_cache()
        self.engine.llm.llm_engine.reset_encoder_cache()

    def _generate(self, calls: Sequence[Sequence[tuple[bytes, Sequence[object]]]]) -> float:
        began = time.perf_counter()
        for call in calls:
            prompts, sampling = self.engine.requests(call)
            self.engine.llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - began


def pictograms(n: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(n):
        file = io.BytesIO()
        state = {axis: rng.choice(values) for axis, values in AXES.items()}
        draw(state, rng.choice(OCCUPATIONS), rng.getrandbits(60)).save(file, "PNG", compress_level=1)
        yield file.getvalue()


def through_actor(actor: ray.actor.ActorHandle, batches: Sequence[Sequence[bytes]]) -> float:
    """Seconds to ask all batches, with one in progress and one waiting, as the fleet does it."""
    began, waiting = time.perf_counter(), []
    for batch in batches:
        waiting.append(actor.ask.remote(batch))
        if len(waiting) > 1:
            ray.get(waiting.pop(0))
    ray.get(waiting)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answers", choices=("score", "constrain"), default="score")
    args = parser.parse_args()
    from seesaw.actors.engines import VQAQuestion
    from seesaw.actors.pictogram.train_vlm import QUESTIONS

    # The person question is one of the others here, so that every way answers exactly the same requests.
    questionnaire = VQAQuestionnaire(None, tuple(VQAQuestion(*q) for q in QUESTIONS.values()))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    actor = ray.remote(num_cpus=1)(BenchActor).remote(
        "bench", "vllm", {"model": "pictogram", "answers": args.answers}, questionnaire, "unused", args.threads, ""
    )
    print(f"loaded: {ray.get(actor.load.remote())}", flush=True)
    asked = args.images * len(QUESTIONS)
    rates: dict[str, list[float]] = {"actor": [], "bare": [], "by image": [], "by question": []}
    for repeat in range(args.repeats + 1):
        images = list(pictograms(args.images, seed=repeat))
        batches = [images[i : i + BATCH] for i in range(0, len(images), BATCH)]
        ways = {
            "actor": lambda b: through_actor(actor, b),
            "bare": lambda b: ray.get(actor.bare.remote(b)),
            "by image": lambda b: ray.get(actor.by_image.remote(b)),
            "by question": lambda b: ray.get(actor.by_question.remote(b)),
        }
        for way, run in sorted(ways.items(), key=lambda item: item[0], reverse=repeat % 2 == 1):
            ray.get(actor.forget.remote())
            rate = asked / run(batches)
            if repeat:  # the first round warms up
                rates[way].append(rate)
    print(f"\n{args.answers}, {len(QUESTIONS)} questions x {args.images} images, {args.threads} thread(s)")
    print(f"{'way':12s} {'questions/s':>12s} {'actor / way':>12s}")
    for way, rate in rates.items():
        ratio = statistics.median(a / b for a, b in zip(rates["actor"], rate, strict=True))
        print(f"{way:12s} {statistics.median(rate):12.0f} {ratio:12.2f}")
    print(f"engine: {ray.get(actor.metrics.remote())}")
    ray.shutdown()


if __name__ == "__main__":
    main()
