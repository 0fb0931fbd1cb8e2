"""Measured IS beside exact IS, for models whose truth is known: a scatter plot with its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from seesaw.results.printable import printable_markup
from seesaw.results.report.findings import Agreement, Finding, Findings
from seesaw.results.report.heatmap import open_svg, signed

__all__ = ["ExactPlot", "exact_plots"]

_LEFT, _TOP, _SIDE = 50, 8, 280  # of the plot, in px
_OWN, _CROSS = "#d9772b", "#4c8fc9"  # the shapes differ too; both colours are visible on white and on black


@dataclass(frozen=True)
class ExactPlot:
    """The measured IS of a model beside the exact IS of its `world`, over all subjects."""

    model: str
    world: str
    every: Agreement
    cross: Agreement | None  #: of the entries between two axes alone, where there are any
    scatter: Markup


def exact_plots(findings: Findings, truths: Mapping[str, str]) -> list[ExactPlot]:
    """A plot of every model of which exact values are known, all of one span; `truths` are their worlds, by name."""
    both = [c for c in findings.entries if not math.isnan(c.value) and not math.isnan(c.exact)]
    values = [value for c in both for value in (c.value, c.exact)]
    span = math.floor(10 * min(values, default=0) - 0.3) / 10, math.ceil(10 * max(values, default=0) + 0.3) / 10
    plots = []
    for model, (every, cross) in findings.agreement.items():
        mine = [c for c in both if c.model == model]
        picture = _scatter(mine, span, f"Measured IS against exact IS of {model}; {_words(every)}")
        plots.append(ExactPlot(model, truths.get(model, ""), every, cross, Markup(picture)))
    return plots


def _words(agreement: Agreement) -> str:
    """The figures as a sentence, for those who do not see the picture."""
    line = ""
    if not math.isnan(agreement.correlation):
        line = f"correlation {agreement.correlation:.2f}, slope {agreement.slope:.2f}, "
    return f"{agreement.entries:,} entries: {line}mean absolute difference {agreement.difference:.3f}"


def _scatter(cells: Sequence[Finding], span: tuple[float, float], label: str) -> str:
    """Measured IS (upwards) against exact IS of `cells`, each with both values, as an `<svg>` element.

    Both axes reach over `span`. A circle is one axis on another, a square an axis on itself; both have a tooltip. On
    the dashed diagonal measured is exact. `label` says what the picture shows to those who do not see it.
    """
    low, high = span
    scale = _SIDE / (high - low)

    def at(exact: float, measured: float) -> tuple[float, float]:
        return _LEFT + (exact - low) * scale, _TOP + (high - measured) * scale

    parts = [open_svg((_LEFT + _SIDE + 12, _TOP + _SIDE + 42), label), _grid(low, high, scale)]
    for fill, own in ((_CROSS, False), (_OWN, True)):
        dots = "".join(_dot(c, at(c.exact, c.value)) for c in cells if c.own == own)
        parts.append(f'<g fill="{fill}" fill-opacity="0.6">{dots}</g>')
    return "".join([*parts, "</g></svg>"])


def _dot(c: Finding, at: tuple[float, float]) -> str:
    x, y = at
    words = f"{c.subject}: {c.source} on {c.target}, exact {signed(c.exact)}, measured {signed(c.value)}"
    tooltip = f"<title>{printable_markup(words)}</title>"
    if c.own:
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6">{tooltip}</rect>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5">{tooltip}</circle>'


def _grid(low: float, high: float, scale: float) -> str:
    """The frame, a line and a number at every tick, the dashed diagonal, and what the axes are."""
    right, bottom = _LEFT + _SIDE, _TOP + _SIDE
    step = 0.2 if high - low < 1.3 else 0.5
    lines, words = [], []
    for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        x, y = _LEFT + (i * step - low) * scale, _TOP + (high - i * step) * scale
        faint = 'stroke-opacity="0.45"' if i == 0 else 'stroke-opacity="0.12"'
        lines.append(f'<path d="M{x:.1f} {_TOP}V{bottom}M{_LEFT} {y:.1f}H{right}" {faint}/>')
        words.append(f'<text x="{x:.1f}" y="{bottom + 15}">{signed(i * step)}</text>')
        words.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{signed(i * step)}</text>')
    lines.append(f'<path d="M{_LEFT} {bottom}L{right} {_TOP}" stroke-dasharray="5 4" stroke-opacity="0.8"/>')
    lines.append(f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" stroke-opacity="0.3"/>')
    middle = _TOP + _SIDE / 2
    words.append(f'<text x="{_LEFT + _SIDE / 2:.1f}" y="{bottom + 34}">exact IS</text>')
    words.append(f'<text x="11" y="{middle:.1f}" transform="rotate(-90 11 {middle:.1f})">measured IS</text>')
    return f'<g fill="none" stroke="currentColor">{"".join(lines)}</g>{"".join(words)}'
