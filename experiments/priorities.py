"""Which axes matter to a user, and how much: priorities are checked, read from a CSV, or drawn as the paper did."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Literal

from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.sensitivity import ROUNDING
from seesaw.results.errors import ConfigError, nearest

__all__ = ["check_epsilon", "check_margin", "check_max_steps", "check_priority", "draw_priority", "read_priorities"]

_MOST = 1e100  #: the largest priority: far above what anybody writes, and so small that no sum overflows
_SUBJECT_COLUMNS = ("subject", "occupation")  #: what the column of subjects may be called; the second is the paper's


def check_priority(dataset: Dataset, priority: object, normalize: bool = False) -> dict[str, float]:
    """The priorities of the chosen axes, in the order written; they sum to 1. An axis with priority 0 is not chosen.

    Numbers may be rounded to six decimals. `normalize` divides them by their sum, which the paper's tables need (three
    times 0.33, five times 0.33). Raises ConfigError if `priority` is not a mapping, names an unknown axis, does not sum
    to 1, or has a value that is not a number, or is NaN, infinite or negative.
    """
    if not isinstance(priority, Mapping) or not priority:
        raise ConfigError(f"a priority is {priority!r}; it must be a mapping of axes to numbers that sum to 1")
    names = [axis.name for axis in dataset.axes]
    for axis, weight in priority.items():
        if axis not in names:
            raise ConfigError(f"priorities: dataset '{dataset.name}' has no axis '{axis}'{nearest(axis, names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"the priority of axis '{axis}' is {weight!r}; it must be a number")
        if not 0 <= weight <= _MOST:
            raise ConfigError(
                f"the priority of axis '{axis}' is {str(weight)[:20]}; it must be 0 or more, and all must sum to 1"
            )
    total = math.fsum(priority.values())
    if total <= 0:
        raise ConfigError("all priorities are 0; those of the chosen axes must sum to 1")
    if not normalize and abs(total - 1) > ROUNDING * max(2, len(priority)) + 1e-9:
        raise ConfigError(
            f"priorities {_as_text(priority)} sum to {total:.6g}, not 1; correct them, or set `normalize: true`, "
            "which divides them by their sum"
        )
    return {axis: weight / total if normalize else float(weight) for axis, weight in priority.items() if weight > 0}


def check_epsilon(value: object) -> float:
    """`value` as a threshold of tau. Raises ConfigError unless it is a number from 0 to 1.

    With 0, a mitigation goes on as long as any axis gains. 1 is the tau of a model that shows one attribute per axis.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"epsilon is {value!r}; it must be a number from 0 to 1 (the paper's is 0.35)")
    return float(value)


def check_margin(value: object) -> float:
    """`value` as a margin below epsilon. Raises ConfigError unless it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"margin is {value!r}; it must be a number from 0 to 1, by which tau must be below epsilon")
    return float(value)


def check_max_steps(value: object) -> int | Literal["chosen"] | None:
    """`value` as a limit of steps: a number, `chosen` (as many as axes were chosen), or None. ConfigError otherwise."""
    if value is None or value == "chosen":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"max_steps is {value!r}; it must be 1 or more, 'chosen' for as many as axes were chosen, or null for as "
            "many as there are axes"
        )
    return value


def read_priorities(path: str | Path, dataset: Dataset, normalize: bool = False) -> list[tuple[str, dict[str, float]]]:
    """(subject, priority) of every row of a CSV file, in the file's order; a subject may have several rows.

    The file has a column `subject` (or `occupation`) and one of two forms. Wide: a column for each axis, with a number
    or nothing in each field. Pairs, as in the paper's tables: a column `priority` with fields such as
    "age:0.33 emotion:0.33"; other columns are ignored. Raises ConfigError, which names file and line, if the file
    cannot be read as CSV or has no rows, for an unknown subject, and whenever `check_priority` does.
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
    column = next((name for name in _SUBJECT_COLUMNS if name in columns), None)
    if column is None:
        raise ConfigError(f"{path}: has no column 'subject'{nearest('subject', columns)}")
    if not rows:
        raise ConfigError(f"{path}: has no rows")
    if "priority" not in columns:
        _check_wide(path, dataset, [name for name in columns if name != column])
    priorities = []
    for line, row in rows:
        try:
            if len(row) != len(columns):  # the csv module puts fields beyond the last column under the key None
                raise ConfigError("has more fields than the first line has columns")
            subject = row[column] or ""
            if subject not in dataset.subjects:
                # the paper's second table shortens names: "teacher", "sales", "computer"
                longer = [name for name in dataset.subjects if subject in name.split()]
                hint = f"; did you mean '{longer[0]}'?" if longer else nearest(subject, dataset.subjects)
                raise ConfigError(f"dataset '{dataset.name}' has no subject '{subject}'{hint}")
            priority = _pairs(row["priority"]) if "priority" in columns else _wide(row, column)
            priorities.append((subject, check_priority(dataset, priority, normalize)))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {line}: {error}") from error
    return priorities


def draw_priority(dataset: Dataset, subject: str, seed: int) -> dict[str, float]:
    """A priority drawn as in the paper: 2 to 5 random axes of equal weight. It depends on (seed, subject) alone.

    Raises ConfigError for a dataset with a single axis.
    """
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
                f"{path}: column '{name}' is not an axis of dataset '{dataset.name}'"
                f"{nearest(name, [*names, 'priority'])}"
            )


def _wide(row: Mapping[str, str | None], subject: str) -> dict[str, float]:
    return {axis: _number(axis, text) for axis, text in row.items() if axis != subject and text and text.strip()}


def _pairs(text: str | None) -> dict[str, float]:
    priority: dict[str, float] = {}
    for pair in (text or "").split():
        axis, colon, weight = pair.partition(":")
        if not colon or axis in priority:
            raise ConfigError(f"'{pair}' in a priority {'names an axis twice' if colon else 'is not axis:number'}")
        priority[axis] = _number(axis, weight)
    return priority


def _number(axis: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"the priority of axis '{axis}' is '{text}'; it must be a number") from error


def _as_text(priority: Mapping[str, float]) -> str:
    return ", ".join(f"{axis} {weight:g}" for axis, weight in priority.items())
