"""Mitigations as mitigation.parquet has them: its columns, its cases, and what its rows may not say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from seesaw.results.errors import RunDirectoryError, nearest
from seesaw.results.store.parquet import plain_table

__all__ = [
    "CLOSE",
    "OUTCOMES",
    "STRATEGIES",
    "TOLERANCE",
    "Case",
    "Key",
    "Outcome",
    "StepRow",
    "cases_of",
    "is_reached",
    "mitigation_schema",
    "read_mitigation",
    "read_parquet",
    "strategies_among",
    "typed",
    "weighted_sum",
]

Outcome = Literal["reached", "no_gain", "exhausted", "max_steps", "undefined"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
#: Every strategy of Seesaw's own, and why it takes the axis that it takes. A user's says it nowhere.
STRATEGIES: Mapping[str, str] = {
    "greedy": "the axis, chosen or not, with the largest predicted gain gamma",
    "all": "every chosen axis in order, whatever it gains, to the last",
    "own": "the chosen axis whose own bias weighs most, whatever it does to the others",
    "random": "the chosen axes in random order",
}
Key = tuple[str, str, str, str]  #: model, subject, case, strategy: what tells a case from all others
CLOSE = 1e-6  #: by which sums and products of float64 may miss
TOLERANCE = 1e-9  #: two gains or distances that differ by less are equal: the last bits of a sum decide nothing


@dataclass(frozen=True)
class StepRow:
    """One row of mitigation.parquet. Numbers are NaN where they are not known."""

    axis: str  #: mitigated at this step; "" at step 0, the state before any
    gamma: float  #: predicted gain: by how much tau was to fall
    predicted: float  #: tau that gamma predicts
    tau: float  #: measured after the step
    tau_se: float  #: its standard error, 0 where tau is exact
    w: Mapping[str, float]  #: by axis, measured after the step
    prompts: tuple[str, ...]
    alerts: tuple[str, ...]
    images: float  #: in whole batches, looked at for the step and for no earlier one; made now or before


@dataclass(frozen=True)
class Case:
    """The mitigation of one subject on one model with one priority vector (`case`, in words) by one strategy."""

    model: str
    subject: str
    case: str
    strategy: str
    chosen: Mapping[str, float]  #: priority by axis
    epsilon: float
    outcome: str  #: one of OUTCOMES; "" while unfinished
    course: tuple[StepRow, ...]  #: from step 0 on

    @property
    def key(self) -> Key:
        return self.model, self.subject, self.case, self.strategy

    @property
    def vector(self) -> tuple[str, str, str]:
        """What it has in common with the same case by another strategy."""
        return self.model, self.subject, self.case

    @property
    def axes(self) -> tuple[str, ...]:
        """All that w is known of, in the order of the table."""
        return tuple(self.course[0].w)

    @property
    def mitigated(self) -> tuple[str, ...]:
        """Axes in the order of their mitigation."""
        return tuple(step.axis for step in self.course[1:])

    @property
    def steps(self) -> int:
        return len(self.course) - 1

    @property
    def tau(self) -> float:
        """tau after the last step."""
        return self.course[-1].tau

    @property
    def images(self) -> float:
        """Images that its steps looked at; NaN where that is not recorded."""
        return sum(step.images for step in self.course)

    @property
    def counts(self) -> bool:
        """Whether the case is in any mean: it is finished, and all that it was decided on is defined."""
        return self.outcome not in ("", "undefined") and not math.isnan(self.tau)

    @property
    def reached(self) -> bool:
        return is_reached(self.tau, self.epsilon)

    @property
    def priorities(self) -> float:
        """Their sum; tau is on the scale of w where this is 1."""
        return math.fsum(self.chosen.values())

    @property
    def uneven(self) -> bool:
        """Whether its tau is on another scale than w."""
        return abs(self.priorities - 1) > CLOSE

    @property
    def outside(self) -> tuple[str, ...]:
        """Mitigated axes that were not chosen."""
        return tuple(axis for axis in self.mitigated if axis not in self.chosen)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to read this case's figures right."""
        return tuple(
            note
            for holds, note in (
                (self.outcome == "", "unfinished: in no mean"),
                (self.outcome != "" and not self.counts, "undefined: in no mean"),
                (self.uneven, f"priorities sum to {self.priorities:.2f}"),
                (self.counts and not self.reached, f"ends above epsilon {self.epsilon:g}"),
                (bool(self.outside), f"outside the chosen axes: {', '.join(self.outside)}"),
            )
            if holds
        )


