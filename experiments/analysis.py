"""From an answers table to distributions, IS matrices and their uncertainty. No models needed.

Rows come in one canonical order whatever the order of the input: models sorted; subjects in the dataset's order, then
others sorted; the initial prompt, then source axes, counterfactuals (the pooled intervention last), axes and attributes
in the dataset's order. Source axes in play are those that the table intervenes on anywhere, target axes those that it
answers anywhere; a counterfactual of an axis in play that has no valid image leaves that axis' row undefined (NaN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.answers import answer_rows, check_answers, coded_answers
from seesaw.experiments.dataset.model import Axis
from seesaw.experiments.sensitivity import intersectional_sensitivity, pool, w_bar
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.summary import Summary, summarise
from seesaw.experiments.tally import Tally, tally
from seesaw.results.errors import ConfigError
from seesaw.results.statistics import is_interval
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.schemas import DISTRIBUTIONS, MATRICES, UNCERTAINTY
from seesaw.results.tables.write import table_of, write_both

__all__ = [
    "AnalysisSettings",
    "Summary",
    "analyze",
    "answer_rows",
    "check_answers",
    "distributions",
    "make_settings",
    "matrices",
    "uncertainty",
    "write_analysis",
]

_Number = TypeVar("_Number", np.int64, np.float64)
_DRAWS = 1000  # an interval from 1,000 draws moves by 2 % of its width from seed to seed; five models take seconds


def distributions(answers: pd.DataFrame, settings: AnalysisSettings) -> pd.DataFrame:
    """distributions.parquet: how often every cell shows every attribute; source_value "*" is the pooled intervention.

    Raises AnswersError for a table that is not one over the settings' dataset.
    """
    return _distributions(tally(coded_answers(answers, settings.dataset), settings.dataset), settings)


def matrices(answers: pd.DataFrame, settings: AnalysisSettings) -> pd.DataFrame:
    """matrices.parquet: IS and the distances it comes from, a row for every model, subject, source and target axis.

    Raises AnswersError for a table that is not one over the settings' dataset.
    """
    return _matrices(tally(coded_answers(answers, settings.dataset), settings.dataset), settings)


def uncertainty(answers: pd.DataFrame, settings: AnalysisSettings) -> pd.DataFrame:
    """uncertainty.parquet: standard error and 95 % interval of every IS, in the rows of `matrices`.

    Raises AnswersError for a table that is not one over the settings' dataset.
    """
    counted = tally(coded_answers(answers, settings.dataset), settings.dataset)
    return _uncertainty(counted, settings, _matrices(counted, settings))


def analyze(answers_path: str | Path, out_dir: str | Path, settings: AnalysisSettings) -> Summary:
    """Write distributions, matrices and uncertainty of the answers table at `answers_path` into `out_dir`.

    Nothing is written unless all of the input is good. Raises AnswersError for the answers, also for a file that is no
    table, and ConfigError for a folder that cannot be written to.
    """
    coded = coded_answers(read_answers(answers_path), settings.dataset, str(answers_path))
    return write_analysis(tally(coded, settings.dataset), len(coded.axis), out_dir, settings)


def write_analysis(counted: Tally, rows: int, out_dir: str | Path, settings: AnalysisSettings) -> Summary:
    """Write distributions, matrices and uncertainty of what was counted, `rows` answers, into `out_dir`.

    Every table is written as Parquet, with the settings in its metadata, and as CSV. Raises ConfigError for a folder
    that cannot be written to.
    """
    out_dir = Path(out_dir)
    matrix = _matrices(counted, settings)
    tables = {
        "distributions": table_of(_distributions(counted, settings), DISTRIBUTIONS, settings.about()),
        "matrices": table_of(matrix, MATRICES, settings.about()),
        "uncertainty": table_of(_uncertainty(counted, settings, matrix), UNCERTAINTY, settings.about()),
    }
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_both(out_dir, name, table)
    except OSError as error:
        raise ConfigError(f"cannot write to {out_dir}: {error.strerror}") from error
    return summarise(counted, rows)


def _distributions(counted: Tally, settings: AnalysisSettings) -> pd.DataFrame:
    names, count, share = [("", "")], {}, {}
    for source in counted.sources:
        names += [*counted.cells[counted.spans[source.name]], (source.name, "*")]
    for target in counted.targets:
        counts, shares = counted.counts[target.name], counted.shares(target)
        count_rows, share_rows = [counts[:, :1]], [shares[:, :1]]
        for source in counted.sources:
            span = counted.spans[source.name]
            count_rows += [counts[:, span], counts[:, span].sum(1, keepdims=True)]
            share_rows += [shares[:, span], pool(shares[:, span], settings.weights(source))[:, None]]
        count[target.name], share[target.name] = np.concatenate(count_rows, 1), np.concatenate(share_rows, 1)
    axes = [(axis.name, attribute) for axis in counted.targets for attribute in axis.attributes]
    n = {name: np.broadcast_to(counts.sum(-1, keepdims=True), counts.shape) for name, counts in count.items()}
    return pd.DataFrame(
        {
            **_labels(("model", "subject"), counted.groups, len(names) * len(axes), 1),
            **_labels(("source_axis", "source_value"), names, len(axes), len(counted.groups)),
            **_labels(("axis", "attribute"), axes, 1, len(counted.groups) * len(names)),
            "count": _flat(count, np.int64),
            "share": _flat(share, np.float64),
            "n": _flat(n, np.int64),
        }
    )


def _matrices(counted: Tally, settings: AnalysisSettings) -> pd.DataFrame:
    w_init, w_after, n_init, n_after = {}, {}, {}, {}
    for target in counted.targets:
        name = target.name
        distance, shares, counts = _distance(settings, target), counted.shares(target), counted.counts[name]
        sources = [(counted.spans[s.name], settings.weights(s)) for s in counted.sources]
        shape = len(counted.groups), len(sources), 1  # one column of the matrices, for every group
        w_init[name] = np.broadcast_to(distance(shares[:, 0])[:, None, None], shape)
        n_init[name] = np.broadcast_to(counts[:, 0].sum(-1)[:, None, None], shape)
        w_after[name], n_after[name] = np.empty(shape), np.empty(shape, np.int64)
        for row, (span, weights) in enumerate(sources):
            w_after[name][:, row, 0] = distance(pool(shares[:, span], weights))
            n_after[name][:, row, 0] = counts[:, span].sum((1, 2))
    before, after = _flat(w_init, np.float64), _flat(w_after, np.float64)
    rows, columns = len(counted.sources), len(counted.targets)
    return pd.DataFrame(
        {
            **_labels(("model", "subject"), counted.groups, rows * columns, 1),
            **_labels(("source_axis",), [(s.name,) for s in counted.sources], columns, len(counted.groups)),
            **_labels(("target_axis",), [(t.name,) for t in counted.targets], 1, len(counted.groups) * rows),
            "is": intersectional_sensitivity(before, after),
            "w_init": before,
            "w_after": after,
            "n_init": _flat(n_init, np.int64),
            "n_after": _flat(n_after, np.int64),
        }
    )


def _uncertainty(counted: Tally, settings: AnalysisSettings, matrix: pd.DataFrame) -> pd.DataFrame:
    intervals = [
        is_interval(
            counted.counts[target.name][group, 0],
            counted.counts[target.name][group, counted.spans[source.name]],
            _distance(settings, target),
            settings.weights(source),
            draws=_DRAWS,
        )
        for group in range(len(counted.groups))
        for source in counted.sources
        for target in counted.targets
    ]
    frame = matrix[["model", "subject", "source_axis", "target_axis", "is"]].copy()
    for name in ("se", "low", "high"):
        frame[name] = np.array([getattr(interval, name) for interval in intervals], np.float64)
    return frame


def _distance(settings: AnalysisSettings, axis: Axis) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """w-bar of shares of `axis` from its target, in its metric."""
    return partial(w_bar, d=settings.targets[axis.name], metric=settings.metric[axis.name])


def _labels(
    names: tuple[str, ...], values: Sequence[tuple[str, ...]], each: int, times: int
) -> dict[str, NDArray[np.object_]]:
    """Columns of words: every value `each` times in a row, the whole `times` times over."""
    return {
        name: np.tile(np.repeat(np.array([value[i] for value in values], np.object_), each), times)
        for i, name in enumerate(names)
    }


def _flat(by_axis: Mapping[str, NDArray[_Number]], kind: type[_Number]) -> NDArray[_Number]:
    """Blocks (P, rows, columns of one axis) side by side, as one column."""
    blocks = list(by_axis.values())
    return np.concatenate(blocks, 2).ravel() if blocks else np.empty(0, kind)
