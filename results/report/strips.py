"""The images behind one entry of a matrix: of the initial prompt, and of each counterfactual of the source axis."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from seesaw.results.report.bars import Bar, Distributions, bar_of
from seesaw.results.report.example_images import ExampleImage, ExampleImages
from seesaw.results.report.findings import Finding
from seesaw.results.words import prompt_label

__all__ = ["Example", "Strip", "strips"]

_INITIAL, _COUNTERFACTUAL = 8, 4  # images shown of a prompt


@dataclass(frozen=True)
class Example:
    """One image; `caption` is what VQA read of the target axis, "no person" or "no answer"."""

    picture: ExampleImage
    caption: str
    number: int


@dataclass(frozen=True)
class Strip:
    """The first images of one prompt, and how the target axis is distributed over all of them."""

    prompt: str
    bar: Bar
    examples: tuple[Example, ...]


def strips(
    entry: Finding, examples: pd.DataFrame, distributions: Distributions, example_images: ExampleImages
) -> tuple[Strip, ...]:
    """The strips that explain `entry`. `examples`: rows of answers.parquet about the first images of its pair."""
    shown = []
    for cell in distributions.cells:
        if cell[1] == "*" or cell[0] not in ("", entry.source):
            continue
        rows = examples[(examples["source_axis"] == cell[0]) & (examples["source_value"] == cell[1])]
        if rows.empty:  # the cell failed
            continue
        first = rows.drop_duplicates("image").sort_values("image").head(_COUNTERFACTUAL if cell[0] else _INITIAL)
        answers = {
            (image, axis): answer for image, axis, answer in rows[["image", "axis", "answer"]].itertuples(index=False)
        }
        prompt = str(first["prompt"].iloc[0])
        pictures = example_images.pictures(entry.model, prompt, first["image_key"].tolist())
        shown.append(
            Strip(
                prompt,
                bar_of(prompt_label(*cell), distributions.shares(cell, entry.target)),
                tuple(
                    Example(picture, _caption(answers, image, entry.target), image)
                    for picture, image in zip(pictures, first["image"].tolist(), strict=True)
                ),
            )
        )
    return tuple(shown)


def _caption(answers: dict[tuple[int, str], str], image: int, target: str) -> str:
    if answers.get((image, "person")) == "no":
        return "no person"
    return answers.get((image, target), "no answer")