def weighted_sum(values: ArrayLike, priority: ArrayLike) -> NDArray[np.float64]:
    """<values, priority> of n axes: values (..., n), priority (n,) -> (...). tau is that of w, gamma that of IS."""
    return np.asarray((np.asarray(values, np.float64) * np.asarray(priority, np.float64)).sum(-1), np.float64)


def is_reached(tau: float, epsilon: float) -> bool:
    """Whether tau is at most epsilon."""
    return tau <= epsilon + TOLERANCE


def strategies_among(cases: Iterable[Case]) -> list[str]:
    """The strategies of `cases`: Seesaw's own in their order, then the user's by name."""
    names = {case.strategy for case in cases}
    return [*(name for name in STRATEGIES if name in names), *sorted(names - STRATEGIES.keys())]


def mitigation_schema(axes: Iterable[str]) -> pa.Schema:
    """The columns of mitigation.parquet for a dataset of `axes`: a row a step, `w_<axis>` for each of them.

    Numbers may be NaN and `images` null where they are not known; nothing else may be missing.
    """
    return pa.schema(
        [
            *((name, pa.string()) for name in ("model", "subject", "case", "strategy")),
            ("step", pa.int64()),
            ("axis", pa.string()),
            *((name, pa.float64()) for name in ("tau", "tau_se", "gamma", *(f"w_{axis}" for axis in axes))),
            ("prompts", pa.list_(pa.string())),
            ("images", pa.int64()),
            ("outcome", pa.string()),
            ("alerts", pa.list_(pa.string())),
            ("chosen", pa.string()),
            ("epsilon", pa.float64()),
        ]
    )


def read_mitigation(path: Path) -> list[Case]:
    """The cases of the mitigation.parquet at `path`. Raises RunDirectoryError naming the file and what is wrong."""
    return cases_of(read_parquet(path), f"'{path}'")


def read_parquet(path: Path) -> pa.Table:
    """The table of a mitigation at `path`. Raises RunDirectoryError if it is not there, or no table."""
    try:
        return plain_table(path)
    except FileNotFoundError:
        raise RunDirectoryError(f"'{path.parent}' holds no {path.name}; `seesaw mitigate` makes it") from None
    except (pa.ArrowException, OSError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as a table: {str(error).splitlines()[0]}; delete it, and run `seesaw mitigate` "
            "again, which makes it from the store"
        ) from None


def cases_of(table: pa.Table, where: str = "mitigation.parquet") -> list[Case]:
    """The cases of a table of `mitigation_schema`, in their order, steps sorted, all checked.

    Further columns are ignored.

    Raises:
        RunDirectoryError: a column is missing or of another type, or the rows contradict each other; `where` names the
            table.
    """
    axes = [name[2:] for name in table.column_names if name.startswith("w_")]
    if not axes:
        raise RunDirectoryError(f"{where} has no column w_<axis>, so no axis")
    rows = typed(table, mitigation_schema(axes), where).to_pylist()
    by_key: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault((row["model"], row["subject"], row["case"], row["strategy"]), []).append(row)
    found: list[Case] = []
    vectors: dict[tuple[str, str, str], Case] = {}
    for key, mine in by_key.items():
        mine.sort(key=lambda row: row["step"])
        fault = next(_faults(mine, axes), None)
        case = None if fault else _case(mine, axes)
        if case is not None:
            first = vectors.setdefault(case.vector, case)
            fault = next(_contradictions(case, first), None)
        if case is None or fault:
            model, subject, name, strategy = key
            raise RunDirectoryError(f"{where}: {subject} on {model}, case '{name}', {strategy}: {fault}")
        found.append(case)
    return found


