"""What stands out in the matrices of a run: the strongest interactions, the means over subjects, uneven drops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

__all__ = [
    "Drop",
    "Finding",
    "MeanMatrix",
    "Shares",
    "drops",
    "findings",
    "mean_matrix",
    "recurrent",
    "shares",
    "telling",
]

_UNEVEN = 0.01  # drop rates differ if chance does this less often, over all tests of the report (Bonferroni)


@dataclass(frozen=True)
class Finding:
    """One entry of a matrix: what diversifying `source` does to `target`."""

    model: str
    subject: str
    source: str
    target: str
    value: float
    low: float
    high: float
    w_init: float
    w_after: float
    n_init: int
    n_after: int
    exact: float  #: the exact IS, NaN where it is not known

    @property
    def sure(self) -> bool:
        """Whether the 95 % interval leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Shares:
    """Of the `defined` off-diagonal entries of a model (or of all: model ""), those significantly below and above 0."""

    model: str
    defined: int
    negative: int
    positive: int


@dataclass(frozen=True)
class MeanMatrix:
    """Mean IS over subjects, (rows, columns) each; `low`, `high` bound the mean over these very subjects.

    `subjects` are those where the entry is defined, `negative` and `positive` those where it is significant.
    """

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    subjects: NDArray[np.int64]
    negative: NDArray[np.int64]
    positive: NDArray[np.int64]


@dataclass(frozen=True)
class Drop:
    """Images of a model without a person, by what the prompt stated, over all subjects."""

    model: str
    source: str
    value: str
    asked: int
    dropped: int
    uneven: bool  #: the counterfactuals of this axis lose images at rates that chance does not explain


def findings(matrix: pd.DataFrame) -> list[Finding]:
    """The rows of `matrix` (matrices.parquet with low, high and exact) as findings, in their order."""
    columns = (
        "model", "subject", "source_axis", "target_axis", "is", "low", "high", "w_init", "w_after", "n_init", "n_after",
        "exact",
    )  # fmt: skip
    return [Finding(*row) for row in zip(*(matrix[name].tolist() for name in columns), strict=True)]


def telling(cells: list[Finding]) -> Finding | None:
    """The entry to look at first: the lowest off the diagonal, a sure one before others; None if none is defined."""
    defined = [c for c in cells if not np.isnan(c.value)]
    off = [c for c in defined if c.source != c.target]
    sure = [c for c in off if c.high < 0]
    return min(sure or off or defined, key=lambda c: c.value, default=None)


def shares(cells: list[Finding]) -> list[Shares]:
    """How many off-diagonal entries are significant: of all models together first, then of each."""
    off = [c for c in cells if c.source != c.target and not np.isnan(c.value)]
    models = list(dict.fromkeys(c.model for c in cells))
    counted = []
    for model in ["", *models] if len(models) > 1 else [""]:
        mine = [c for c in off if model in ("", c.model)]
        counted.append(Shares(model, len(mine), sum(c.high < 0 for c in mine), sum(c.low > 0 for c in mine)))
    return counted


def recurrent(cells: list[Finding]) -> tuple[str, str, int, int] | None:
    """(source, target, times, pairs): the interaction that is significantly negative on most pairs, on two at least."""
    times: dict[tuple[str, str], list[bool]] = {}
    for cell in cells:
        if cell.source != cell.target and not np.isnan(cell.value):
            times.setdefault((cell.source, cell.target), []).append(cell.high < 0)
    most = max(times, key=lambda pair: sum(times[pair]), default=None)
    if most is None or sum(times[most]) < 2:
        return None
    return (*most, sum(times[most]), len(times[most]))


def mean_matrix(cells: pd.DataFrame, rows: list[str], columns: list[str]) -> MeanMatrix:
    """Means over the subjects of one model's `cells`. Undefined entries are left out of a mean, and counted."""
    defined = cells[cells["is"].notna()]
    groups = defined.assign(
        variance=defined["se"] ** 2, negative=defined["high"] < 0, positive=defined["low"] > 0
    ).groupby(["source_axis", "target_axis"])

    def laid_out(column: pd.Series, empty: float) -> NDArray[np.float64]:
        wide = column.unstack("target_axis").reindex(index=rows, columns=columns)
        return wide.to_numpy(np.float64, na_value=empty)

    count = laid_out(groups.size(), 0)
    mean = laid_out(groups["is"].mean(), np.nan)
    # Subjects are observed apart, so their errors are independent.
    half = 1.96 * np.sqrt(laid_out(groups["variance"].sum(), np.nan)) / np.maximum(count, 1)
    negative, positive = (laid_out(groups[name].sum(), 0).astype(np.int64) for name in ("negative", "positive"))
    return MeanMatrix(mean, mean - half, mean + half, count.astype(np.int64), negative, positive)


def drops(cells: pd.DataFrame) -> list[Drop]:
    """Drop rates by model and counterfactual, the highest first; none if no image was dropped."""
    if not cells["dropped"].any():
        return []
    pooled = (
        cells.groupby(["model", "source_axis", "source_value"], sort=False)[["asked", "dropped"]].sum().reset_index()
    )
    uneven = set(_uneven(pooled))
    rows = [
        Drop(model, source, value, int(asked), int(dropped), (model, source) in uneven)
        for model, source, value, asked, dropped in pooled.itertuples(index=False)
    ]
    return sorted(rows, key=lambda d: (-d.dropped / d.asked, d.model, d.source, d.value))


def _uneven(pooled: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """(model, axis) whose counterfactuals differ in their drop rates, by chi-square tests."""
    groups = [(key, group) for key, group in pooled[pooled["source_axis"] != ""].groupby(["model", "source_axis"])]
    for (model, source), group in groups:
        table = np.stack([group["dropped"], group["asked"] - group["dropped"]])
        if len(group) > 1 and table.sum(1).all() and scipy.stats.chi2_contingency(table).pvalue < _UNEVEN / len(groups):
            yield str(model), str(source)
