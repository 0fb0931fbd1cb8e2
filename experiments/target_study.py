"""The paper's study of another ideal distribution: how IS changes when D* is the distribution in real images.

Source: appendix "Using Real World Biases" (figure "Modifying D*"). With the D* of 48 real images of computer
programmers instead of the uniform one, Kandinsky's IS of clothing on itself changes from +0.88 to -0.79. Here D* is
measured on real images, or read from a table. Real images are used for D* alone: the paper did not intervene on them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.analysis import Analysis
from seesaw.experiments.answers import coded_answers
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.lab import Observations
from seesaw.experiments.sensitivity import check_target
from seesaw.experiments.sensitivity import shares as observed_shares
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.tally import Tally, tally_answers
from seesaw.experiments.uncertainty import Z
from seesaw.results.errors import AnswersError, ConfigError, nearest
from seesaw.results.tables.csv_text import separator, start_of

__all__ = ["Targets", "flip_summary", "flips", "observed_targets", "read_targets", "real_targets", "with_targets"]

Shares = NDArray[np.float64]
_ENTRY = ["model", "subject", "source_axis", "target_axis"]
_NAMES = ("subject", "axis", "attribute")
_COLUMNS = (*_NAMES, "share")
#: what a column of numbers may be called, and the largest number in it
_UNITS = {"share": 1.0, "percent": 100.0, "count": math.inf}


@dataclass(frozen=True)
class Targets:
    """D* by subject and axis: `shares[subject][axis]` (k,) in attribute order. Axes and subjects may be missing.

    `n[subject][axis]` is the number of images behind the shares (not a whole number for exact probabilities). It is
    empty for a D* that was given and not measured.
    """

    shares: Mapping[str, Mapping[str, Shares]]
    n: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def frame(self, dataset: Dataset) -> pd.DataFrame:
        """As a table that `read_targets` reads: subject, axis, attribute, share, and n (NaN if it was not measured)."""
        rows = [
            (subject, axis, attribute, float(share), self.n.get(subject, {}).get(axis, np.nan))
            for subject, by_axis in self.shares.items()
            for axis, shares in by_axis.items()
            for attribute, share in zip(dataset.axis(axis).attributes, shares, strict=True)
        ]
        return pd.DataFrame(rows, columns=[*_COLUMNS, "n"])


def real_targets(answers: pd.DataFrame, dataset: Dataset, model: str | None = None) -> Targets:
    """D* of every subject of `dataset`, from `answers` about real images, as `read_answers` returns them.

    The images are those of the initial prompts of `model`, which may be None if the table has a single model. D* has
    the axes that these images answer.

    Raises:
        AnswersError: the table does not fit the dataset; it has no such model, or several and `model` is None; a
            subject has no valid image for one of the axes.
    """
    tally = tally_answers(coded_answers(answers, dataset), dataset)
    models = sorted({name for name, _ in tally.groups})
    if model is None and len(models) > 1:
        raise AnswersError(
            f"the answers are about several models ({', '.join(models)}); leave the rows of one in the file"
        )
    model = models[0] if model is None and models else model
    if model not in models:
        raise AnswersError(f"the answers are not about a model '{model}'{nearest(str(model), models)}")
    group_of = {subject: group for group, (name, subject) in enumerate(tally.groups) if name == model}
    initial = {axis.name: tally.counts[axis.name][:, 0] for axis in tally.targets}  # (P, k) each
    axes = [name for name, counts in initial.items() if counts[list(group_of.values())].any()]
    return _measured(
        {
            subject: {name: initial[name][group_of[subject]] for name in axes} if subject in group_of else {}
            for subject in dataset.subjects
        },
        f"model '{model}'",
    )


def observed_targets(observations: Sequence[Observations]) -> Targets:
    """D* of the subjects of `observations`: cells of initial prompts, whose images are real.

    Raises:
        AnswersError: a cell has failures; a subject has no valid image.
        ValueError: a cell belongs to an intervention.
    """
    for cell in observations:
        if cell.prompt.source_axis:
            raise ValueError(f"D* is measured on images of initial prompts, not of {cell.prompt.text!r}")
        if cell.failures:
            raise AnswersError(f"D* of '{cell.prompt.subject}' cannot be measured: {cell.failures[0]}")
    return _measured({cell.prompt.subject: cell.counts for cell in observations}, "the real images")


def _measured(counts: Mapping[str, Mapping[str, NDArray[np.integer] | Shares]], source: str) -> Targets:
    """D* from `counts[subject][axis]` (k,); `source` names the images in error messages.

    Raises AnswersError for a subject without a valid image for one of its axes.
    """
    for subject, by_axis in counts.items():
        empty = [axis for axis, by_attribute in by_axis.items() if not by_attribute.sum()]
        if empty or not by_axis:
            about = f" answers axis '{empty[0]}'" if len(empty) < len(by_axis) else ""
            raise AnswersError(
                f"{source}: no valid image of '{subject}'{about}, so it has no D*; add some, or leave the subject out"
            )
    return Targets(
        shares={
            subject: {axis: observed_shares(by_attribute) for axis, by_attribute in by_axis.items()}
            for subject, by_axis in counts.items()
        },
        n={
            subject: {axis: float(by_attribute.sum()) for axis, by_attribute in by_axis.items()}
            for subject, by_axis in counts.items()
        },
    )


def read_targets(path: str | Path, dataset: Dataset) -> Targets:
    """D* from a CSV file with a row for every attribute: columns axis, attribute, share and, optionally, subject.

    A row without a subject is about all subjects, except those that have rows of their own for that axis. The column
    `share` may be replaced by `percent`, or by `count` (of people or images). Shares and per cent may be rounded. A
    column `n`, which `Targets.frame` writes, is ignored.

    Raises:
        ConfigError: the file cannot be read, a name is not in `dataset`, or the shares of an axis are not a
            distribution. The message names the file and the line, and says what would be right.
    """
    path = Path(path)
    by_axis: dict[tuple[str, str], dict[str, float]] = {}
    last_line: dict[tuple[str, str], int] = {}
    unit, rows = _rows(path, dataset)
    for line, subject, axis, attribute, share in rows:
        shares = by_axis.setdefault((subject, axis), {})
        if attribute in shares:
            raise ConfigError(f"{path}, line {line}: '{attribute}' of axis '{axis}' has a share already")
        shares[attribute], last_line[subject, axis] = share, line
    if not by_axis:
        raise ConfigError(f"{path}: has no rows")
    checked = {}
    for (subject, axis), shares in by_axis.items():
        place, attributes = f"{path}, line {last_line[subject, axis]}", dataset.axis(axis).attributes
        missing = [attribute for attribute in attributes if attribute not in shares]
        if missing:
            about = f" of '{subject}'" if subject else ""
            raise ConfigError(f"{place}: axis '{axis}'{about} has no share for '{missing[0]}'; give it one, or 0")
        try:
            numbers = [shares[attribute] for attribute in attributes]
            checked[subject, axis] = _distribution(numbers, attributes, axis, unit)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    by_subject: dict[str, dict[str, Shares]] = {}
    for subject, axis in ((subject, axis.name) for subject in dataset.subjects for axis in dataset.axes):
        own = checked.get((subject, axis), checked.get(("", axis)))
        if own is not None:
            by_subject.setdefault(subject, {})[axis] = own
    return Targets(by_subject)


def _distribution(numbers: Sequence[float], attributes: Sequence[str], axis: str, unit: str) -> Shares:
    """Shares, per cent or counts as a distribution, (k,). Raises ConfigError if they are not one."""
    if unit == "count":
        if not sum(numbers):
            raise ConfigError(f"all counts of axis '{axis}' are 0, so it has no D*")
        return np.asarray(observed_shares(numbers))
    return check_target(numbers, attributes, axis)


def _rows(path: Path, dataset: Dataset) -> tuple[str, list[tuple[int, str, str, str, float]]]:
    """The unit of the numbers, and (line, subject, axis, attribute, number) of every row; per cent come as shares."""
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter, skipped = separator(start_of(path))
            reader = csv.reader(file, strict=True, skipinitialspace=True, delimiter=delimiter)
            for _ in range(skipped):
                next(reader)
            names = [name.strip() for name in next(reader, [])]
            unit = _check_header(path, names)
            for values in reader:
                if not any(value.strip() for value in values):
                    continue
                place = f"{path}, line {reader.line_num}"
                if len(values) != len(names):
                    raise ConfigError(f"{place}: has {len(values)} fields for {len(names)} columns")
                row = {name: value.strip() for name, value in zip(names, values, strict=True)}
                rows.append((reader.line_num, *_checked(place, row, unit, dataset)))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file (UTF-8); save it as CSV UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from None
    except OSError as error:
        near = nearest(path.name, [p.name for p in path.parent.glob("*.csv")]) if not path.exists() else ""
        raise ConfigError(f"{path} cannot be read: {error.strerror}{near}") from None
    return unit, rows


def _check_header(path: Path, names: list[str]) -> str:
    """The column of the numbers: share, percent or count.

    Unknown columns are refused: with a misspelt `subject`, every subject would get what was meant for one.
    """
    for name in names:
        if name not in (*_NAMES, *_UNITS, "n"):
            raise ConfigError(f"{path}, line 1: unknown column '{name}'{nearest(name, (*_NAMES, *_UNITS))}")
        if names.count(name) > 1:
            raise ConfigError(f"{path}, line 1: has two columns called '{name}'")
    for name in _NAMES[1:]:
        if name not in names:
            raise ConfigError(f"{path}, line 1: has no column '{name}'; a table of D* has {', '.join(_COLUMNS)}")
    units = [name for name in _UNITS if name in names]
    if not units:
        raise ConfigError(f"{path}, line 1: has no column 'share' (or percent, or count)")
    if len(units) > 1:
        raise ConfigError(f"{path}, line 1: has {' and '.join(units)}; give one column of numbers")
    return units[0]


def _checked(place: str, row: Mapping[str, str], unit: str, dataset: Dataset) -> tuple[str, str, str, float]:
    """Subject ("" for all), axis, attribute and number of a row; `place` opens the message of a ConfigError."""
    subject = row.get("subject", "")
    if subject and subject not in dataset.subjects:
        raise ConfigError(f"{place}: no subject '{subject}'{nearest(subject, dataset.subjects)}")
    try:
        axis = dataset.axis(row["axis"])
        axis.counterfactual(row["attribute"])
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    most = _UNITS[unit]
    bounds = f"between 0 and {most:g}" if most < math.inf else "of at least 0"
    try:
        number = float(row[unit])
    except ValueError:
        raise ConfigError(f"{place}: {unit} is '{row[unit]}'; it must be a number {bounds}") from None
    if not 0 <= number <= most or math.isinf(number):
        hint = "; numbers of people go into a column 'count', per cent into 'percent'" if unit == "share" else ""
        raise ConfigError(f"{place}: {unit} is {number:g}; it must be {bounds}{hint}")
    return subject, axis.name, row["attribute"], float(Decimal(row[unit]) / 100) if unit == "percent" else number


def with_targets(settings: AnalysisSettings, targets: Targets, subject: str) -> AnalysisSettings:
    """`settings` with D* of `subject` as the target of every axis that D* has.

    The weights of counterfactuals still follow `settings.intervention`. With `uniform`, the paper's, they stay equal.
    With `target` they are the target's shares, which are now those of D*.
    """
    return replace(settings, targets={**settings.targets, **targets.shares.get(subject, {})})


def flips(tally: Tally, settings: AnalysisSettings, targets: Targets) -> pd.DataFrame:
    """IS[x, y] with the settings' own targets (before) and with D* (after), for every y for which there is a D*.

    `tally` counts a sweep; models, subjects and axes keep its order. Columns: model, subject, source_axis, target_axis,
    is_before, se_before, is_after, se_after, w_init_before, w_init_after, and `flipped`: the sign differs, and both
    values are more than 1.96 standard errors away from 0 (never if one is NaN). Standard errors take D* as exact: they
    do not contain the sampling error of the images behind it.

    Raises ConfigError if D* has none of the sweep's subjects and axes.
    """
    before = _with_errors(tally, settings)
    after = [
        _with_errors(tally.of_subject(subject), with_targets(settings, targets, subject))
        for subject in dict.fromkeys(subject for _, subject in tally.groups)
        if subject in targets.shares
    ]
    named = zip(before["subject"], before["target_axis"], strict=True)
    before = before[[axis in targets.shares.get(subject, {}) for subject, axis in named]]
    if before.empty:
        subjects = ", ".join(targets.shares) or "no subject"
        raise ConfigError(f"D* is about {subjects}, but the answers are about other subjects or axes")
    table = before.merge(pd.concat(after), "left", on=_ENTRY, suffixes=("_before", "_after"), validate="1:1")
    significant = [np.abs(table[f"is_{when}"]) > Z * table[f"se_{when}"] for when in ("before", "after")]
    table["flipped"] = (table["is_before"] * table["is_after"] < 0) & significant[0] & significant[1]
    values = [f"{name}_{when}" for when in ("before", "after") for name in ("is", "se")]
    return table[[*_ENTRY, *values, "w_init_before", "w_init_after", "flipped"]]


def _with_errors(tally: Tally, settings: AnalysisSettings) -> pd.DataFrame:
    """IS and its standard error; columns: model, subject, source_axis, target_axis, is, w_init, se."""
    analysis = Analysis(tally, settings)
    return analysis.matrices[[*_ENTRY, "is", "w_init"]].assign(se=analysis.uncertainty["se"])  # the same rows


def flip_summary(table: pd.DataFrame) -> pd.DataFrame:
    """How much D* changes, by model, from the rows of `flips`.

    Columns: model, `entries` (defined before and after), `flipped` (how many of them), `share`, and the flip whose IS
    changes most: subject, source_axis, target_axis, is_before, is_after ("" and NaN if nothing flips).
    """
    rows = []
    for model, group in table.groupby("model", sort=False):
        defined, flipped = group.dropna(subset=["is_before", "is_after"]), group[group["flipped"]]
        share = len(flipped) / len(defined) if len(defined) else np.nan
        strongest: tuple[object, ...] = ("", "", "", np.nan, np.nan)
        if len(flipped):
            at = int(np.argmax(np.abs(flipped["is_before"] - flipped["is_after"])))
            strongest = tuple(flipped.iloc[at][[*_ENTRY[1:], "is_before", "is_after"]])
        rows.append((model, len(defined), len(flipped), share, *strongest))
    return pd.DataFrame(rows, columns=["model", "entries", "flipped", "share", *_ENTRY[1:], "is_before", "is_after"])
