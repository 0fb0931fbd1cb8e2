"""The report's section about a sweep: its findings, and for every pair its matrix, distributions and images."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from seesaw.results.report.agreement import exact_plots
from seesaw.results.report.bars import AxisBars, Distributions, axis_bars, reasons
from seesaw.results.report.example_images import ExampleImages
from seesaw.results.report.findings import Agreement, Finding, Findings, MeanMatrix
from seesaw.results.report.heatmap import colour, heatmap, ink, signed
from seesaw.results.report.strips import Strip, strips
from seesaw.results.tables.run_reader import SweepTables, read_examples

__all__ = ["sweep_section"]

_STRONGEST = 6  # findings of each sign at the head of the report
_DETAILED = 150  # pairs with distributions and example images, at most; every pair has its matrix
_BYTES = 30_000_000  # of images in this section; once they are exceeded, further pairs are shown without images


@dataclass(frozen=True)
class Pair:
    """A model and a subject as the page shows them."""

    number: int
    model: str
    subject: str
    heatmap: Markup
    telling: Finding | None  #: the entry to look at first
    style: str  #: the colours of that entry
    axes: tuple[AxisBars, ...]  #: without bars unless the pair is detailed
    undefined: tuple[str, ...]  #: why entries are NaN
    distributions: Distributions | None  #: only of a detailed pair
    strips: tuple[Strip, ...] = ()
    exact: Markup | None = None  #: the exact matrix, if any entry of it is known
    agreement: Agreement | None = None  #: of the measured matrix with the exact one

    @property
    def detailed(self) -> bool:
        return self.distributions is not None

    @property
    def rank(self) -> tuple[bool, float, int]:
        return _rank(self.telling, self.number)


@dataclass(frozen=True)
class Mean:
    """The mean matrix of a model, drawn."""

    matrix: MeanMatrix
    heatmap: Markup
    like: Markup | None  #: the same means, with what is certain for subjects like these; None for a single subject


def sweep_section(
    sweep: SweepTables, findings: Findings, wanted: Mapping[str, Any], example_images: ExampleImages, limit: float
) -> dict[str, Any]:
    """The context of sweep.html.j2; `findings` are about `sweep`, `wanted` is the fingerprint of the run.

    Colours of matrices are full at +-`limit`.
    """
    pairs, cut = _pictured(sweep, example_images, _pairs(sweep, findings, limit))
    picked = [_widened(c, findings.picked_width) for c in findings.entries if c.significant and not c.own]
    strongest = sorted(picked, key=lambda c: c.value)
    by_name = {(pair.model, pair.subject): pair for pair in pairs}
    return {
        "counts": _counts(sweep),
        "negative": [c for c in strongest if c.value < 0][:_STRONGEST],
        "positive": [c for c in reversed(strongest) if c.value > 0][:_STRONGEST],
        "shares": findings.shares,
        "recurrent": findings.recurrent,
        "exact": exact_plots(findings, sweep.truths),
        "worlds": sweep.truths,
        "means": _means(findings, limit),
        "pairs": pairs,
        "models": list(dict.fromkeys(pair.model for pair in pairs)),
        "subjects": list(dict.fromkeys(pair.subject for pair in pairs)),
        "axes": [bars.axis for bars in pairs[0].axes],
        "by_name": by_name,
        "first": min(pairs, key=lambda pair: pair.rank),
        "cut": cut,
        "lost": [
            both for both in itertools.product(wanted["models"], wanted.get("subjects", [])) if both not in by_name
        ],
        "left_out": findings.left_out,
        "uneven": sorted({(each.model, each.source) for each in findings.left_out if each.uneven}),
    }


def _counts(sweep: SweepTables) -> dict[str, int]:
    return {
        "images": int(sweep.cells["asked"].sum()),
        "dropped": int(sweep.cells["dropped"].sum()),
        "flagged": int(sweep.withheld["flagged"].sum()),
        "blank": int(sweep.withheld["blank"].sum()),
        "answers": sweep.answers,
        "cells": len(sweep.cells),
    } | {name: sweep.matrix[column].nunique() for name, column in (("models", "model"), ("subjects", "subject"))}


def _pairs(sweep: SweepTables, findings: Findings, limit: float) -> list[Pair]:
    """Every pair, in the order of the matrices, without images. The most telling pairs are detailed."""
    rows = dict(iter(sweep.distributions.groupby(["model", "subject"], sort=False)))
    by_pair: dict[tuple[str, str], list[Finding]] = {}
    for entry in findings.entries:
        by_pair.setdefault((entry.model, entry.subject), []).append(entry)
    targets = sweep.about.get("targets", {})
    ranked = sorted(_rank(findings.telling[pair], number) for number, pair in enumerate(by_pair))
    detailed = {number for *_, number in ranked[:_DETAILED]}
    return [
        _pair(
            number,
            entries,
            Distributions(rows[pair]),
            findings.telling[pair],
            findings.agreement_of.get(pair),
            targets,
            limit,
            number in detailed,
        )
        for number, (pair, entries) in enumerate(by_pair.items())
    ]


def _pair(
    number: int,
    cells: list[Finding],
    distributions: Distributions,
    first: Finding | None,
    agreement: Agreement | None,
    targets: Mapping[str, Mapping[str, float]],
    limit: float,
    detailed: bool,
) -> Pair:
    model, subject = cells[0].model, cells[0].subject
    rows, columns = list(dict.fromkeys(c.source for c in cells)), list(dict.fromkeys(c.target for c in cells))
    shape = len(rows), len(columns)
    titles = np.array([_tooltip(c) for c in cells], np.object_).reshape(shape)
    label = f"IS matrix of {subject} on {model}" + (f"; lowest: {_tooltip(first)}" if first else "; nothing is defined")
    bars = axis_bars(distributions, cells, targets)
    picture = heatmap(
        rows,
        columns,
        np.array([c.value for c in cells]).reshape(shape),
        np.array([c.significant for c in cells]).reshape(shape),
        limit=limit,
        label=label,
        titles=titles.tolist(),
        mark=(rows.index(first.source), columns.index(first.target)) if first else None,
    )
    return Pair(
        number=number,
        model=model,
        subject=subject,
        heatmap=Markup(picture),
        telling=first,
        style=_style(first.value, limit) if first else "",
        axes=bars if detailed else tuple(replace(axis, bars=()) for axis in bars),
        undefined=reasons(cells),
        distributions=distributions if detailed else None,
        exact=_exact(rows, columns, cells, limit) if agreement else None,
        agreement=agreement,
    )


def _exact(rows: list[str], columns: list[str], cells: Sequence[Finding], limit: float) -> Markup:
    """The exact matrix of one pair, drawn like the measured one and in the same colours."""
    values = np.array([c.exact for c in cells]).reshape(len(rows), len(columns))
    words = [f"{c.source} on {c.target}: exact IS {signed(c.exact)}, measured {signed(c.value)}" for c in cells]
    titles = np.array(words, np.object_).reshape(values.shape).tolist()
    label = f"Exact IS matrix of {cells[0].subject} for {cells[0].model}"
    return Markup(heatmap(rows, columns, values, np.isfinite(values), limit=limit, label=label, titles=titles))


def _tooltip(c: Finding) -> str:
    if c.undefined:
        return f"{c.source} on {c.target}: {c.undefined}"
    return (
        f"{c.source} on {c.target}: IS {signed(c.value)}, 95% interval {signed(c.low)} to {signed(c.high)}; "
        f"w {c.w_init:.2f} at first, {c.w_after:.2f} after (IS {signed(c.plug_in)} as in the paper); "
        f"{c.n_init} and {c.n_after} images"
    )


def _style(value: float, limit: float) -> str:
    fill = colour(value, limit)
    return f"background:{fill};color:{ink(fill)}"


def _rank(first: Finding | None, number: int) -> tuple[bool, float, int]:
    """Order by the lowest entry: first pairs where it is significant, then the others, last those without any."""
    return (True, 0.0, number) if first is None else (not first.significant, first.value, number)


def _pictured(sweep: SweepTables, example_images: ExampleImages, pairs: list[Pair]) -> tuple[list[Pair], bool]:
    """`pairs` with images for the detailed ones, the most telling first until the page is large enough.

    Also whether any pair lacks its images or distributions for that reason.
    """
    ranked = sorted(pairs, key=lambda pair: pair.rank)
    shown = [(pair, pair.telling, pair.distributions) for pair in ranked if pair.telling and pair.distributions]
    examples = read_examples(sweep.path, {(pair.model, pair.subject): first.source for pair, first, _ in shown})
    strips_of: dict[int, tuple[Strip, ...]] = {}
    cut = len(pairs) > _DETAILED
    for pair, first, distributions in shown:
        rows = examples.get((pair.model, pair.subject))
        if rows is None:
            continue
        if example_images.size < _BYTES:
            strips_of[pair.number] = strips(first, rows, distributions, example_images)
        else:
            cut = True
    return [replace(pair, strips=strips_of.get(pair.number, ())) for pair in pairs], cut


def _widened(c: Finding, width: float) -> Finding:
    """The entry with the interval that it has as one of those that were picked."""
    return replace(c, low=c.value - width * (c.value - c.low), high=c.value + width * (c.high - c.value))


def _means(findings: Findings, limit: float) -> list[Mean]:
    """The mean matrix of every model, for these subjects and for subjects like them."""
    by_model: dict[str, dict[str, MeanMatrix]] = {}
    for mean in findings.means:
        by_model.setdefault(mean.model, {})[mean.unit] = mean
    return [
        Mean(
            units["images"],
            _mean_heatmap(units["images"], limit, ""),
            _mean_heatmap(units["subjects"], limit, ", for others like them") if units["images"].subjects > 1 else None,
        )
        for units in by_model.values()
    ]


def _mean_heatmap(mean: MeanMatrix, limit: float, what: str) -> Markup:
    titles = [
        [_mean_tooltip(mean, (i, j), f"{x} on {y}") for j, y in enumerate(mean.columns)]
        for i, x in enumerate(mean.rows)
    ]
    label = f"Mean IS matrix of {mean.model} over {mean.subjects} subjects{what}"
    picture = heatmap(mean.rows, mean.columns, mean.mean, mean.significant, limit=limit, label=label, titles=titles)
    return Markup(picture)


def _mean_tooltip(mean: MeanMatrix, at: tuple[int, int], name: str) -> str:
    if not mean.count[at]:
        return f"{name}: undefined for every subject"
    return (
        f"{name}: mean IS {signed(mean.mean[at])}, 95% interval {signed(mean.low[at])} to {signed(mean.high[at])}; of "
        f"{mean.count[at]} subjects {mean.negative[at]} significantly below 0, {mean.positive[at]} above"
    )
