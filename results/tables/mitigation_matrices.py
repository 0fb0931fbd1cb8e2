"""Reading mitigation_matrices.parquet: the matrix of the axes that each step of a mitigation could mitigate next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seesaw.results.errors import RunDirectoryError
from seesaw.results.tables.mitigation import CLOSE, Case, Key, weighted_sum
from seesaw.results.tables.read_mitigation import read_parquet, typed
from seesaw.results.tables.schemas import MITIGATION_MATRICES

__all__ = ["Matrix", "matrices_of", "read_matrices"]


@dataclass(frozen=True)
class Matrix:
    """S at one step: row x is the candidate that would be mitigated, column y the axis that this would change."""

    candidates: tuple[str, ...]
    axes: tuple[str, ...]
    sensitivity: NDArray[np.float64]  #: (c, n), IS; NaN where undefined
    w_init: NDArray[np.float64]  #: (n,), w before
    w_after: NDArray[np.float64]  #: (c, n), w under the counterfactuals of the candidate

    def gamma(self, priority: Mapping[str, float]) -> dict[str, float]:
        """Predicted gain of every candidate: the sum of priority x IS over the axes of `priority`."""
        chosen = [self.axes.index(axis) for axis in priority]
        gains = weighted_sum(self.sensitivity[:, chosen], list(priority.values()))
        return dict(zip(self.candidates, gains.tolist(), strict=True))


def read_matrices(path: Path, cases: Sequence[Case]) -> dict[Key, dict[int, Matrix]]:
    """The matrices of `cases` in the mitigation_matrices.parquet at `path`, by case and step.

    Raises:
        RunDirectoryError: the file is missing or is not such a table, or it does not belong to `cases`.
    """
    return matrices_of(read_parquet(path), cases, f"'{path}'")


def matrices_of(table: pa.Table, cases: Sequence[Case], where: str) -> dict[Key, dict[int, Matrix]]:
    """The matrices in a table of `MITIGATION_MATRICES`, as `read_matrices`; `where` names the table in errors."""
    case_of = {case.key: case for case in cases}
    matrices: dict[Key, dict[int, Matrix]] = {}
    frame = typed(table, MITIGATION_MATRICES, where).to_pandas()
    for (model, subject, name, strategy, step), rows in frame.groupby(MITIGATION_MATRICES.names[:5], sort=False):
        key, entries = (model, subject, name, strategy), rows.to_dict("records")
        case = case_of.get(key)
        fault = (
            "has a matrix, but is not a case of mitigation.parquet"
            if case is None
            else next(_faults(entries, case, int(step)), None)
        )
        matrix = None if fault else _matrix(entries)
        if case is None or matrix is None or (fault := next(_contradictions(matrix, case, int(step)), None)):
            raise RunDirectoryError(f"{where}: {subject} on {model}, case '{name}', {strategy}, step {step}: {fault}")
        matrices.setdefault(key, {})[int(step)] = matrix
    return matrices


def _faults(entries: Sequence[Mapping[str, Any]], case: Case, step: int) -> Iterator[str]:
    """Why the rows of one step are not a matrix of `case`."""
    if not 0 <= step <= case.steps:
        yield f"has a matrix, but mitigation.parquet has the steps 0 to {case.steps} of this case"
        return
    sources = dict.fromkeys(entry["source_axis"] for entry in entries)
    pairs = [(entry["source_axis"], entry["target_axis"]) for entry in entries]
    done = case.mitigated[:step]
    for source in sources:
        if source not in case.axes:
            yield f"'{source}' is a candidate, but not an axis of mitigation.parquet"
        if source in done:
            yield f"'{source}' is a candidate, but was mitigated before"
    if sorted(pairs) != sorted((source, axis) for source in sources for axis in case.axes):
        yield "does not have one row for every candidate and every axis"


def _contradictions(matrix: Matrix, case: Case, step: int) -> Iterator[str]:
    """Where a matrix contradicts itself or mitigation.parquet."""
    w = np.array([case.trajectory[step].w[axis] for axis in matrix.axes])
    # a choice is made on the shared images, also where the step was judged on fresh ones
    if case.trajectory[step].judged == "shared" and (abs(matrix.w_init - w) > CLOSE).any():
        yield "its w_init differ from the w in mitigation.parquet"
    if (abs(matrix.w_init - matrix.w_after - matrix.sensitivity) > CLOSE).any():
        yield "is differs from w_init - w_after"
    if step < case.steps:
        taken, gains = case.trajectory[step + 1], matrix.gamma(case.chosen)
        if taken.axis not in gains:
            yield f"mitigation.parquet mitigates '{taken.axis}' next, which is not a candidate here"
        elif abs(gains[taken.axis] - taken.gamma) > CLOSE:
            yield f"gamma of {taken.axis} is {gains[taken.axis]:.6g} here, {taken.gamma:.6g} in mitigation.parquet"


def _matrix(entries: Sequence[Mapping[str, Any]]) -> Matrix:
    candidates, axes = (tuple(dict.fromkeys(e[name] for e in entries)) for name in ("source_axis", "target_axis"))
    at = {(entry["source_axis"], entry["target_axis"]): entry for entry in entries}
    values = {
        name: np.array([[at[x, y][name] for y in axes] for x in candidates], np.float64)
        for name in ("is", "w_init", "w_after")
    }
    return Matrix(candidates, axes, values["is"], values["w_init"][0], values["w_after"])
