"""The tables of a run: their columns, how they are written, and how anyone's answers are read.

Column names and order are the contract of DESIGN section 3.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from seesaw.results.errors import AnswersError, nearest
from seesaw.results.store.parquet import plain_metadata, plain_table

__all__ = [
    "ANSWERS",
    "DISTRIBUTIONS",
    "EFFECTS",
    "FAILURES",
    "FLIPS",
    "MATRICES",
    "NEGATIVES",
    "TARGETS",
    "TRUTH",
    "UNCERTAINTY",
    "VALIDATION",
    "WITHHELD",
    "about_of",
    "csv_of",
    "read_answers",
    "table_of",
    "write_both",
    "write_bytes",
    "write_csv",
    "write_rows",
    "write_table",
]


def _schema(**columns: str) -> pa.Schema:
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


ANSWERS = _schema(
    model="string", subject="string", source_axis="string", source_value="string", image="int64", axis="string",
    answer="string", probability="float64", prompt="string", seed="int64", image_key="string", vlm="string",
)  # fmt: skip
DISTRIBUTIONS = _schema(
    model="string", subject="string", source_axis="string", source_value="string", axis="string", attribute="string",
    count="int64", share="float64", n="int64",
)  # fmt: skip
MATRICES = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "subject", "source_axis", "target_axis")),
        *((name, pa.float64()) for name in ("is", "w_init", "w_after")),
        *((name, pa.int64()) for name in ("n_init", "n_after")),
    ]
)
UNCERTAINTY = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "subject", "source_axis", "target_axis")),
        *((name, pa.float64()) for name in ("is", "se", "low", "high")),
    ]
)
TRUTH = _schema(model="string", subject="string", source_axis="string", target_axis="string", **{"is": "float64"})
EFFECTS = _schema(
    model="string", subject="string", source_axis="string", target_axis="string", before="float64", after="float64",
    error="float64",
)  # fmt: skip
VALIDATION = _schema(model="string", subject="string", pairs="int64", correlation="float64", others="float64")
TARGETS = _schema(subject="string", axis="string", attribute="string", share="float64", n="float64")
FLIPS = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "subject", "source_axis", "target_axis")),
        *((f"{name}_{when}", pa.float64()) for when in ("before", "after") for name in ("is", "se")),
        *((name, pa.float64()) for name in ("w_init_before", "w_init_after")),
        ("flipped", pa.bool_()),
    ]
)
NEGATIVES = _schema(model="string", pairs="int64", negative="int64", share="float64", sure="float64")
WITHHELD = _schema(
    model="string", subject="string", source_axis="string", source_value="string", images="int64", flagged="int64",
    blank="int64", flagged_share="float64",
)  # fmt: skip
FAILURES = _schema(cell="string", stage="string", error="string", attempts="int64", message="string", command="string")

_NEEDED = tuple(ANSWERS.names[:7])  # what an answers table that anyone made must have
_OPTIONAL = ("probability", "prompt")
_MAY_BE_EMPTY = ("source_axis", "source_value")
_ABOUT = b"seesaw"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
ROW_GROUP = 1 << 17  #: rows, at least, of what is written bit by bit: about 30 MB of answers


def table_of(frame: pd.DataFrame, schema: pa.Schema, about: Mapping[str, object] | None = None) -> pa.Table:
    """`frame` as an Arrow table of `schema`; `about` (metric, targets, ...) is kept as JSON in its metadata."""
    columns = [pa.array(frame[field.name].to_numpy(), field.type) for field in schema]
    metadata = {_ABOUT: json.dumps(about, sort_keys=True).encode()} if about is not None else None
    return pa.table(columns, schema=schema.with_metadata(metadata))


def about_of(path: Path) -> dict[str, object]:
    """What `table_of` was told about the Parquet table at `path`; empty if nothing."""
    about: dict[str, object] = json.loads((plain_metadata(path).metadata or {}).get(_ABOUT, b"{}"))
    return about


def write_table(path: Path, table: pa.Table) -> None:
    """Write Parquet at `path`, whole or not at all; the same rows give the same bytes."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def write_rows(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """`write_table` of tables one after the other, of which no more than a row group is in memory; returns the rows."""
    rows, waiting = 0, list[pa.Table]()
    with _aside(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
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
    """Write CSV (`csv_of`) at `path`, whole or not at all; no more than a row group of its text is in memory."""
    frame = table.to_pandas()
    with _aside(path) as file:
        for start in range(0, max(len(frame), 1), ROW_GROUP):
            file.write(csv_of(frame[start : start + ROW_GROUP], header=not start).encode())


def csv_of(frame: pd.DataFrame, header: bool = True) -> str:
    """`frame` as CSV for spreadsheets too; a number that is undefined is an empty field.

    A word that a spreadsheet would take for a formula (`=...`) has a `'` before it, the sign that it is none; Parquet
    has every word as it is.
    """
    words = frame.select_dtypes(exclude=["number", "bool"])
    tame = frame.assign(**{str(name): words[name].map(_tame) for name in words})
    returns = any("\r" in str(word) for name in words for word in words[name].unique())
    quoting: Literal[0, 2] = 2 if returns else 0  # QUOTE_NONNUMERIC, for QUOTE_MINIMAL lets a \r start a row
    return tame.rename(columns=_tame).to_csv(header=header, index=False, lineterminator="\n", quoting=quoting)


def _tame(value: object) -> object:
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


def write_bytes(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader, or a machine that loses power, sees the old file or the new one whole."""
    with _aside(path) as file:
        file.write(data)


