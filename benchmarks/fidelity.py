"""How closely the trained pictogram pipeline follows its world, as the embedded VLM reads its images.

    python -m benchmarks.fidelity [--model pictogram-sd] [--images 32] [--singles 26] [--pairs 6]

For each of the 26 occupations: the initial prompt, `singles` prompts that state one attribute (each of the 26
attributes equally often) and `pairs` prompts that state two. Printed separately for prompts with no, one and two stated
attributes:

- person, occupation: share of images that show a person, and of these the share with the right occupation.
- compliance: how often a stated attribute shows, divided by how often the world shows it (1: as the world does).
- total variation of an axis' distribution from the world's, and what sampling alone gives at this n.
- shifts: how a statement changes every marginal: correlation and slope of generated against true changes, and the
  correlation of a perfect generator at this n. This is the figure that counts: on total variation, a generator that
  ignores the prompt scores about as well.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoTokenizer, Idefics3ForConditionalGeneration

from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.actors.engines import Withheld
from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS
from seesaw.actors.pictogram.train_vlm import QUESTIONS, VLM, Packed, answers
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import compose
from seesaw.results.store.identity import image_seed
from seesaw.runner.config import CONFIGS, ModelConfig, load_named

NAMES = list(QUESTIONS)


@dataclass
class Seen:
    """One prompt: what it states, exact and generated shares by axis, and how many of its images show what."""

    occupation: str
    stated: dict[str, str]
    true: dict[str, np.ndarray]
    generated: dict[str, np.ndarray]
    perfect: dict[str, np.ndarray]  #: shares in as many draws from the exact distribution
    images: int
    persons: int
    right: int  #: images with the right occupation


def shares_of(read: np.ndarray) -> dict[str, np.ndarray]:
    """Shares of every axis' attributes among images with a person, from answers (n, 12)."""
    shares = {}
    for axis, values in AXES.items():
        if axis in NAMES:
            codes = read[:, NAMES.index(axis)]
        else:  # disability: three yes/no questions, the first yes counts
            yes = np.stack([read[:, NAMES.index(v)] == 0 for v in values[1:]], 1)
            codes = np.where(yes.any(1), yes.argmax(1) + 1, 0)
        shares[axis] = np.bincount(codes, minlength=len(values)) / max(len(codes), 1)
    return shares


def prompts(singles: int, pairs: int, rng: np.random.Generator) -> list[tuple[str, dict[str, str]]]:
    values = [(axis, value) for axis, attributes in AXES.items() for value in attributes]
    asked = []
    for number, occupation in enumerate(OCCUPATIONS):
        asked.append((occupation, {}))
        for i in range(singles):
            axis, value = values[(number + i * 7) % len(values)]
            asked.append((occupation, {axis: value}))
        for _ in range(pairs):
            one, two = rng.choice(len(AXES), 2, replace=False)
            chosen = [list(AXES)[one], list(AXES)[two]]
            asked.append((occupation, {axis: str(rng.choice(AXES[axis])) for axis in chosen}))
    return asked


