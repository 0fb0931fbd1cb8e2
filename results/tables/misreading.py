"""Reading what a run knows of its VLM's misreadings: the tables that follow from labels and from a second VLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from seesaw.results.errors import RunDirectoryError
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_table
from seesaw.results.tables.schemas import ACCURACY, CONFUSION, CORRECTED, CORRECTED_BIAS, MISREADING
from seesaw.results.tables.write import about_of

__all__ = ["LABEL_TABLES", "MisreadingTables", "read_misreading"]

#: in tables/, what `seesaw labels import` writes
LABEL_TABLES: Mapping[str, pa.Schema] = {
    "accuracy": ACCURACY,
    "confusion": CONFUSION,
    "misreading": MISREADING,
    "corrected": CORRECTED,
    "corrected_bias": CORRECTED_BIAS,
}


@dataclass(frozen=True)
class MisreadingTables:
    """The tables that labels make, as docs/reference.md lists them, and the notes about them."""

    accuracy: pd.DataFrame
    confusion: pd.DataFrame
    misreading: pd.DataFrame
    corrected: pd.DataFrame
    corrected_bias: pd.DataFrame
    notes: tuple[str, ...]


def read_misreading(run: Path) -> MisreadingTables | None:
    """The tables of `run` that follow from labels; None if nothing was labelled. Raises RunDirectoryError."""
    folder = run / "tables"
    if not (folder / "misreading.parquet").is_file():
        return None
    frames = {name: _frame(folder / f"{name}.parquet", schema) for name, schema in LABEL_TABLES.items()}
    notes = about_of(folder / "misreading.parquet").get("notes")
    return MisreadingTables(**frames, notes=tuple(map(str, notes)) if isinstance(notes, list) else ())


def _frame(path: Path, schema: pa.Schema) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = plain_table(path, schema.names).cast(schema).to_pandas()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as the table that it should be: {first_line(error)}; delete it, and import the "
            "labels again"
        ) from None
    return frame
