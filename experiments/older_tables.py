"""Tables of sweeps that older versions wrote: what they lack is computed again from the answers beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    analysis = analyze(read_answers(path), _settings(sweep), str(path))
    computed = analysis.uncertainty.drop(columns="is")
    kept = sweep.matrix.drop(columns=[name for name in computed if name not in _ENTRY])
    matrix = kept.merge(computed, how="left", on=_ENTRY, validate="1:1")
    return replace(sweep, matrix=matrix, means=analysis.means, bias=analysis.bias, older=False)


def _settings(sweep: SweepTables) -> AnalysisSettings:
    """The settings that the tables record; axes and attributes are in the order in which the tables list them."""
    about = sweep.about
    metric, targets = about.get("metric"), about.get("targets")
    if not isinstance(metric, Mapping) or not isinstance(targets, Mapping):
        raise RunDirectoryError(
            f"'{sweep.path}' was written by an older version, and its matrices do not record metric and targets; sweep "
            f"again with: seesaw sweep {sweep.path / 'config.yaml'}"
        )
    listed = sweep.distributions[["axis", "attribute"]].drop_duplicates()
    axes = tuple(_axis(str(name), rows["attribute"]) for name, rows in listed.groupby("axis", sort=False))
    subjects, names = tuple(dict.fromkeys(sweep.matrix["subject"])), [axis.name for axis in axes]
    dataset = Dataset(str(about.get("dataset", "")), "", subjects, None, axes)
    metric, targets = ({name: of[name] for name in names if name in of} for of in (metric, targets))
    try:
        return make_settings(dataset, metric, targets, str(about.get("intervention", "uniform")))
    except ConfigError as error:
        raise RunDirectoryError(f"'{sweep.path}/matrices.parquet' records settings that are none: {error}") from None


def _axis(name: str, attributes: Iterable[str]) -> Axis:
    attributes = tuple(attributes)
    return Axis(name, attributes, (), tuple(map(Counterfactual, attributes)))
