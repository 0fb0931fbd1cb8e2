"""The report's section about two VLMs that read the same images: agreement, accuracies, what they read differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seesaw.results.report.example_images import ExampleImage, ExampleImages
from seesaw.results.tables.misreading import TwoVLMTables

__all__ = ["TwoVLMSection", "two_vlms_section"]


@dataclass(frozen=True)
class Disagreement:
    """An image that two VLMs read differently; `caption` says what each reads."""

    picture: ExampleImage
    caption: str


@dataclass(frozen=True)
class TwoVLMSection:
    """What the macro `two` of misreading.html.j2 shows."""

    first: str
    second: str
    rows: list[dict[str, Any]]  #: of the table of agreement, with right_first and right_second
    unsettled: list[str]  #: axes on which the model of Hui and Walter did not converge
    examples: list[tuple[str, list[Disagreement]]]  #: by axis


def two_vlms_section(tables: TwoVLMTables, images: ExampleImages) -> TwoVLMSection | None:
    """The context of the macro `two`; None if the two read no axis of any image."""
    agreement = tables.agreement
    if agreement.empty:
        return None
    first, second = agreement["first"].iloc[0], agreement["second"].iloc[0]
    whole = tables.hui_walter[tables.hui_walter["attribute"] == ""]
    right = whole.pivot(index="axis", columns="vlm", values="accuracy").reindex(columns=[first, second])
    rows = agreement.assign(
        right_first=agreement["axis"].map(right[first]), right_second=agreement["axis"].map(right[second])
    )
    return TwoVLMSection(
        first,
        second,
        [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")],
        list(dict.fromkeys(whole[~whole["converged"]]["axis"])),
        [
            (str(axis), [_disagreement(row, images) for row in of_axis.to_dict("records")])
            for axis, of_axis in tables.disagreements.groupby("axis", sort=False)
        ],
    )


def _disagreement(row: dict[Any, Any], images: ExampleImages) -> Disagreement:
    (picture,) = images.pictures(row["model"], row["prompt"], [row["image_key"]])
    return Disagreement(picture, f"{row['first']} / {row['second']}; {row['prompt']}")
