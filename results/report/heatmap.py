"""An IS matrix as an SVG picture: orange where an axis is tipped away, blue where it is brought nearer its target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from seesaw.results.printable import printable_markup

__all__ = ["colour", "colour_bar", "heatmap", "ink", "open_svg", "signed"]

Colour = tuple[int, int, int]

#: Orange to blue: distinct in every common colour blindness; in greyscale only the printed sign tells them apart.
_STOPS: tuple[tuple[float, Colour], ...] = (
    (-1.0, (168, 62, 6)),
    (-0.5, (241, 163, 94)),
    (0.0, (247, 246, 243)),
    (0.5, (128, 178, 218)),
    (1.0, (27, 84, 150)),
)
_MUTED = 0.3  # the share of its colour that a cell keeps if it is not `sure`
_HEIGHT, _CHARACTER = 34, 6.3  # height of a cell, width of a letter of 11 px, both in px
_LONGEST = 18  # letters of a name that are shown; the tooltip has the whole name


def signed(value: float) -> str:
    """A number as cells show it: two decimals, always with a sign (a true minus); "n/a" for NaN."""
    if math.isnan(value):
        return "n/a"
    text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
    return "0.00" if text[1:] == "0.00" else text


def colour(value: float, limit: float, strength: float = 1.0) -> str:
    """The colour of `value` on a scale that is full at +-`limit`, as hex. `strength` < 1 mutes it."""
    t = max(-1.0, min(1.0, value / limit))
    channels = [np.interp(t, [s for s, _ in _STOPS], [c[i] for _, c in _STOPS]) for i in range(3)]
    middle = _STOPS[2][1]
    mixed = [round(m + strength * (c - m)) for c, m in zip(channels, middle, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink(fill: str) -> str:
    """Black or white, whichever reads better on `fill` (WCAG relative luminance)."""
    channels = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#fff" if luminance < 0.18 else "#111"


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: ArrayLike,
    sure: ArrayLike,
    *,
    limit: float,
    label: str,
    titles: Sequence[Sequence[str]] | None = None,
    mark: tuple[int, int] | None = None,
) -> str:
    """The matrix `values` (rows, columns) as an `<svg>` element, ready to stand in a page or in another SVG.

    Cells where `sure` (rows, columns, bool) is false are muted; NaN is hatched. Colours are full at +-`limit`. `label`
    describes the picture for screen readers, `titles` are tooltips, `mark` is a cell to frame. The text has the `color`
    of its surroundings; every name is escaped.
    """
    numbers, is_sure = np.asarray(values, np.float64), np.asarray(sure, np.bool_)
    left = min(_LONGEST, max(map(len, rows), default=0)) * _CHARACTER + 12
    width = max(50.0, min(_LONGEST, max(map(len, columns), default=0)) * _CHARACTER + 6)
    top = 22.0
    size = left + width * len(columns) + 2, top + _HEIGHT * len(rows) + 2
    parts = [open_svg(size, label)]
    for j, name in enumerate(columns):
        parts.append(_name(name, left + (j + 0.5) * width, top - 8, "middle"))
    for i, name in enumerate(rows):
        parts.append(_name(name, left - 8, top + (i + 0.5) * _HEIGHT + 4, "end"))
        for j in range(len(columns)):
            box = left + j * width, top + i * _HEIGHT, width, float(_HEIGHT)
            tooltip = titles[i][j] if titles else f"{name} on {columns[j]}: {signed(numbers[i, j])}"
            parts.append(_cell(float(numbers[i, j]), bool(is_sure[i, j]), box, limit, tooltip))
    parts += [_frame(rows, columns, left, top, width), _mark(mark, left, top, width), "</g></svg>"]
    return "".join(parts)


def open_svg(size: tuple[float, float], label: str) -> str:
    """The start of a picture of `size` (width, height), ended by `</g></svg>`. `label` is for screen readers."""
    width, height = (f"{side:.0f}" for side in size)
    return (
        f'<svg role="img" aria-label="{printable_markup(label)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        '<g font-size="11" text-anchor="middle" fill="currentColor">'
    )


def _name(name: str, x: float, y: float, anchor: str) -> str:
    shown = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    tooltip = f"<title>{printable_markup(name)}</title>" if shown != name else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{tooltip}{printable_markup(shown)}</text>'


def _cell(value: float, sure: bool, box: tuple[float, float, float, float], limit: float, tooltip: str) -> str:
    x, y, width, height = box
    place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}"'
    if math.isnan(value):
        fill, text, weight = "#f2f0ec", "#555", "400"
        inside = f'<path d="{_hatch(x + 1, y + 1, width - 2, height - 2)}" stroke="#b9b4aa" fill="none"/>'
    else:
        fill = colour(value, limit, 1.0 if sure else _MUTED)
        text, weight = (ink(fill), "700") if sure else ("#66625c", "400")
        inside = ""
    return (
        f'<g><title>{printable_markup(tooltip)}</title><rect {place} fill="{fill}"/>{inside}'
        f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" fill="{text}" font-weight="{weight}">'
        f"{signed(value)}</text></g>"
    )


def _hatch(x: float, y: float, width: float, height: float) -> str:
    """Diagonals at 45 degrees, clipped to the box by arithmetic, since a `<pattern>` needs an id unique to the page."""
    lines = []
    for step in range(6, int(width + height), 8):
        offset = float(step)
        start = x + max(0.0, offset - height), y + min(height, offset)
        end = x + min(width, offset), y + max(0.0, offset - width)
        lines.append(f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}")
    return "".join(lines)


def _frame(rows: Sequence[str], columns: Sequence[str], left: float, top: float, width: float) -> str:
    """Thin boxes around the diagonal, which is the effect of an axis on itself."""
    return "".join(
        f'<rect x="{left + columns.index(name) * width + 1.5:.1f}" y="{top + i * _HEIGHT + 1.5:.1f}" '
        f'width="{width - 3:.1f}" height="{_HEIGHT - 3}" fill="none" stroke="#55504a" stroke-dasharray="3 2"/>'
        for i, name in enumerate(rows)
        if name in columns
    )


def _mark(mark: tuple[int, int] | None, left: float, top: float, width: float) -> str:
    if mark is None:
        return ""
    x, y = left + mark[1] * width, top + mark[0] * _HEIGHT
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT}"'
    return f'<rect {place} fill="none" stroke="#111" stroke-width="2.5"/>'


def colour_bar(limit: float) -> str:
    """The legend of the scale: an `<svg>` of 21 steps from -`limit` to +`limit`."""
    steps = np.linspace(-limit, limit, 21)
    boxes = "".join(
        f'<rect x="{5 + 14 * i}" y="2" width="14" height="14" fill="{colour(float(v), limit)}"/>'
        for i, v in enumerate(steps)
    )
    ticks = ((5, "start", -limit), (152, "middle", 0.0), (299, "end", limit))
    words = "".join(f'<text x="{x}" y="29" text-anchor="{anchor}">{signed(v)}</text>' for x, anchor, v in ticks)
    label = f"Colour scale from {signed(-limit)}, orange, to {signed(limit)}, blue"
    return f"{open_svg((304, 34), label)}{boxes}{words}</g></svg>"
