"""What stands out in a sweep: significant interactions, means over subjects, agreement with the truth, uneven drops.

All of it is decided here, from the tables of a run; the report only shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.drop_rates import uneven
from seesaw.experiments.older_tables import renewed
from seesaw.experiments.sensitivity import VARIES, correlation
from seesaw.experiments.shrinkage import picked_width, shrunken
from seesaw.experiments.undefined import CellCount, why_undefined
from seesaw.results.report.findings import (
    Agreement,
    Finding,
    Findings,
    LeftOut,
    MeanMatrix,
    Recurrent,
    SignificantShares,
)
from seesaw.results.tables.run_reader import SweepTables

__all__ = ["findings_of"]

Group = TypeVar("Group")

#: columns of the matrices, and the fields of a Finding that hold them
_COLUMNS = {
    "model": "model",
    "subject": "subject",
    "source_axis": "source",
    "target_axis": "target",
    "is_matched": "value",
    "is": "plug_in",
    **{name: name for name in ("se", "low", "high", "w_init", "w_after", "n_init", "n_after", "significant", "exact")},
}
_CELL = ["model", "subject", "source_axis", "source_value"]


def findings_of(sweep: SweepTables) -> Findings:
    """Everything that the report says about a sweep.

    Raises what `older_tables.renewed` raises, for tables that an older version wrote.
    """
    sweep = renewed(sweep)
    entries = _shrunken(_entries(sweep))
    by_pair: dict[tuple[str, str], list[Finding]] = {}
    by_model: dict[str, list[Finding]] = {}
    for entry in entries:
        by_pair.setdefault((entry.model, entry.subject), []).append(entry)
        by_model.setdefault(entry.model, []).append(entry)
    compared_by_model, compared_by_pair = _compared(by_model), _compared(by_pair)
    return Findings(
        entries=tuple(entries),
        picked_width=_picked_width(entries),
        telling={pair: _most_telling(of_pair) for pair, of_pair in by_pair.items()},
        shares=tuple(_significant_shares(by_model)),
        recurrent=_recurrent(entries),
        means=tuple(
            _mean_matrix(str(model), str(unit), means, sweep.matrix[sweep.matrix["model"] == model])
            for (model, unit), means in sweep.means.groupby(["model", "unit"], sort=False)
        ),
        left_out=tuple(_left_out(sweep.cells)),
        agreement={model: _agreements(compared) for model, compared in compared_by_model.items()},
        agreement_of={pair: _agreement(compared) for pair, compared in compared_by_pair.items()},
    )


def _entries(sweep: SweepTables) -> list[Finding]:
    """The rows of the matrices as findings, in the same order."""
    reasons = _Reasons(sweep)
    entries = []
    for values in sweep.matrix[list(_COLUMNS)].rename(columns=_COLUMNS).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in values.items()}
        names = row["model"], row["subject"], row["source"], row["target"]
        undefined = reasons.of(*names) if np.isnan(row["value"]) else ""
        entries.append(Finding(**row, undefined=undefined))
    return entries


def _shrunken(entries: Sequence[Finding]) -> list[Finding]:
    """The entries with what their true values are likely to be, between two axes; each model's are shrunk together."""
    by_model: dict[str, list[int]] = {}
    for position, entry in enumerate(entries):
        if not entry.own and not np.isnan(entry.value):
            by_model.setdefault(entry.model, []).append(position)
    result = list(entries)
    for positions in by_model.values():
        values, errors = (np.array([getattr(entries[i], name) for i in positions]) for name in ("value", "se"))
        for i, value in zip(positions, shrunken(values, errors).tolist(), strict=True):
            result[i] = replace(entries[i], shrunken=value)
    return result


def _picked_width(entries: Sequence[Finding]) -> float:
    """How much wider the intervals of significant entries are, since they were picked from all between two axes."""
    between = [entry for entry in entries if not entry.own and not np.isnan(entry.value)]
    return picked_width(sum(entry.significant for entry in between), len(between))


class _Reasons:
    """Tells why entries are undefined, from the numbers of images and of answers in every cell."""

    def __init__(self, sweep: SweepTables) -> None:
        self._images: dict[tuple[str, ...], tuple[int, int]] = {}
        for *cell, asked, dropped in sweep.cells[[*_CELL, "asked", "dropped"]].itertuples(index=False, name=None):
            self._images[tuple(cell)] = asked, dropped
        self._answers: dict[tuple[str, str], dict[tuple[str, str], dict[str, int]]] = {}
        answers = sweep.distributions[[*_CELL, "axis", "n"]].drop_duplicates()
        for model, subject, source, value, axis, n in answers.itertuples(index=False, name=None):
            self._answers.setdefault((model, subject), {}).setdefault((source, value), {})[axis] = n

    def of(self, model: str, subject: str, source: str, target: str) -> str:
        """Why the entry of `source` and `target` is undefined."""
        cells = []
        for (axis, value), answers in self._answers.get((model, subject), {}).items():
            if axis in ("", source) and value != "*":
                asked, dropped = self._images.get((model, subject, axis, value), (0, 0))
                cells.append(CellCount(axis, value, asked, dropped, answers.get(target, 0)))
        return why_undefined(target, cells) or "undefined"


