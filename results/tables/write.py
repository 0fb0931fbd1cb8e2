"""Writing the tables of a run: Parquet and CSV, in one piece or streaming. Every file is written atomically.

The same rows give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from seesaw.results.atomic_write import atomic_write
from seesaw.results.store.parquet import plain_metadata

__all__ = ["about_of", "csv_of", "table_of", "write_both", "write_csv", "write_rows", "write_table"]

_ABOUT = b"seesaw"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
ROW_GROUP = 1 << 17  #: rows, at least, that a streaming writer writes at a time: about 30 MB of answers


def table_of(frame: pd.DataFrame, schema: pa.Schema, about: Mapping[str, object] | None = None) -> pa.Table:
    """`frame` as an Arrow table of `schema`, with `about` (metric, targets, ...) as JSON in its metadata."""
    columns = [pa.array(frame[field.name].to_numpy(), field.type) for field in schema]
    metadata = {_ABOUT: json.dumps(about, sort_keys=True).encode()} if about is not None else None
    return pa.table(columns, schema=schema.with_metadata(metadata))


def about_of(path: Path) -> dict[str, object]:
    """The `about` that `table_of` gave to the Parquet table at `path`; empty if it gave none."""
    about: dict[str, object] = json.loads((plain_metadata(path).metadata or {}).get(_ABOUT, b"{}"))
    return about


def write_table(path: Path, table: pa.Table) -> None:
    """Write `table` as Parquet at `path`."""
    with atomic_write(path) as file:
        pq.write_table(table, file, compression="zstd")


def write_rows(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write `tables` as one Parquet file, streaming: memory holds a row group at most. Returns the rows written."""
    rows, waiting = 0, list[pa.Table]()
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            rows += table.num_rows
            waiting.append(table)
            if sum(each.num_rows for each in waiting) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return rows


def write_csv(path: Path, table: pa.Table) -> None:
    """Write `table` as CSV (see `csv_of`) at `path`; memory holds the text of no more than a row group."""
    frame = table.to_pandas()
    with atomic_write(path) as file:
        for start in range(0, max(len(frame), 1), ROW_GROUP):
            file.write(csv_of(frame[start : start + ROW_GROUP], header=not start).encode())


def csv_of(frame: pd.DataFrame, header: bool = True) -> str:
    """`frame` as CSV that is safe to open in a spreadsheet. An undefined number is an empty field.

    A text that a spreadsheet would run as a formula (`=...`) gets a `'` before it, which marks it as text. Parquet
    files hold every text unchanged.
    """
    words = frame.select_dtypes(exclude=["number", "bool"])
    safe = frame.assign(**{str(name): words[name].map(_as_text) for name in words})
    returns = any("\r" in str(word) for name in words for word in words[name].unique())
    quoting: Literal[0, 2] = 2 if returns else 0  # QUOTE_NONNUMERIC, since under QUOTE_MINIMAL a \r starts a row
    return safe.rename(columns=_as_text).to_csv(header=header, index=False, lineterminator="\n", quoting=quoting)


def _as_text(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_both(folder: Path, name: str, table: pa.Table) -> None:
    """`write_table` and `write_csv` as `<name>.parquet` and `<name>.csv` in `folder`."""
    write_table(folder / f"{name}.parquet", table)
    write_csv(folder / f"{name}.csv", table)
