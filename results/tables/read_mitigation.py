"""Reading mitigation.parquet: its rows become cases, after a check that no two of them contradict each other."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from seesaw.results.errors import RunDirectoryError, nearest
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_table
from seesaw.results.tables.mitigation import (
    CLOSE,
    JUDGED,
    OUTCOMES,
    Case,
    Key,
    StepRow,
    probability_reached,
    weighted_sum,
)
from seesaw.results.tables.schemas import mitigation_schema

__all__ = ["cases_of", "read_mitigation", "read_parquet", "typed"]


def read_mitigation(path: Path) -> list[Case]:
    """The cases of the mitigation.parquet at `path`. Raises RunDirectoryError naming the file and what is wrong."""
    return cases_of(read_parquet(path), f"'{path}'")


def read_parquet(path: Path) -> pa.Table:
    """The table of a mitigation at `path`. Raises RunDirectoryError if it is missing or is not a table."""
    try:
        return plain_table(path)
    except FileNotFoundError:
        raise RunDirectoryError(f"'{path.parent}' holds no {path.name}; `seesaw mitigate` makes it") from None
    except (pa.ArrowException, OSError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as a table: {first_line(error)}; delete it, and run `seesaw mitigate` again, "
            "which makes it from the store"
        ) from None


def cases_of(table: pa.Table, where: str = "mitigation.parquet") -> list[Case]:
    """The cases in a table of `mitigation_schema`, in the order of the table, their steps sorted, all of them checked.

    Further columns are ignored. `where` names the table in errors.

    Raises:
        RunDirectoryError: a column is missing or has another type, or rows contradict each other.
    """
    axes = [name[2:] for name in table.column_names if name.startswith("w_")]
    if not axes:
        raise RunDirectoryError(f"{where} has no column w_<axis>, so no axis")
    rows = typed(_judged(table), mitigation_schema(axes), where).to_pylist()
    by_key: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault((row["model"], row["subject"], row["case"], row["strategy"]), []).append(row)
    cases: list[Case] = []
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
        cases.append(case)
    return cases


def _judged(table: pa.Table) -> pa.Table:
    """The table, with the columns that 0.1.0 did not write: all steps were judged on the images that decisions saw."""
    if "judged" not in table.column_names:
        table = table.append_column("judged", pa.repeat("shared", len(table)))
    if "p_reached" not in table.column_names:
        table = table.append_column("p_reached", pa.nulls(len(table), pa.float64()))
    return table


def typed(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """The columns of `schema`, in its order.

    Raises:
        RunDirectoryError: a column is missing, has another type, or has a gap and is neither `images` nor a number.
    """
    for name in schema.names:
        if table.column_names.count(name) != 1:
            has = "two columns" if name in table.column_names else "no column"
            raise RunDirectoryError(f"{where} has {has} '{name}'{nearest(name, table.column_names)}")
    columns = []
    for field in schema:
        try:
            columns.append(table[field.name].cast(field.type))
        except pa.ArrowException as error:
            raise RunDirectoryError(
                f"{where}, column '{field.name}', holds values that are not {field.type}: {error}"
            ) from None
        if columns[-1].null_count and field.name != "images" and not pa.types.is_floating(field.type):
            raise RunDirectoryError(f"{where}, column '{field.name}', has gaps")
    return pa.table(columns, schema=schema)


def _faults(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Iterator[str]:
    """What is wrong with the rows of one case; they are sorted by step."""
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
            yield f"{at} mitigates '{axis}', which is not an axis of the table{nearest(axis, axes)}"
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
        if row["judged"] not in JUDGED:
            yield f"{at} is judged on '{row['judged']}' images{nearest(row['judged'], JUDGED)}"
        if _number(row["p_reached"]) < 0 or _number(row["p_reached"]) > 1:
            yield f"{at} has reached epsilon with a probability of {row['p_reached']:.6g}"
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
            yield f"chosen names '{axis}', which is not an axis of the table{nearest(axis, axes)}"
        if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 <= priority < math.inf:
            yield f"the priority of {axis} is {priority!r}, not a number from 0 up"


def _contradictions(case: Case, first: Case) -> Iterator[str]:
    """Where `case` contradicts itself, or `first`, which is the same case under another strategy."""
    if (case.chosen, case.epsilon) != (first.chosen, first.epsilon):
        yield f"has other priorities, or another epsilon, than {first.strategy} under the same case"
    for number, step in enumerate(case.trajectory):
        tau = float(weighted_sum([step.w[axis] for axis in case.chosen], list(case.chosen.values())))
        if abs(step.tau - tau) > CLOSE or (math.isnan(step.tau) and not math.isnan(tau)):
            yield f"step {number} has tau {step.tau:.6g}, but its w and priorities make {tau:.6g}"
    if case.outcome == "reached" and not case.reached:
        yield f"has the outcome 'reached' for epsilon {case.epsilon:g}, but its last tau is {case.tau:.6g}"


def _case(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Case:
    first, taus = rows[0], [math.nan, *(_number(row["tau"]) for row in rows)]
    return Case(
        **{name: first[name] for name in ("model", "subject", "case", "strategy", "epsilon")},
        chosen=json.loads(first["chosen"]),
        outcome=rows[-1]["outcome"],
        trajectory=tuple(
            StepRow(
                axis=row["axis"],
                gamma=_number(row["gamma"]),
                predicted=before - _number(row["gamma"]),
                tau=_number(row["tau"]),
                tau_se=_number(row["tau_se"]),
                judged=row["judged"],
                p_reached=_number(row["p_reached"])
                if row["p_reached"] is not None
                else probability_reached(_number(row["tau"]), _number(row["tau_se"]), row["epsilon"]),
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
