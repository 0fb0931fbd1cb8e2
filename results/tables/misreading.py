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
from seesaw.results.tables.schemas import (
    ACCURACY,
    AGREEMENT,
    CONFUSION,
    CORRECTED,
    CORRECTED_BIAS,
    DISAGREEMENTS,
    HUI_WALTER,
    MISREADING,
)
from seesaw.results.tables.write import about_of

__all__ = ["LABEL_TABLES", "TWO_VLM_TABLES", "MisreadingTables", "TwoVLMTables", "read_misreading", "read_two_vlms"]

#: in tables/, what `seesaw labels import` writes
LABEL_TABLES: Mapping[str, pa.Schema] = {
    "accuracy": ACCURACY,
    "confusion": CONFUSION,
    "misreading": MISREADING,
    "corrected": CORRECTED,
    "corrected_bias": CORRECTED_BIAS,
}
#: in tables/, what a sweep with two VLMs writes
TWO_VLM_TABLES: Mapping[str, pa.Schema] = {
    "agreement": AGREEMENT,
    "hui_walter": HUI_WALTER,
    "disagreements": DISAGREEMENTS,
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


@dataclass(frozen=True)
class TwoVLMTables:
    """The tables that a second VLM makes, as docs/reference.md lists them."""

    agreement: pd.DataFrame
    hui_walter: pd.DataFrame
    disagreements: pd.DataFrame


def read_two_vlms(run: Path) -> TwoVLMTables | None:
    """The tables of `run` that a second VLM makes; None if there was none. Raises RunDirectoryError."""
    folder = run / "tables"
    if not (folder / "agreement.parquet").is_file():
        return None
    return TwoVLMTables(**{name: _frame(folder / f"{name}.parquet", schema) for name, schema in TWO_VLM_TABLES.items()})


def _frame(path: Path, schema: pa.Schema) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = plain_table(path, schema.names).cast(schema).to_pandas()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as the table that it should be: {first_line(error)}; delete it, and import the "
            "labels again, or sweep again"
        ) from None
    return frame
