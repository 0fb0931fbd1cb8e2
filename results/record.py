"""What a run directory holds, read and checked, for whoever shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from results.errors import RunDirectoryError
from results.tables import DISTRIBUTIONS, FAILURES, MATRICES, UNCERTAINTY, about_of

__all__ = ["FIRST", "Record", "read_record", "read_run"]

FIRST = 8  #: images of every cell that may serve as examples: those of its first batch
_CELL = ["model", "subject", "source_axis", "source_value"]
_EXAMPLE = [*_CELL, "image", "axis", "answer", "prompt", "image_key"]
_ENTRY = ["model", "subject", "source_axis", "target_axis"]


@dataclass(frozen=True)
class Record:
    """A run that has been measured.

    `matrix` has the columns of matrices.parquet, then se, low, high; `cells` (model, subject, source_axis,
    source_value, asked, dropped) the images looked at and those without a person; `examples` what
    answers.parquet says about the first eight images of every cell; `answers` how many attributes were read in all.
    """

    path: Path
    run: Mapping[str, Any]  #: run.json
    config: Mapping[str, Any]  #: config.yaml
    about: Mapping[str, Any]  #: metric, targets and intervention, as the tables themselves say
    matrix: pd.DataFrame
    distributions: pd.DataFrame
    failures: pd.DataFrame
    cells: pd.DataFrame
    examples: pd.DataFrame
    answers: int

    @property
    def models(self) -> Mapping[str, str]:
        """Identity of every model by its name."""
        models: Mapping[str, str] = self.run["fingerprint"]["models"]
        return models


def read_run(run: Path) -> Record:
    """Read the run directory `run`.

    Raises:
        RunDirectoryError: it is none, nothing has been measured in it yet, or a file of it cannot be read.
    """
    record = _run_json(run)
    matrix = _frame(run, "matrices", MATRICES.names)
    spread = _frame(run, "uncertainty", [*_ENTRY, "se", "low", "high"], UNCERTAINTY)
    merged = matrix.merge(spread, how="left", on=_ENTRY)
    if matrix.empty:
        raise RunDirectoryError(
            f"'{run}/matrices.parquet' holds no matrix: no intervention was observed; {_again(run)}"
        )
    if len(merged) != len(matrix):
        raise RunDirectoryError(f"'{run}/uncertainty.parquet' does not belong to the matrices beside it; {_again(run)}")
    people = _table(run, "answers", [*_CELL, "answer"], [("axis", "=", "person")])
    return Record(
        path=run,
        run=record,
        config=_config(run),
        about=about_of(run / "matrices.parquet"),
        matrix=merged,
        distributions=_frame(run, "distributions", DISTRIBUTIONS.names),
        failures=_frame(run, "failures", FAILURES.names),
        cells=_cells(run, people),
        examples=_words(_table(run, "answers", _EXAMPLE, [("image", "<", FIRST)])),
        answers=pq.read_metadata(run / "answers.parquet").num_rows - people.num_rows,
    )


_START_OVER = "; remove the run directory and sweep again: images and answers are in the store, so nothing is lost"


def read_record(path: Path, needed: Sequence[str] = ("state", "fingerprint")) -> dict[str, Any]:
    """run.json of a run directory, with the keys that are `needed`. RunDirectoryError if `path` is no run directory."""
    try:
        record = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirectoryError(f"'{path}' is no run directory: it holds no run.json") from None
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"'{path}/run.json' cannot be read: {error}{_START_OVER}") from None
    if not isinstance(record, dict) or not record.keys() >= set(needed):
        raise RunDirectoryError(f"'{path}/run.json' is no record of a run{_START_OVER}")
    return record


def _run_json(run: Path) -> Mapping[str, Any]:
    record = read_record(run, needed=("fingerprint",))
    fingerprint = record["fingerprint"]
    if (
        not isinstance(fingerprint, dict)
        or not isinstance(fingerprint.get("models"), dict)
        or "seed" not in fingerprint
    ):
        raise RunDirectoryError(
            f"'{run}/run.json' is not a run's record: it lacks the fingerprint, its models or its seed"
        )
    return dict(record)


def _config(run: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirectoryError(f"'{run}' holds no config.yaml; {_again(run)}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunDirectoryError(f"'{run}/config.yaml' cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise RunDirectoryError(f"'{run}/config.yaml' is not a resolved config; {_again(run)}")
    return config


def _table(
    run: Path, name: str, columns: Sequence[str], filters: list[tuple[str, str, object]] | None = None
) -> pa.Table:
    path = run / f"{name}.parquet"
    try:
        return pq.read_table(path, columns=list(columns), filters=filters, partitioning=None)
    except FileNotFoundError:
        raise RunDirectoryError(
            f"'{run}' holds no {name}.parquet, so there is nothing to report yet; {_again(run)}"
        ) from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as the table that it should be: {str(error).splitlines()[0]}; "
            f"delete it, and {_again(run)}, which makes it again from the store"
        ) from None


def _again(run: Path) -> str:
    return f"bring `seesaw sweep {run / 'config.yaml'}` to its end"


def _frame(run: Path, name: str, columns: Sequence[str], schema: pa.Schema | None = None) -> pd.DataFrame:
    table = _table(run, name, columns)
    if schema is not None and any(table.schema.field(c).type != schema.field(c).type for c in columns):
        raise RunDirectoryError(f"'{run}/{name}.parquet' has columns of other types than it should; {_again(run)}")
    return _words(table)


def _words(table: pa.Table) -> pd.DataFrame:
    """A table as a frame in which a missing word is an empty one."""
    frame: pd.DataFrame = table.to_pandas()
    words = [field.name for field in table.schema if pa.types.is_string(field.type)]
    return frame.assign(**{name: frame[name].fillna("") for name in words})


def _cells(run: Path, people: pa.Table) -> pd.DataFrame:
    """Images asked and dropped by cell. Without a person question every image counts, and none is dropped."""
    if people.num_rows:
        images = _words(people).assign(dropped=lambda frame: frame["answer"] == "no")
    else:
        images = _words(_table(run, "answers", [*_CELL, "image"])).drop_duplicates().assign(dropped=False)
    counted = images.groupby(_CELL, sort=False)["dropped"].agg(["size", "sum"]).reset_index()
    return counted.rename(columns={"size": "asked", "sum": "dropped"}).astype({"asked": int, "dropped": int})
