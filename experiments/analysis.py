"""From an answers table to distributions, IS matrices and their uncertainty. No models needed.

Rows come in one canonical order, whatever the order of the input. Models are sorted. Subjects of the dataset come in
its order, then all others, sorted. The initial prompt comes before the interventions. Source axes, counterfactuals (the
pooled intervention last), target axes and attributes are in the dataset's order. Source axes are those that the table
intervenes on anywhere, target axes those that it answers anywhere. If a counterfactual of a source axis has no valid
image, the row of that axis is undefined (NaN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.answers import coded_answers
from seesaw.experiments.estimation import Estimate, estimate
from seesaw.experiments.means import UNITS, Sums, mean_uncertainty
from seesaw.experiments.resampling import DRAWS
from seesaw.experiments.sensitivity import mixture, shares
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.significance import FALSE_DISCOVERIES, matrix_q
from seesaw.experiments.summary import Summary, summarise
from seesaw.experiments.tally import Tally, tally_answers
from seesaw.experiments.uncertainty import Uncertainty, bias_uncertainty, sensitivity_draws, uncertainty_of
from seesaw.results.errors import ConfigError
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.schemas import BIAS, DISTRIBUTIONS, MATRICES, MEANS, UNCERTAINTY
from seesaw.results.tables.write import table_of, write_both

__all__ = ["TABLES", "Analysis", "analyze", "analyze_file"]

#: the tables of an analysis, by name, and their columns
TABLES = {
    "distributions": DISTRIBUTIONS,
    "matrices": MATRICES,
    "uncertainty": UNCERTAINTY,
    "bias": BIAS,
    "means": MEANS,
}

_Number = TypeVar("_Number", np.int64, np.float64)


class Analysis:
    """The tables that follow from counted answers, as data frames: `estimate` for every group (model, subject).

    Each table is computed when it is first used. docs/reference.md lists the columns.
    """

    def __init__(self, tally: Tally, settings: AnalysisSettings, rows: int = 0) -> None:
        """`rows` is the number of answers that were counted, for the summary."""
        self._tally, self._settings, self._rows = tally, settings, rows

    @cached_property
    def estimates(self) -> list[Estimate]:
        """Bias and sensitivity of every group, in the order of the tables."""
        tally, settings = self._tally, self._settings
        return [
            estimate(
                tally.initial(group),
                {source.name: tally.intervention(group, source, settings) for source in tally.sources},
                settings,
            )
            for group in range(len(tally.groups))
        ]

    @cached_property
    def distributions(self) -> pd.DataFrame:
        """How often every cell shows every attribute; `source_value` "*" is the pooled intervention."""
        tally = self._tally
        cells, count, share = [("", "")], {}, {}
        for source in tally.sources:
            cells += [*tally.cells[tally.spans[source.name]], (source.name, "*")]
        for target in tally.targets:
            counts = tally.counts[target.name]
            observed = shares(counts)
            count_rows, share_rows = [counts[:, :1]], [observed[:, :1]]
            for source in tally.sources:
                span, weights = tally.spans[source.name], self._settings.weights(source)
                count_rows += [counts[:, span], counts[:, span].sum(1, keepdims=True)]
                share_rows += [observed[:, span], mixture(observed[:, span], weights)[:, None]]
            count[target.name], share[target.name] = np.concatenate(count_rows, 1), np.concatenate(share_rows, 1)
        attributes = [(axis.name, attribute) for axis in tally.targets for attribute in axis.attributes]
        n = {name: np.broadcast_to(counts.sum(-1, keepdims=True), counts.shape) for name, counts in count.items()}
        return pd.DataFrame(
            {
                **_labels(("model", "subject"), tally.groups, len(cells) * len(attributes), 1),
                **_labels(("source_axis", "source_value"), cells, len(attributes), len(tally.groups)),
                **_labels(("axis", "attribute"), attributes, 1, len(tally.groups) * len(cells)),
                "count": _flat(count, np.int64),
                "share": _flat(share, np.float64),
                "n": _flat(n, np.int64),
            }
        )

    @cached_property
    def matrices(self) -> pd.DataFrame:
        """IS and the distances that it comes from, a row for every model, subject, source axis and target axis."""
        r, n = len(self._tally.sources), len(self._tally.targets)
        groups = self.estimates
        return pd.DataFrame(
            {
                **self._entries(),
                "is": _joined([group.sensitivity for group in groups], np.float64),
                "w_init": _joined([np.broadcast_to(group.w_init, (r, n)) for group in groups], np.float64),
                "w_after": _joined([group.w_after for group in groups], np.float64),
                "n_init": _joined([np.broadcast_to(group.n_init, (r, n)) for group in groups], np.int64),
                "n_after": _joined([group.n_after for group in groups], np.int64),
            }
        )

    @cached_property
    def uncertainty(self) -> pd.DataFrame:
        """The estimate of IS that is shown, its error, interval and verdict, in the rows of `matrices`."""
        frame = self.matrices[["model", "subject", "source_axis", "target_axis", "is"]].copy()
        frame["is_matched"] = _joined([group.is_matched for group in self.estimates], np.float64)
        return frame.assign(**_verdicts(self._resampled[0], self._own))

    @cached_property
    def means(self) -> pd.DataFrame:
        """Means of IS over the subjects of each model, for each unit of `experiments.means`, with their verdicts."""
        parts, names = [], ("source_axis", "target_axis")
        for model, sums in self._resampled[1].items():
            entries = {name: column[: sums.count.size] for name, column in self._entries().items() if name in names}
            for unit in UNITS:
                mean, found = mean_uncertainty(sums, unit)
                plug_in = np.divide(sums.plug_in, sums.count, out=np.full(mean.shape, np.nan), where=sums.count > 0)
                columns = {"model": model, "unit": unit, **entries, "subjects": sums.count.ravel()}
                values = {"is": plug_in.ravel(), "is_matched": mean.ravel()}
                parts.append(pd.DataFrame(columns | values | _verdicts([found], self._own)))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=MEANS.names)

    @cached_property
    def _resampled(self) -> tuple[list[Uncertainty], dict[str, Sums]]:
        """The uncertainty of every group, and the sums of every model. Draws are in memory for one group at a time."""
        found, sums = list[Uncertainty](), dict[str, Sums]()
        for (model, subject), estimated in zip(self._tally.groups, self.estimates, strict=True):
            draws = sensitivity_draws(estimated, subject)
            found.append(uncertainty_of(draws, estimated.is_matched))
            of_model = sums.setdefault(model, Sums.of(self._own.shape, DRAWS))
            of_model.add(estimated.sensitivity, estimated.is_matched, draws)
        return found, sums

    @cached_property
    def _own(self) -> NDArray[np.bool_]:
        """Which entries of a matrix are what an axis does to itself, (r, n)."""
        sources, targets = self._tally.sources, self._tally.targets
        own = np.array([[source is target for target in targets] for source in sources], np.bool_)
        return own.reshape(len(sources), len(targets))

    @cached_property
    def bias(self) -> pd.DataFrame:
        """w of every axis at the initial prompt of every group, with its standard error and 95 % interval."""
        tally = self._tally
        axes = [(target.name,) for target in tally.targets]
        found = [bias_uncertainty(tally.initial(group), self._settings) for group in range(len(tally.groups))]
        columns: dict[str, NDArray[Any]] = {
            **_labels(("model", "subject"), tally.groups, len(axes), 1),
            **_labels(("axis",), axes, 1, len(tally.groups)),
            "w": _joined([group.w_init for group in self.estimates], np.float64),
        }
        for name in ("se", "low", "high"):
            columns[name] = _joined([getattr(each, name) for each in found], np.float64)
        columns["n"] = _joined([group.n_init for group in self.estimates], np.int64)
        return pd.DataFrame(columns)

    @cached_property
    def summary(self) -> Summary:
        """What the tables do not say: which entries are undefined and why, and which images were dropped."""
        return summarise(self._tally, self._rows)

    def write(self, folder: str | Path) -> None:
        """Write the tables into `folder` as CSV and as Parquet, with the settings in the Parquet metadata.

        Raises ConfigError if the folder cannot be written to.
        """
        folder, about = Path(folder), self._settings.about()
        tables = {name: table_of(getattr(self, name), schema, about) for name, schema in TABLES.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, table in tables.items():
                write_both(folder, name, table)
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error

    def _entries(self) -> dict[str, NDArray[np.object_]]:
        """The columns that name each entry of every matrix."""
        tally = self._tally
        groups, r, n = len(tally.groups), len(tally.sources), len(tally.targets)
        return {
            **_labels(("model", "subject"), tally.groups, r * n, 1),
            **_labels(("source_axis",), [(source.name,) for source in tally.sources], n, groups),
            **_labels(("target_axis",), [(target.name,) for target in tally.targets], 1, groups * r),
        }


def analyze(answers: pd.DataFrame, settings: AnalysisSettings, table_name: str = "the answers table") -> Analysis:
    """Analyse an answers table that has the seven columns which `read_answers` returns.

    Raises AnswersError, which names the row, if the table does not fit the settings' dataset; `table_name` opens its
    message.
    """
    coded = coded_answers(answers, settings.dataset, table_name)
    return Analysis(tally_answers(coded, settings.dataset), settings, len(coded.axis))


def analyze_file(answers_path: str | Path, out_dir: str | Path, settings: AnalysisSettings) -> Summary:
    """Write distributions, matrices and uncertainty of the answers table at `answers_path` into `out_dir`.

    Nothing is written unless the whole input is valid. Raises AnswersError if the answers are invalid or the file is
    not a table, and ConfigError if the folder cannot be written to.
    """
    analysis = analyze(read_answers(answers_path), settings, str(answers_path))
    analysis.write(out_dir)
    return analysis.summary


def _verdicts(found: Sequence[Uncertainty], own: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """The columns se, low, high, p, q and significant of some matrices."""
    columns = {
        name: _joined([getattr(each, name) for each in found], np.float64) for name in ("se", "low", "high", "p")
    }
    q = _joined([matrix_q(each.p, own) for each in found], np.float64)
    return {**columns, "q": q, "significant": q <= FALSE_DISCOVERIES}


def _labels(
    names: tuple[str, ...], values: Sequence[tuple[str, ...]], repeats: int, tiles: int
) -> dict[str, NDArray[np.object_]]:
    """Columns of text: every value `repeats` times in succession, and this sequence `tiles` times."""
    return {
        name: np.tile(np.repeat(np.array([value[i] for value in values], np.object_), repeats), tiles)
        for i, name in enumerate(names)
    }


def _flat(by_axis: Mapping[str, NDArray[_Number]], kind: type[_Number]) -> NDArray[_Number]:
    """Blocks (P, rows, attributes of one axis) side by side, as one column."""
    blocks = list(by_axis.values())
    return np.concatenate(blocks, 2).ravel() if blocks else np.empty(0, kind)


def _joined(blocks: Sequence[NDArray[_Number]], kind: type[_Number]) -> NDArray[_Number]:
    """The matrices of all groups, (r, n) each, as one column."""
    return np.concatenate([block.ravel() for block in blocks]) if blocks else np.empty(0, kind)
