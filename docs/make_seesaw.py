"""Make docs/seesaw.svg, the picture of the README: `python -m docs.make_seesaw` from the repository's root.

Every number is exact: the world "birch" is a joint distribution that is known to the last digit. The pictures are what
its engine draws from eight consecutive seeds.
"""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

import numpy as np

from seesaw.actors.pictogram.engine import PictogramDraw
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import counterfactual_prompts, initial_prompt
from seesaw.experiments.sensitivity import mixture, uniform, w_bar
from seesaw.results.report.heatmap import heatmap, signed
from seesaw.results.store.identity import image_seed

WORLD, SUBJECT, SOURCE, TARGET = "birch", "nurse", "disability", "clothing"
DATASET = load_dataset("occupation").select(axes=("gender", "age", "bodytype", "clothing", "disability"))
SEED = 11  # a root seed under which none of the 40 images is one of the 2 % without a figure
INK, SOFT, AWAY, NEAR = "#1c1b19", "#605c55", "#a83e06", "#1b5496"
FILLS = ("#88ccee", "#ddcc77")


def measured() -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Exact w of the initial prompt by axis, and after intervening by (source, target)."""
    world = WORLDS[WORLD]
    first = world.shares(initial_prompt(DATASET, SUBJECT).text)
    w_init, w_after = {}, {}
    for y in DATASET.axes:
        target = uniform(len(y.attributes))
        w_init[y.name] = float(w_bar(first[y.name], target))
        for x in DATASET.axes:
            stated = [world.shares(prompt.text)[y.name] for prompt in counterfactual_prompts(DATASET, SUBJECT, x)]
            w_after[x.name, y.name] = float(w_bar(mixture(stated), target))
    return w_init, w_after


def text(
    x: float, y: float, words: str, size: float = 12, fill: str = INK, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def bar(x: float, y: float, width: float, height: float, shares: list[float]) -> str:
    """The two shares of TARGET, side by side; their names where they fit."""
    parts, at = [], x
    names = DATASET.axis(TARGET).attributes
    for name, share, fill in zip(names, shares, FILLS, strict=True):
        room = share * width
        parts.append(f'<rect x="{at:.1f}" y="{y}" width="{room:.1f}" height="{height}" fill="{fill}"/>')
        label = f"{name} {share:.0%}" if room > 76 else f"{share:.0%}" if room > 20 else ""
        parts.append(text(round(at + room / 2, 1), y + height / 2 + 4, label, 10.5, "#111", "middle"))
        at += room
    return "".join(parts)


def legend(x: float, y: float) -> str:
    """The attributes of TARGET and their colours."""
    parts = []
    for name, fill in zip(DATASET.axis(TARGET).attributes, FILLS, strict=True):
        parts += [f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{fill}"/>', text(x + 16, y, name)]
        x += 66
    return "".join(parts)


def rows(x: float, y: float) -> str:
    """The prompts behind the cell: eight images each, and the exact shares of TARGET."""
    engine, world = PictogramDraw({"world": WORLD}), WORLDS[WORLD]
    seeds = [image_seed(SEED, index) for index in range(8)]
    parts = []
    prompts = (initial_prompt(DATASET, SUBJECT), *counterfactual_prompts(DATASET, SUBJECT, SOURCE))
    for number, prompt in enumerate(prompts):
        top = y + 76 * number + (16 if number else 0)
        if any(world.sample(prompt.text, seed) is None for seed in seeds):
            raise SystemExit(f"seed {SEED} draws an image without a figure for {prompt.text!r}; choose another")
        parts.append(text(x, top, prompt.text, 12, INK, weight=400 if number else 700))
        for place, image in enumerate(engine.generate(prompt.text, seeds)):
            uri = f"data:image/png;base64,{base64.b64encode(image).decode()}"
            parts.append(
                f'<image x="{x + 50 * place}" y="{top + 6}" width="48" height="48" href="{uri}" '
                'style="image-rendering:pixelated"/>'
            )
        parts.append(bar(x + 410, top + 20, 130, 20, world.shares(prompt.text)[TARGET].tolist()))
    pooled = mixture([world.shares(prompt.text)[TARGET] for prompt in prompts[1:]])
    parts.append(text(x + 398, 451, f"all {len(prompts) - 1} together", 12, weight=700, anchor="end"))
    parts.append(bar(x + 410, 437, 130, 20, pooled.tolist()))
    return "".join(parts)


def plank(x: float, y: float, w_init: dict[str, float], w_after: dict[tuple[str, str], float]) -> str:
    """A seesaw: the axis that was diversified goes up, the other one down."""
    tilt = f'transform="rotate(9 {x} {y})"'
    beam = f'<path d="M{x - 126} {y}h252" stroke="{INK}" stroke-width="8" stroke-linecap="round" {tilt}/>'
    foot = f'<path d="M{x} {y + 3}l22 40h-44z" fill="#8b867c"/>'
    numbers = {axis: f"{w_init[axis]:.2f} to {w_after[SOURCE, axis]:.2f}" for axis in (SOURCE, TARGET)}
    return (
        beam
        + foot
        + text(x - 128, y - 49, SOURCE, 14, NEAR, "middle", 700)
        + text(x - 128, y - 33, f"bias {numbers[SOURCE]}", 12, NEAR, "middle")
        + text(x + 128, y + 42, TARGET, 14, AWAY, "middle", 700)
        + text(x + 128, y + 58, f"bias {numbers[TARGET]}", 12, AWAY, "middle")
    )


def picture() -> str:
    w_init, w_after = measured()
    names = [axis.name for axis in DATASET.axes]
    values = np.array([[w_init[y] - w_after[x, y] for y in names] for x in names])
    cell = signed(w_init[TARGET] - w_after[SOURCE, TARGET])
    story = (
        f"{SOURCE} of a {SUBJECT} diversified: {SOURCE} comes nearer its target, {TARGET} is tipped away, IS {cell}. "
        f"Matrix over {', '.join(names)}, and the pictograms behind that cell."
    )
    mark = names.index(SOURCE), names.index(TARGET)
    matrix = heatmap(names, names, values, np.full(values.shape, True), limit=0.8, label=story, mark=mark)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="1040" height="494" viewBox="0 0 1040 494" role="img" '
        f'aria-label="{escape(story)}" color="{INK}" font-family="system-ui, Helvetica, Arial, sans-serif">',
        '<rect width="1040" height="494" rx="10" fill="#fff"/>',
        text(24, 38, "Mitigate one bias, and another may tip", 17, weight=700),
        text(24, 60, f"Intersectional sensitivity of the {SUBJECT}: diversify a row, a column changes", 12, SOFT),
        f'<g transform="translate(16 78)">{matrix}</g>',
        text(24, 296, f"{SOURCE} on {TARGET}: {cell}", 14, AWAY, weight=700),
        text(24, 316, f"All {SOURCE} prompts together show {TARGET} less balanced than the", 12, SOFT),
        text(24, 333, "plain prompt does: the framed cell, drawn out on the right.", 12, SOFT),
        plank(220, 406, w_init, w_after),
        '<path d="M470 30V458" stroke="#dcd8d0"/>',
        rows(488, 38),
        legend(488 + 410, 38),
        '<path d="M488 103H1028" stroke="#dcd8d0" stroke-dasharray="4 3"/>',
        text(24, 482, f"Exact values of pictogram-{WORLD}. Pictograms are codes and depict nobody.", 10.5, SOFT),
        "</svg>\n",
    ]  # fmt: skip
    return "".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("seesaw.svg").write_text(picture(), encoding="utf-8")