def typed(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """The columns of `schema`, in its order. Raises RunDirectoryError for one that is missing, of another type, or has
    gaps where it may not."""
    for name in schema.names:
        if table.column_names.count(name) != 1:
            has = "two columns" if name in table.column_names else "no column"
            raise RunDirectoryError(f"{where} has {has} '{name}'{nearest(name, table.column_names)}")
    columns = []
    for field in schema:
        try:
            columns.append(table[field.name].cast(field.type))
        except pa.ArrowException as error:
            raise RunDirectoryError(f"{where}, column '{field.name}', holds what is no {field.type}: {error}") from None
        if columns[-1].null_count and field.name != "images" and not pa.types.is_floating(field.type):
            raise RunDirectoryError(f"{where}, column '{field.name}', has gaps")
    return pa.table(columns, schema=schema)


def _faults(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Iterator[str]:
    """What is wrong with the rows of one case, which are sorted by step."""
    if not rows[0]["strategy"]:
        yield "has no strategy"
    steps = [row["step"] for row in rows]
    if steps != list(range(len(rows))):
        yield f"has the steps {', '.join(map(str, steps))}; they must be 0, 1, 2, ..., each once"
    for row in rows:
        at, axis, before = f"step {row['step']}", row["axis"], [r["axis"] for r in rows[: row["step"]]]
        if not row["step"] and (axis or not math.isnan(_number(row["gamma"]))):
            yield "step 0 is before any mitigation: its axis must be '' and its gamma NaN"
        if row["step"] and axis not in axes:
            yield f"{at} mitigates '{axis}', which is no axis of the table{nearest(axis, axes)}"
        if row["step"] and axis in before:
            yield f"{at} mitigates '{axis}' again"
        if row["outcome"] and row is not rows[-1]:
            yield f"{at} has the outcome '{row['outcome']}', but is not the last"
        if row["outcome"] not in ("", *OUTCOMES):
            yield f"{at} has the outcome '{row['outcome']}'{nearest(row['outcome'], OUTCOMES)}"
        if (row["chosen"], row["epsilon"]) != (rows[0]["chosen"], rows[0]["epsilon"]):
            yield f"{at} has other priorities, or another epsilon, than step 0"
        if not math.isfinite(_number(row["epsilon"])):
            yield f"{at} has no epsilon"
        if _number(row["tau_se"]) < 0:
            yield f"{at} has a standard error below 0, {row['tau_se']:.6g}"
        if _number(row["images"]) < 0:
            yield f"{at} has looked at {row['images']} images"
        if None in row["prompts"] or None in row["alerts"]:
            yield f"{at} has a gap in its prompts or alerts"
    yield from _wrong_priorities(rows[0]["chosen"], axes)


def _wrong_priorities(text: str, axes: Sequence[str]) -> Iterator[str]:
    try:
        chosen = json.loads(text)
    except ValueError:
        chosen = None
    if not isinstance(chosen, dict) or not chosen:
        yield f"chosen is '{text}', not JSON of priorities by axis"
        return
    for axis, priority in chosen.items():
        if axis not in axes:
            yield f"chosen names '{axis}', which is no axis of the table{nearest(axis, axes)}"
        if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 <= priority < math.inf:
            yield f"the priority of {axis} is {priority!r}, not a number from 0 up"


def _contradictions(case: Case, first: Case) -> Iterator[str]:
    """What a case's numbers say against each other, or against the `first` case of its name, of another strategy."""
    if (case.chosen, case.epsilon) != (first.chosen, first.epsilon):
        yield f"has other priorities, or another epsilon, than {first.strategy} under the same case"
    for number, step in enumerate(case.course):
        tau = float(weighted_sum([step.w[axis] for axis in case.chosen], list(case.chosen.values())))
        if abs(step.tau - tau) > CLOSE or (math.isnan(step.tau) and not math.isnan(tau)):
            yield f"step {number} has tau {step.tau:.6g}, but its w and priorities make {tau:.6g}"
    if case.outcome == "reached" and not case.reached:
        yield f"is said to have reached epsilon {case.epsilon:g}, but its last tau is {case.tau:.6g}"


def _case(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Case:
    first, taus = rows[0], [math.nan, *(_number(row["tau"]) for row in rows)]
    return Case(
        **{name: first[name] for name in ("model", "subject", "case", "strategy", "epsilon")},
        chosen=json.loads(first["chosen"]),
        outcome=rows[-1]["outcome"],
        course=tuple(
            StepRow(
                axis=row["axis"],
                gamma=_number(row["gamma"]),
                predicted=before - _number(row["gamma"]),
                tau=_number(row["tau"]),
                tau_se=_number(row["tau_se"]),
                w={axis: _number(row[f"w_{axis}"]) for axis in axes},
                prompts=tuple(row["prompts"]),
                alerts=tuple(row["alerts"]),
                images=_number(row["images"]),
            )
            for row, before in zip(rows, taus, strict=False)
        ),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
