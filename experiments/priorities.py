"""Which axes matter to a user, and how much: priorities checked, read from a CSV, or drawn as the paper did."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.sensitivity import ROUNDING
from seesaw.results.errors import ConfigError, nearest

__all__ = ["check_epsilon", "check_priority", "draw_priority", "read_priorities"]

_MOST = 1e100  #: a priority; far above what anybody writes, and far below where sums end
_SUBJECT = ("subject", "occupation")  #: names of the column of subjects; the second is the paper's


def check_priority(dataset: Dataset, given: object, normalize: bool = False) -> dict[str, float]:
    """The chosen axes' priorities, in the order written, summing to 1; an axis of 0 is not chosen.

    Numbers may be rounded to six decimals. `normalize` divides by the sum, which the paper's tables need (three times
    0.33, five times 0.33). Raises ConfigError for what is no mapping, an unknown axis, what is no number, NaN, infinite
    or negative, and another sum.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"a priority is {given!r}; it is a mapping of axes to numbers that sum to 1")
    names = [axis.name for axis in dataset.axes]
    for axis, weight in given.items():
        if axis not in names:
            raise ConfigError(f"a priority names no axis of dataset '{dataset.name}': '{axis}'{nearest(axis, names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"the priority of axis '{axis}' is {weight!r}; it is a number")
        if not 0 <= weight <= _MOST:
            raise ConfigError(f"the priority of axis '{axis}' is {str(weight)[:20]}; it is 0 or more, and all sum to 1")
    total = math.fsum(given.values())
    if total <= 0:
        raise ConfigError("all priorities are 0; the chosen axes' sum to 1")
    if not normalize and abs(total - 1) > ROUNDING * max(2, len(given)) + 1e-9:
        raise ConfigError(
            f"priorities {_written(given)} sum to {total:.6g}, not 1; mend them, or set `normalize: true`, "
            "which divides them by their sum"
        )
    return {axis: weight / total if normalize else float(weight) for axis, weight in given.items() if weight > 0}


def check_epsilon(value: object) -> float:
    """`value` as a threshold of tau. Raises ConfigError unless it is a number from 0 to 1.

    0 goes on for as long as anything gains; 1 is the tau of a model that shows one attribute an axis.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"epsilon is {value!r}; it is a number from 0 to 1, the paper's is 0.35")
    return float(value)


def read_priorities(path: str | Path, dataset: Dataset, normalize: bool = False) -> list[tuple[str, dict[str, float]]]:
    """(subject, priority) of every row of a CSV, in its order; a subject may have several rows.

    Two forms, both with a column `subject` (or `occupation`). Wide: a column an axis, a number or nothing in each.
    Pairs, the paper's tables': a column `priority` that reads "age:0.33 emotion:0.33"; other columns are ignored.
    Raises ConfigError that names the line, for a file that is none, an unknown subject, and as `check_priority`.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or ())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {error}") from error
    column = next((name for name in _SUBJECT if name in columns), None)
    if column is None:
        raise ConfigError(f"{path}: has no column 'subject'{nearest('subject', columns)}")
    if not rows:
        raise ConfigError(f"{path}: has no rows")
    if "priority" not in columns:
        _check_wide(path, dataset, [name for name in columns if name != column])
    found = []
    for line, row in rows:
        try:
            if len(row) != len(columns):  # what has no column goes under None
                raise ConfigError("has more fields than the first line has columns")
            subject = row[column] or ""
            if subject not in dataset.subjects:
                # the paper's second table shortens names: "teacher", "sales", "computer"
                longer = [name for name in dataset.subjects if subject in name.split()]
                hint = f"; did you mean '{longer[0]}'?" if longer else nearest(subject, dataset.subjects)
                raise ConfigError(f"dataset '{dataset.name}' has no subject '{subject}'{hint}")
            given = _pairs(row["priority"]) if "priority" in columns else _wide(row, column)
            found.append((subject, check_priority(dataset, given, normalize)))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {line}: {error}") from error
    return found


def draw_priority(dataset: Dataset, subject: str, seed: int) -> dict[str, float]:
    """A priority as the paper drew them: 2 to 5 axes at random, of equal weight. Depends on (seed, subject) alone."""
    names = [axis.name for axis in dataset.axes]
    if len(names) < 2:
        raise ConfigError(f"dataset '{dataset.name}' has {len(names)} axis; priorities are drawn over two or more")
    random = Random(f"{seed}\x1f{subject}")
    size = min(2 + int(4 * random.random()), len(names))
    drawn = sorted(names, key=lambda _: random.random())[:size]
    return {name: 1 / size for name in names if name in drawn}


def _check_wide(path: Path, dataset: Dataset, columns: Iterable[str]) -> None:
    names = [axis.name for axis in dataset.axes]
    for name in columns:
        if name not in names:
            raise ConfigError(
                f"{path}: column '{name}' is no axis of dataset '{dataset.name}'{nearest(name, [*names, 'priority'])}"
            )


def _wide(row: Mapping[str, str | None], subject: str) -> dict[str, float]:
    return {axis: _number(axis, text) for axis, text in row.items() if axis != subject and text and text.strip()}


def _pairs(text: str | None) -> dict[str, float]:
    given: dict[str, float] = {}
    for pair in (text or "").split():
        axis, colon, weight = pair.partition(":")
        if not colon or axis in given:
            raise ConfigError(f"'{pair}' in a priority {'names an axis twice' if colon else 'is not axis:number'}")
        given[axis] = _number(axis, weight)
    return given


def _number(axis: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"the priority of axis '{axis}' is '{text}'; it is a number") from error


def _written(given: Mapping[str, float]) -> str:
    return ", ".join(f"{axis} {weight:g}" for axis, weight in given.items())
