"""The summary of an analysis beside its tables: what is undefined and why, and which images count nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from seesaw.experiments.drop_rates import uneven
from seesaw.experiments.tally import Tally
from seesaw.experiments.undefined import CellCount, why_undefined

__all__ = ["Drop", "Summary", "Undefined", "UnevenDrops", "summarise"]


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
        """The summary as lines of text: what was counted, then `warnings`."""
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
    """Undefined entries; one for a whole row if all its entries have the same reason."""
    targets = [target.name for target in counted.targets] or ["*"]  # a table in which nobody is seen has no axes
    for group, (model, subject) in enumerate(counted.groups):
        for source in counted.sources:
            cells = [0, *_span(counted, source.name)]
            reasons = {
                target: why_undefined(target, (_cell(counted, group, cell, target) for cell in cells))
                for target in targets
            }
            if not any(reasons.values()):
                continue
            if len(set(reasons.values())) == 1:
                yield Undefined(model, subject, source.name, "*", next(iter(reasons.values())))
                continue
            for target, reason in reasons.items():
                if reason:
                    yield Undefined(model, subject, source.name, target, reason)


def _span(counted: Tally, source: str) -> range:
    """The positions of the counterfactuals of an axis among all cells."""
    return range(*counted.spans[source].indices(len(counted.cells)))


def _cell(counted: Tally, group: int, cell: int, target: str) -> CellCount:
    return CellCount(
        *counted.cells[cell],
        asked=int(counted.asked[group, cell]),
        dropped=int(counted.dropped[group, cell]),
        answered=int(counted.counts[target][group, cell].sum()) if target in counted.counts else 0,
    )


def _uneven(counted: Tally, drops: Mapping[tuple[int, int], Drop]) -> tuple[UnevenDrops, ...]:
    """Axes of one model and subject whose counterfactuals lose images at different rates."""
    groups = {
        (group, source.name): [drops[group, cell] for cell in _span(counted, source.name) if (group, cell) in drops]
        for group in range(len(counted.groups))
        for source in counted.sources
    }
    found = uneven({key: [(drop.asked, drop.dropped) for drop in cells] for key, cells in groups.items()})
    return tuple(
        UnevenDrops(
            *counted.groups[group],
            source,
            p,
            fewest=min(groups[group, source], key=lambda drop: drop.share),
            most=max(groups[group, source], key=lambda drop: drop.share),
        )
        for (group, source), p in found.items()
    )