@contextmanager
def _aside(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which is at `path` after the block, whole; after an error in it there is none."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive too
    finally:
        os.close(folder)


def read_answers(path: str | Path) -> pd.DataFrame:
    """Read an answers table that anyone made: Parquet, CSV or gzipped CSV, told apart by content.

    Returns the seven columns model, subject, source_axis, source_value, image, axis, answer as text, all filled
    (`source_axis` and `source_value` are "" for the initial prompt), plus `probability` (float64, NaN where unknown)
    and `prompt` where the table has them; further columns are ignored. Words that look like missing values ("NA",
    "None", "nan") stay words. Raises AnswersError.
    """
    path = Path(path)
    table = _raw_table(path)
    _check_columns(path, table.column_names)
    if table.num_rows == 0:
        raise AnswersError(f"{path}: has columns but no rows")
    columns = {name: _text_column(path, name, table[name]) for name in _NEEDED}
    for name in _OPTIONAL:
        if name in table.column_names:
            columns[name] = _optional_column(path, name, table[name])
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    return frame


def _raw_table(path: Path) -> pa.Table:
    """The table as it lies there. Raises AnswersError for what is no table at all."""
    if path.is_dir():
        inside = path / "answers.parquet"
        raise AnswersError(f"{path}: is a directory" + (f"; did you mean {inside}?" if inside.exists() else ""))
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except FileNotFoundError as error:
        there = [p.name for p in path.parent.iterdir() if p.is_file()] if path.parent.is_dir() else []
        raise AnswersError(f"{path}: there is no such file{nearest(path.name, there)}") from error
    except OSError as error:
        raise AnswersError(f"{path}: cannot be read: {error.strerror}") from error
    if not start:
        raise AnswersError(f"{path}: is empty")
    try:
        if start.startswith(b"PAR1"):
            return plain_table(path)
        if start.startswith(b"\x1f\x8b"):
            return _read_csv(path, "gzip")
        if b"\0" in start or path.suffix in {".parquet", ".pq"}:
            raise AnswersError(f"{path}: is neither a Parquet file nor CSV text")
        return _read_csv(path, None)
    except (pa.ArrowException, OSError) as error:
        first_line = str(error).splitlines()[0]
        raise AnswersError(f"{path}: cannot be read as a table: {first_line}") from error


def _read_csv(path: Path, compression: str | None) -> pa.Table:
    """All columns as text: types are not guessed, since `01` or `NA` may be someone's name for an attribute."""
    with pa.input_stream(str(path), compression=compression) as stream:
        names = pa.csv.open_csv(stream).schema.names
    convert = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    parse = pa.csv.ParseOptions(newlines_in_values=True)  # a prompt may hold one
    with pa.input_stream(str(path), compression=compression) as stream:
        return pa.csv.read_csv(stream, parse_options=parse, convert_options=convert)


def _check_columns(path: Path, names: list[str]) -> None:
    for name in _NEEDED:
        if names.count(name) > 1:
            raise AnswersError(f"{path}: has two columns called '{name}'")
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        spare = [name for name in names if name not in ANSWERS.names]
        raise AnswersError(
            f"{path}: has no column '{missing[0]}'{nearest(missing[0], spare)}; "
            f"an answers table has the columns {', '.join(_NEEDED)}"
        )


def _text_column(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A needed column as text without gaps. Raises AnswersError naming the first row with a gap."""
    text = _cast(path, name, column, pa.string())
    if name in _MAY_BE_EMPTY:
        return pc.fill_null(text, "")
    gaps = pc.fill_null(pc.equal(text, ""), True)
    row = pc.index(gaps, True).as_py()
    if row >= 0:
        raise AnswersError(f"{path}, row {row + 1}: '{name}' is empty")
    return text


def _optional_column(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name == "probability":
        if pa.types.is_string(column.type):
            column = pc.if_else(pc.equal(column, ""), None, column)
        return pc.fill_null(_cast(path, name, column, pa.float64()), float("nan"))
    return pc.fill_null(_cast(path, name, column, pa.string()), "")


def _cast(path: Path, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise AnswersError(f"{path}: column '{name}' holds what is no {kind}: {error}") from error
