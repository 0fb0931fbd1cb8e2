"""Tables of sweeps that older versions wrote: what they lack is computed again from the answers beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seesaw.experiments.analysis import analyze
from seesaw.experiments.dataset.model import Axis, Counterfactual, Dataset
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.results.errors import ConfigError, RunDirectoryError
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.run_reader import SweepTables

__all__ = ["renewed"]

_ENTRY = ["model", "subject", "source_axis", "target_axis"]


def renewed(sweep: SweepTables) -> SweepTables:
    """`sweep` with the estimates and verdicts of this version, in the place of the intervals of an older one.

    Tables of this version are returned as they are. Raises RunDirectoryError if what the answers were analysed with is
    not recorded, and AnswersError if they do not fit it.
    """
    if not sweep.older:
        return sweep
    path = sweep.path / "answers.parquet"
    computed = analyze(read_answers(path), _settings(sweep), str(path)).uncertainty.drop(columns="is")
    kept = sweep.matrix.drop(columns=[name for name in computed if name not in _ENTRY])
    return replace(sweep, matrix=kept.merge(computed, how="left", on=_ENTRY, validate="1:1"), older=False)


def _settings(sweep: SweepTables) -> AnalysisSettings:
    """The settings that the tables record: they name every axis and its attributes."""
    about = sweep.about
    metric, targets = about.get("metric"), about.get("targets")
    if not isinstance(metric, Mapping) or not isinstance(targets, Mapping):
        raise RunDirectoryError(
            f"'{sweep.path}' was written by an older version, and its matrices do not record metric and targets; sweep "
            f"again with: seesaw sweep {sweep.path / 'config.yaml'}"
        )
    subjects = tuple(dict.fromkeys(sweep.matrix["subject"]))
    dataset = Dataset(str(about.get("dataset", "")), "", subjects, None, tuple(map(_axis, targets, targets.values())))
    try:
        return make_settings(dataset, metric, targets, str(about.get("intervention", "uniform")))
    except ConfigError as error:
        raise RunDirectoryError(f"'{sweep.path}/matrices.parquet' records settings that are none: {error}") from None


def _axis(name: str, shares: Mapping[str, float]) -> Axis:
    attributes = tuple(shares)
    return Axis(name, attributes, (), tuple(map(Counterfactual, attributes)))
