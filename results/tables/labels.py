"""Labels that people give to images: the CSV that they fill in, and labels.parquet, which keeps them all."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from seesaw.results.atomic_write import atomic_write
from seesaw.results.errors import LabelsError, RunDirectoryError, nearest
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_table
from seesaw.results.tables.csv_text import (
    csv_header,
    first_line_not_utf8,
    other_separator,
    refuse_other_text,
    separator,
    start_of,
)
from seesaw.results.tables.schemas import LABELS
from seesaw.results.tables.write import csv_of, table_of, write_both

__all__ = ["add_labels", "not_imported", "read_label_csv", "read_labels", "write_label_csv"]

_PLAN = ("number", "image_key", "path", "axis", "choices", "label", "labeller")
_NEEDED = ("image_key", "axis", "label")


def write_label_csv(path: Path, rows: Sequence[tuple[int, str, str, str, str]]) -> None:
    """Write the CSV to fill in: number, image_key, path, axis and choices of each question; label and labeller empty.

    It says neither what a VLM read nor what the prompt was: a labeller who knows either is not blind.
    """
    frame = pd.DataFrame([(*row, "", "") for row in rows], columns=_PLAN)
    with atomic_write(path) as file:
        file.write(csv_of(frame).encode())


def not_imported(run: Path, path: Path) -> int:
    """How many labels of the CSV at `path` labels.parquet of `run` does not have; 0 if there is no such file.

    Raises LabelsError, RunDirectoryError.
    """
    if not path.is_file():
        return 0
    key = ["image_key", "axis", "label", "labeller"]
    both = read_label_csv(path).merge(read_labels(run)[key].drop_duplicates(), how="left", on=key, indicator=True)
    return int((both["_merge"] == "left_only").sum())


def read_label_csv(path: Path) -> pd.DataFrame:
    """The labels in a CSV: row (from 1), image_key, axis, label, labeller. Rows without a label are left out.

    Columns in any order; `labeller` is optional, and further columns are ignored. Raises LabelsError.
    """
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise LabelsError(f"{path}: is no file; give the CSV that you filled in")
    try:
        start = start_of(path)
        refuse_other_text(path, start)
        delimiter, skipped = separator(start)
        names = csv_header(start)
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, delimiter=delimiter, strict=True))[skipped + 1 :]
    except FileNotFoundError:
        files = [p.name for p in path.parent.iterdir() if p.is_file()] if path.parent.is_dir() else []
        raise LabelsError(f"{path}: there is no such file{nearest(path.name, files)}") from None
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        reason = first_line_not_utf8(path) if isinstance(error, UnicodeDecodeError) else first_line(error)
        raise LabelsError(f"{path}: cannot be read as CSV: {reason}") from error
    for name in _NEEDED:
        if names.count(name) != 1:
            many = "no column" if name not in names else f"{names.count(name)} columns"
            raise LabelsError(f"{path}: has {many} '{name}'{other_separator(names)}; needed are {', '.join(_NEEDED)}")
    columns = [*_NEEDED, *(["labeller"] if "labeller" in names else [])]
    found = []
    for number, row in enumerate(rows, 1):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(names):
            raise LabelsError(f"{path}, row {number}: has {len(row)} cells, and the header has {len(names)}")
        cells = {name: row[names.index(name)].strip() for name in columns}
        if cells["label"]:
            found.append((number, cells["image_key"], cells["axis"], cells["label"], cells.get("labeller", "")))
    return pd.DataFrame(found, columns=["row", "image_key", "axis", "label", "labeller"])


def read_labels(run: Path) -> pd.DataFrame:
    """All labels of a run, in the order of their imports; empty if it has none. Raises RunDirectoryError."""
    path = run / "labels.parquet"
    if not path.is_file():
        empty: pd.DataFrame = LABELS.empty_table().to_pandas()
        return empty
    try:
        frame: pd.DataFrame = plain_table(path, LABELS.names).cast(LABELS).to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as labels: {first_line(error)}; move it aside, and import the CSV files again"
        ) from error
    return frame


def add_labels(run: Path, labels: pd.DataFrame) -> int:
    """Add labels (the columns of LABELS but `imported`) to labels.parquet and labels.csv; returns how many are new.

    A label that its labeller has given before adds nothing. One that differs from before is added beside the earlier
    one, with a higher `imported`, and counts from now on: nothing is ever overwritten or removed.
    """
    before = read_labels(run)
    key = ["image_key", "axis", "labeller"]
    last = before.drop_duplicates(key, keep="last")[[*key, "label"]]
    merged = labels.merge(last.rename(columns={"label": "earlier"}), how="left", on=key)
    new = merged[merged["earlier"].isna() | (merged["earlier"] != merged["label"])]
    if len(new):
        number = int(before["imported"].max()) + 1 if len(before) else 1
        parts = [frame for frame in (before, new.assign(imported=number)) if len(frame)]
        write_both(run, "labels", table_of(pd.concat(parts)[LABELS.names], LABELS))
    return len(new)