def show(what: str, seen: list[Seen], initial: dict[str, Seen]) -> None:
    tv, noise, shift, truth, ideal = [], [], [], [], []
    stated: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for prompt in seen:
        start = initial[prompt.occupation]
        for axis in AXES:
            tv.append(abs(prompt.generated[axis] - prompt.true[axis]).sum() / 2)
            noise.append(abs(prompt.perfect[axis] - prompt.true[axis]).sum() / 2)
            if prompt.stated:
                shift += list(prompt.generated[axis] - start.generated[axis])
                truth += list(prompt.true[axis] - start.true[axis])
                ideal += list(prompt.perfect[axis] - start.perfect[axis])
        for axis, value in prompt.stated.items():
            at = AXES[axis].index(value)
            stated.setdefault((axis, value), []).append(
                (prompt.generated[axis][at], prompt.true[axis][at], prompt.perfect[axis][at])
            )
    print(f"{what}: {len(seen)} prompts, {sum(s.images for s in seen):,} images")
    persons = sum(s.persons for s in seen)
    print(
        f"  person {persons / sum(s.images for s in seen):.3f}, occupation {sum(s.right for s in seen) / persons:.4f}"
    )
    print(f"  total variation {np.mean(tv):.3f} (sampling alone {np.mean(noise):.3f}), worst {np.max(tv):.3f}")
    if not stated:
        return
    means = {key: np.mean(shares, 0) for key, shares in stated.items()}
    ratio = {key: generated / true for key, (generated, true, _) in means.items()}
    luck = min(perfect / true for _, true, perfect in means.values())
    worst = min(ratio, key=lambda key: ratio[key])
    kept = np.mean([min(1.0, r) for r in ratio.values()])
    print(
        f"  compliance {kept:.3f} of the world's, worst {ratio[worst]:.3f} ({worst[0]} = {worst[1]}; "
        f"a perfect generator at this n: {luck:.3f})"
    )
    slope = float(np.dot(shift, truth) / np.dot(truth, truth))
    print(
        f"  shifts: correlation {np.corrcoef(shift, truth)[0, 1]:.3f}, slope {slope:.2f} "
        f"(a perfect generator at this n: {np.corrcoef(ideal, truth)[0, 1]:.3f})"
    )
    by_axis = {a: min((r for (axis, _), r in ratio.items() if axis == a), default=float("nan")) for a in AXES}
    print("  lowest compliance by axis: " + ", ".join(f"{a} {r:.2f}" for a, r in by_axis.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pictogram-sd")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--singles", type=int, default=26)
    parser.add_argument("--pairs", type=int, default=6)
    args = parser.parse_args()
    spec = load_named(ModelConfig, "models", args.model, [])
    world = WORLDS[str(spec.truth)]
    dataset = load_dataset(CONFIGS / "datasets" / "occupation.yaml")
    engine = DiffusersEngine(spec.settings)
    vlm, packed = Idefics3ForConditionalGeneration.from_pretrained(VLM), Packed(AutoTokenizer.from_pretrained(VLM))
    rng = np.random.default_rng(0)
    asked = prompts(args.singles, args.pairs, rng)
    seen, spent, began = [], 0.0, time.monotonic()
    for number, (occupation, stated) in enumerate(asked):
        text, images = compose(dataset, occupation, stated), []
        seeds = [image_seed(number, i) for i in range(args.images)]  # its own: prompts must not share their luck
        start = time.monotonic()
        for i in range(0, len(seeds), 8):
            images += engine.generate(text, seeds[i : i + 8])
        spent += time.monotonic() - start
        shown = np.stack([np.asarray(im.image if isinstance(im, Withheld) else im) for im in images])
        read = answers(vlm, packed, torch.from_numpy(shown.transpose(0, 3, 1, 2).copy())).numpy()
        read = read[read[:, 0] == 0]
        true = {axis: np.asarray(p) for axis, p in world.shares(text).items()}
        perfect = {axis: rng.multinomial(len(read), p / p.sum()) / max(len(read), 1) for axis, p in true.items()}
        right = int((read[:, NAMES.index("occupation")] == OCCUPATIONS.index(occupation)).sum())
        seen.append(Seen(occupation, stated, true, shares_of(read), perfect, len(images), len(read), right))
        if number % 26 == 25:
            print(f"... {number + 1}/{len(asked)} prompts, {time.monotonic() - began:.0f} s", flush=True)
    initial = {s.occupation: s for s in seen if not s.stated}
    for what, count in (("initial prompts", 0), ("one attribute stated", 1), ("two attributes stated", 2)):
        some = [s for s in seen if len(s.stated) == count]
        if some:
            show(what, some, initial)
    print(f"{len(asked) * args.images / spent:.0f} images a second, 8 a call, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
