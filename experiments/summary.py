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
    """Entries of a matrix that are NaN, and the reason; `target_axis` is "*" if it is the whole row."""

    model: str
    subject: str
    source_axis: str
    target_axis: str
    reason: str


@dataclass(frozen=True)
class Drop:
    """How many images of one cell were looked at, and how many of them count nowhere (no person, or withheld)."""

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
    """An analysis in numbers. `unanswered[axis]` is the number of images with a person that do not answer that axis."""

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
        """The summary as lines of text: what was counted, then the `warnings`."""
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
            f"undefined: {entry.model} / {entry.subject} / {entry.source_axis} -> {entry.target_axis}: {entry.reason}"
            for entry in self.undefined
        ]
        uneven = [
            f"drop rates differ (p = {drops.p:.1g}): {drops.model} / {drops.subject} / {drops.source_axis}: "
            f"{drops.fewest.source_value} loses {drops.fewest.dropped} of {drops.fewest.asked} images, "
            f"{drops.most.source_value} {drops.most.dropped} of {drops.most.asked}"
            for drops in self.uneven_drops
        ]
        unanswered = [
            f"{number:,} images do not answer {axis}, and do not count for it"
            for axis, number in self.unanswered.items()
        ]
        return [*undefined, *uneven, *unanswered]


def summarise(tally: Tally, rows: int) -> Summary:
    """The summary of `tally`, which counts `rows` answers."""
    drops = {
        (group, cell): Drop(*names, *tally.cells[cell], int(asked), int(tally.dropped[group, cell]))
        for group, names in enumerate(tally.groups)
        for cell, asked in enumerate(tally.asked[group])
        if asked
    }
    return Summary(
        rows=rows,
        models=tuple(dict.fromkeys(model for model, _ in tally.groups)),
        subjects=tuple(dict.fromkeys(subject for _, subject in tally.groups)),
        source_axes=tuple(axis.name for axis in tally.sources),
        target_axes=tuple(axis.name for axis in tally.targets),
        images=int(tally.asked.sum()),
        dropped=int(tally.dropped.sum()),
        unanswered={name: missing for name, missing in tally.unanswered.items() if missing},
        undefined=tuple(_undefined(tally)),
        drops=tuple(drops.values()),
        uneven_drops=_uneven(tally, drops),
    )


def _undefined(tally: Tally) -> Iterator[Undefined]:
    """The undefined entries. A row in which all entries have the same reason is reported once, as a whole."""
    targets = [target.name for target in tally.targets] or ["*"]  # no image shows a person: there are no target axes
    for group, (model, subject) in enumerate(tally.groups):
        for source in tally.sources:
            cells = [0, *_span(tally, source.name)]
            reasons = {
                target: why_undefined(target, (_cell(tally, group, cell, target) for cell in cells))
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


def _span(tally: Tally, source: str) -> range:
    """The positions of the counterfactuals of an axis among all cells."""
    return range(*tally.spans[source].indices(len(tally.cells)))


def _cell(tally: Tally, group: int, cell: int, target: str) -> CellCount:
    return CellCount(
        *tally.cells[cell],
        asked=int(tally.asked[group, cell]),
        dropped=int(tally.dropped[group, cell]),
        answered=int(tally.counts[target][group, cell].sum()) if target in tally.counts else 0,
    )


def _uneven(tally: Tally, drops: Mapping[tuple[int, int], Drop]) -> tuple[UnevenDrops, ...]:
    """Axes of one model and subject whose counterfactuals lose images at different rates."""
    groups = {
        (group, source.name): [drops[group, cell] for cell in _span(tally, source.name) if (group, cell) in drops]
        for group in range(len(tally.groups))
        for source in tally.sources
    }
    p_values = uneven({key: [(drop.asked, drop.dropped) for drop in cells] for key, cells in groups.items()})
    return tuple(
        UnevenDrops(
            *tally.groups[group],
            source,
            p,
            fewest=min(groups[group, source], key=lambda drop: drop.share),
            most=max(groups[group, source], key=lambda drop: drop.share),
        )
        for (group, source), p in p_values.items()
    )
