"""The distributions of one pair as stacked bars: target, initial prompt, and after every intervention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from seesaw.results.report.findings import Finding

__all__ = ["AxisBars", "Bar", "Distributions", "axis_bars", "bar_of", "reasons"]

_WIDTH = 250  # px of a bar on a wide screen; decides which words fit into a segment

Cell = tuple[str, str]  #: (source_axis, source_value)


@dataclass(frozen=True)
class Segment:
    """`slot` is the attribute's position in its axis and sets its colour; `label` is the text in the segment."""

    attribute: str
    share: float
    slot: int
    label: str


@dataclass(frozen=True)
class Bar:
    """One distribution of an axis. `w` is NaN if unknown. A bar without segments is undefined."""

    name: str
    segments: tuple[Segment, ...]
    w: float = math.nan
    trend: int = 0  #: -1 or 1: the intervention significantly tips this axis away or brings it nearer; else 0

    @property
    def words(self) -> str:
        """The bar as a sentence, for screen readers."""
        shown = ", ".join(f"{s.attribute} {s.share:.0%}" for s in self.segments if s.share > 0)
        return f"{self.name}: {shown or 'undefined'}"


@dataclass(frozen=True)
class AxisBars:
    axis: str
    attributes: tuple[str, ...]
    w_init: float
    bars: tuple[Bar, ...]


class Distributions:
    """The rows of distributions.parquet about one pair, by cell and axis."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._shares: dict[tuple[Cell, str], dict[str, float]] = {}
        self._n: dict[tuple[Cell, str], int] = {}
        columns = ("source_axis", "source_value", "axis", "attribute", "share", "n")
        for source, value, axis, attribute, share, n in zip(*(rows[c].tolist() for c in columns), strict=True):
            self._shares.setdefault(((source, value), axis), {})[attribute] = share
            self._n[(source, value), axis] = n
        self.cells = tuple(dict.fromkeys(cell for cell, _ in self._shares))

    def shares(self, cell: Cell, axis: str) -> Mapping[str, float]:
        """Shares by attribute, NaN where undefined."""
        return self._shares.get((cell, axis), {})

    def n(self, cell: Cell, axis: str) -> int:
        """Valid images that answer `axis`."""
        return self._n.get((cell, axis), 0)


def bar_of(name: str, shares: Mapping[str, float], w: float = math.nan, trend: int = 0) -> Bar:
    """A bar of `shares` by attribute. The order of the attributes sets their colours."""
    if not shares or any(math.isnan(share) for share in shares.values()):
        return Bar(name, ())
    segments = (Segment(a, share, slot % 8, _label(a, share)) for slot, (a, share) in enumerate(shares.items()))
    return Bar(name, tuple(segments), w, trend)


def _label(attribute: str, share: float) -> str:
    room, number = share * _WIDTH, f"{100 * share:.0f}"
    if room > 6 * len(attribute) + 22:
        return f"{attribute} {number}"
    return number if room > 16 else ""


def axis_bars(
    distributions: Distributions, cells: Sequence[Finding], targets: Mapping[str, Mapping[str, float]]
) -> tuple[AxisBars, ...]:
    """The bars of each target axis of one pair's matrix, in its order. `targets` are ideal shares, as far as known."""
    by_axis: dict[str, list[Finding]] = {}
    for cell in cells:
        by_axis.setdefault(cell.target, []).append(cell)
    return tuple(_axis(axis, distributions, mine, targets.get(axis, {})) for axis, mine in by_axis.items())


def _axis(axis: str, distributions: Distributions, cells: Sequence[Finding], target: Mapping[str, float]) -> AxisBars:
    initial = distributions.shares(("", ""), axis)
    bars = [bar_of("initial", initial, cells[0].w_init)]
    if target:
        bars.insert(0, bar_of("target", {name: target[name] for name in initial if name in target}, 0.0))
    for cell in cells:
        trend = int(np.sign(cell.value)) if cell.significant else 0
        bars.append(bar_of(f"after {cell.source}", distributions.shares((cell.source, "*"), axis), cell.w_after, trend))
    return AxisBars(axis, tuple(initial), cells[0].w_init, tuple(bars))


def reasons(cells: Sequence[Finding]) -> tuple[str, ...]:
    """Why entries of one pair are undefined, in sentences: one for all the targets that share a reason."""
    targets: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.undefined:
            targets.setdefault((cell.source, cell.undefined), []).append(cell.target)
    every = len({cell.target for cell in cells})
    return tuple(
        f"{source} on {'every axis' if len(names) == every else ', '.join(names)}: {reason}"
        for (source, reason), names in targets.items()
    )
