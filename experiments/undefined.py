"""Why an entry of a matrix is undefined, in the same words for the terminal, the tables' summary and the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seesaw.results.words import prompt_label

__all__ = ["CellCount", "why_undefined"]


@dataclass(frozen=True)
class CellCount:
    """Images of one cell: `asked` were looked at, `dropped` of them count nowhere, `answered` count for the target."""

    source_axis: str
    source_value: str
    asked: int
    dropped: int
    answered: int


def why_undefined(target: str, cells: Iterable[CellCount]) -> str:
    """The reason why an IS on `target` is undefined; "" if it is defined.

    `cells` are all cells that the IS depends on. The reason lists those without an answer about `target`.
    """
    return "; ".join(
        f"{prompt_label(cell.source_axis, cell.source_value)}: {_reason(target, cell)}"
        for cell in cells
        if not cell.answered
    )


def _reason(target: str, cell: CellCount) -> str:
    if not cell.asked:
        return "no images"
    if cell.dropped >= cell.asked:
        return f"none of its {cell.asked} images counts (no person, or withheld)"
    return f"no image answers {target}"
