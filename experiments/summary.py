"""What an analysis has to say beside its tables: what is undefined and why, and whom the person check dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.tally import Tally
from seesaw.results.words import prompt_label

__all__ = ["Drop", "Summary", "Undefined", "UnevenDrops", "summarise"]

_ALARM = 0.01  #: drop rates differ if chance does this less often than that, after Holm's correction


@dataclass(frozen=True)
class Undefined:
    """Entries of a matrix that are NaN, and why; `target_axis` is "*" where it is the whole row."""

    model: str
    subject: str
    source_axis: str
    target_axis: str
    reason: str


@dataclass(frozen=True)
class Drop:
    """Images of one cell that were looked at, and those of them that count nowhere: no person, or withheld."""

    model: str
    subject: str
    source_axis: str
    source_value: str
    asked: int
    dropped: int

    @property
    def share(self) -> float:
        """The share of images that count nowhere."""
        return self.dropped / self.asked


@dataclass(frozen=True)
class UnevenDrops:
    """Counterfactuals of one axis that lose more images than others: a bias of its own. `p` is Holm-corrected."""

    model: str
    subject: str
    source_axis: str
    p: float
    fewest: Drop
    most: Drop


@dataclass(frozen=True)
class Summary:
    """An analysis in numbers. `unanswered[axis]` are images with a person that do not answer that axis."""

    rows: int
    models: tuple[str, ...]
    subjects: tuple[str, ...]
    source_axes: tuple[str, ...]
    target_axes: tuple[str, ...]
    images: int
    dropped: int
    unanswered: Mapping[str, int]
    undefined: tuple[Undefined, ...]
    drops: tuple[Drop, ...]
    uneven_drops: tuple[UnevenDrops, ...]

    def lines(self) -> list[str]:
        """The summary in words, a line each: what was counted, then `warnings`."""
        dropped = f"; {self.dropped:,} of them show no person and count nowhere" if self.dropped else ""
        return [
            f"{self.rows:,} answers of {self.images:,} images{dropped}",
            f"{len(self.models)} models, {len(self.subjects)} subjects; "
            f"IS of {', '.join(self.source_axes) or 'no axis'} "
            f"on {', '.join(self.target_axes) or 'no axis'}",
            *self.warnings(),
        ]

    def warnings(self) -> list[str]:
        """What a reader of the tables must know: undefined entries, uneven drop rates, missing answers."""
        undefined = [
            f"undefined: {u.model} / {u.subject} / {u.source_axis} -> {u.target_axis}: {u.reason}"
            for u in self.undefined
        ]
        uneven = [
            f"drop rates differ (p = {d.p:.1g}): {d.model} / {d.subject} / {d.source_axis}: "
            f"{d.fewest.source_value} loses "
            f"{d.fewest.dropped} of {d.fewest.asked} images, {d.most.source_value} {d.most.dropped} of {d.most.asked}"
            for d in self.uneven_drops
        ]
        unanswered = [
            f"{n:,} images do not answer {axis}, and count there as if not made" for axis, n in self.unanswered.items()
        ]
        return [*undefined, *uneven, *unanswered]


def summarise(counted: Tally, rows: int) -> Summary:
    """The summary of a table of `rows` answers that were counted."""
    drops = {
        (group, cell): Drop(*names, *counted.cells[cell], int(asked), int(counted.dropped[group, cell]))
        for group, names in enumerate(counted.groups)
        for cell, asked in enumerate(counted.asked[group])
        if asked
    }
    return Summary(
        rows=rows,
        models=tuple(dict.fromkeys(model for model, _ in counted.groups)),
        subjects=tuple(dict.fromkeys(subject for _, subject in counted.groups)),
        source_axes=tuple(axis.name for axis in counted.sources),
        target_axes=tuple(axis.name for axis in counted.targets),
        images=int(counted.asked.sum()),
        dropped=int(counted.dropped.sum()),
        unanswered={name: missing for name, missing in counted.unanswered.items() if missing},
        undefined=tuple(_undefined(counted)),
        drops=tuple(drops.values()),
        uneven_drops=_uneven(counted, drops),
    )


def _undefined(counted: Tally) -> Iterator[Undefined]:
    valid = counted.asked - counted.dropped
    for group, (model, subject) in enumerate(counted.groups):
        for source in counted.sources:
            cells = [0, *range(*counted.spans[source.name].indices(len(counted.cells)))]
            empty = [cell for cell in cells if not valid[group, cell]]
            if empty:
                reason = "; ".join(_why(counted, group, cell) for cell in empty)
                yield Undefined(model, subject, source.name, "*", reason)
                continue
            for target in counted.targets:
                silent = [cell for cell in cells if not counted.counts[target.name][group, cell].any()]
                if silent:
                    names = ", ".join(prompt_label(*counted.cells[cell]) for cell in silent)
                    reason = f"no image answers {target.name}: {names}"
                    yield Undefined(model, subject, source.name, target.name, reason)


def _why(counted: Tally, group: int, cell: int) -> str:
    asked = counted.asked[group, cell]
    lack = f"none of its {asked} images counts (no person, or withheld)" if asked else "no images"
    return f"{prompt_label(*counted.cells[cell])}: {lack}"


def _uneven(counted: Tally, drops: Mapping[tuple[int, int], Drop]) -> tuple[UnevenDrops, ...]:
    """Axes whose counterfactuals differ in how many images they lose, tested for every group and source axis.

    Fisher's exact test for two counterfactuals, chi-square for more; Holm's correction over all of them.
    """
    found: list[UnevenDrops] = []
    for group in range(len(counted.groups)):
        for source in counted.sources:
            span = range(*counted.spans[source.name].indices(len(counted.cells)))
            cells = [drops[group, cell] for cell in span if (group, cell) in drops]
            if len(cells) < 2:
                continue
            fewest, most = min(cells, key=lambda d: d.share), max(cells, key=lambda d: d.share)
            found.append(UnevenDrops(most.model, most.subject, source.name, _p_value(cells), fewest, most))
    corrected = _holm(np.array([test.p for test in found]))
    return tuple(replace(test, p=float(p)) for test, p in zip(found, corrected, strict=True) if p < _ALARM)


def _p_value(cells: list[Drop]) -> float:
    """How often chance alone makes drop rates differ as much as those of `cells`."""
    import scipy.stats  # a run of which nothing is left to do gets by without

    table = np.array([[cell.dropped, cell.asked - cell.dropped] for cell in cells])
    if not table.sum(0).all():  # all dropped or none: nothing differs
        return 1.0
    if len(cells) == 2:
        return float(scipy.stats.fisher_exact(table).pvalue)
    return float(scipy.stats.chi2_contingency(table).pvalue)


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down correction of p values (t,), in their order."""
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    corrected = np.empty(len(p))
    corrected[order] = stepped
    return corrected