def _most_telling(entries: Sequence[Finding]) -> Finding | None:
    """The entry to look at first: the lowest significantly negative one between two axes.

    If there is none, the lowest between two axes, then the lowest of all; None if no entry is defined.
    """
    defined = [entry for entry in entries if not np.isnan(entry.value)]
    between = [entry for entry in defined if not entry.own]
    negative = [entry for entry in between if _is_negative(entry)]
    return min(negative or between or defined, key=lambda entry: entry.value, default=None)


def _is_negative(entry: Finding) -> bool:
    """Whether the value is significantly below 0."""
    return entry.significant and entry.value < 0


def _significant_shares(by_model: Mapping[str, Sequence[Finding]]) -> list[SignificantShares]:
    """How many interactions between two axes are significant: of all models together (""), then of each model."""
    all_entries = [entry for entries in by_model.values() for entry in entries]
    shares = []
    for model, entries in {"": all_entries, **(by_model if len(by_model) > 1 else {})}.items():
        between = [entry for entry in entries if not entry.own and not np.isnan(entry.value)]
        negative = sum(map(_is_negative, between))
        positive = sum(entry.significant for entry in between) - negative
        shares.append(SignificantShares(model, len(between), negative, positive))
    return shares


def _recurrent(entries: Sequence[Finding]) -> Recurrent | None:
    """The interaction of two axes that is significantly negative for most pairs of model and subject.

    None if no interaction is negative for at least two pairs.
    """
    negative: dict[tuple[str, str], list[bool]] = {}
    for entry in entries:
        if not entry.own and not np.isnan(entry.value):
            negative.setdefault((entry.source, entry.target), []).append(_is_negative(entry))
    most = max(negative, key=lambda interaction: sum(negative[interaction]), default=None)
    if most is None or sum(negative[most]) < 2:
        return None
    return Recurrent(*most, sum(negative[most]), len(negative[most]))


def _mean_matrix(model: str, unit: str, means: pd.DataFrame, cells: pd.DataFrame) -> MeanMatrix:
    """The rows of means.parquet of one model and unit as a matrix; `cells` are the entries that they are means of."""
    rows, columns = (list(dict.fromkeys(means[name])) for name in ("source_axis", "target_axis"))
    indexed = means.set_index(["source_axis", "target_axis"])
    called = cells[cells["significant"]]
    signs = called.assign(negative=called["is_matched"] < 0, positive=called["is_matched"] > 0)
    counted = signs.groupby(["source_axis", "target_axis"])[["negative", "positive"]].sum()

    def as_matrix(column: pd.Series, empty: float = np.nan) -> NDArray[np.float64]:
        wide = column.unstack("target_axis").reindex(index=rows, columns=columns)
        return wide.to_numpy(np.float64, na_value=empty)

    mean, low, high = (as_matrix(indexed[name]) for name in ("is_matched", "low", "high"))
    count, significant = (as_matrix(indexed[name].astype(float), 0) for name in ("subjects", "significant"))
    negative, positive = (as_matrix(counted[name].astype(float), 0) for name in ("negative", "positive"))
    return MeanMatrix(
        model,
        unit,
        cells["subject"].nunique(),
        tuple(rows),
        tuple(columns),
        mean,
        low,
        high,
        significant > 0,
        *(each.astype(np.int64) for each in (count, negative, positive)),
    )


def _left_out(cells: pd.DataFrame) -> list[LeftOut]:
    """Drop rates by model and counterfactual, the highest first; empty if no image was dropped."""
    if not cells["dropped"].any():
        return []
    summed = cells.groupby(["model", "source_axis", "source_value"], sort=False)[["asked", "dropped"]].sum()
    rows = [(*names, *counts) for names, counts in zip(summed.index, summed.to_numpy().tolist(), strict=True)]
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for model, source, _, asked, dropped in rows:
        if source:
            groups.setdefault((model, source), []).append((asked, dropped))
    differing = uneven(groups)
    left_out = [
        LeftOut(model, source, value, asked, dropped, (model, source) in differing)
        for model, source, value, asked, dropped in rows
    ]
    return sorted(left_out, key=lambda cell: (-cell.dropped / cell.asked, cell.model, cell.source, cell.value))


def _compared(groups: Mapping[Group, Sequence[Finding]]) -> dict[Group, list[Finding]]:
    """The entries of each group that have both a measured and an exact value; groups without any are left out."""
    compared = {
        group: [entry for entry in entries if not np.isnan(entry.value) and not np.isnan(entry.exact)]
        for group, entries in groups.items()
    }
    return {group: entries for group, entries in compared.items() if entries}


def _agreements(entries: Sequence[Finding]) -> tuple[Agreement, Agreement | None]:
    """The agreement of all entries, and of those between two axes if there are any."""
    between = [entry for entry in entries if not entry.own]
    return _agreement(entries), _agreement(between) if between else None


def _agreement(entries: Sequence[Finding]) -> Agreement:
    """How the values of `entries` (at least one) agree with their exact values."""
    exact, measured = (np.array([getattr(entry, name) for entry in entries]) for name in ("exact", "value"))
    x, y = exact - exact.mean(), measured - measured.mean()
    return Agreement(
        entries=len(entries),
        correlation=correlation(exact, measured),
        slope=float((x * y).sum() / (x**2).sum()) if np.ptp(exact) > VARIES else float("nan"),
        difference=float(np.abs(measured - exact).mean()),
        covered=sum(entry.low <= entry.exact <= entry.high for entry in entries),
    )
