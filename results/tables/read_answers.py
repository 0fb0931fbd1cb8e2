"""Reading an answers table that anyone made: Parquet, CSV, gzipped CSV or a data frame."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from seesaw.results.errors import AnswersError, nearest
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_metadata, plain_table
from seesaw.results.tables.csv_text import (
    first_line_not_utf8,
    other_separator,
    refuse_other_text,
    separator,
    start_of,
)
from seesaw.results.tables.schemas import ANSWERS

__all__ = ["read_answers"]

_NEEDED = tuple(ANSWERS.names[:7])  # columns that every answers table must have
_OPTIONAL = ("probability", "prompt")
_MAY_BE_EMPTY = ("source_axis", "source_value")


def read_answers(answers: str | Path | pd.DataFrame) -> pd.DataFrame:
    """Read an answers table that anyone made: a file, whose content says what it is, or a data frame.

    Returns the seven columns model, subject, source_axis, source_value, image, axis, answer as text without gaps
    (`source_axis` and `source_value` are "" for the initial prompt), plus `probability` (float64, NaN where unknown)
    and `prompt` where the table has them. Further columns are ignored. Words that look like missing values ("NA",
    "None", "nan") stay words in a file; in a data frame, what pandas takes for missing is missing. Raises AnswersError.
    """
    if isinstance(answers, pd.DataFrame):
        where, table = "the answers table", _table_of(answers)
    else:
        where, table = str(Path(answers)), _raw_table(Path(answers))
    if table.num_rows == 0:
        raise AnswersError(f"{where}: has columns but no rows")
    columns = {name: _text_column(where, name, table[name]) for name in _NEEDED}
    for name in _OPTIONAL:
        if name in table.column_names:
            columns[name] = _optional_column(where, name, table[name])
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    return frame


def _table_of(frame: pd.DataFrame) -> pa.Table:
    """The columns of `frame` that an answers table may have, as Arrow has them; NaN is a gap."""
    _check_columns("the answers table", list(map(str, frame.columns)))
    columns = [name for name in frame.columns if name in ANSWERS.names]
    try:
        return pa.Table.from_pandas(frame[columns], preserve_index=False)
    except (pa.ArrowException, ValueError) as error:
        raise AnswersError(f"the answers table: a column holds values of several types: {first_line(error)}") from error


def _raw_table(path: Path) -> pa.Table:
    """The columns of a file that an answers table may have, as it holds them. Raises AnswersError.

    Other columns are not read: they may be larger than the memory.
    """
    if path.is_dir():
        inside = path / "answers.parquet"
        raise AnswersError(f"{path}: is a directory" + (f"; did you mean {inside}?" if inside.exists() else ""))
    if path.exists() and not path.is_file():  # opening a FIFO waits for whoever writes to it
        raise AnswersError(f"{path}: is no regular file")
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except FileNotFoundError as error:
        files = [p.name for p in path.parent.iterdir() if p.is_file()] if path.parent.is_dir() else []
        raise AnswersError(f"{path}: there is no such file{nearest(path.name, files)}") from error
    except OSError as error:
        raise AnswersError(f"{path}: cannot be read: {error.strerror}") from error
    if not start:
        raise AnswersError(f"{path}: is empty")
    try:
        if start.startswith(b"PAR1"):
            return plain_table(path, _columns(path, plain_metadata(path).schema.to_arrow_schema().names))
        if start.startswith(b"\x1f\x8b"):
            return _read_csv(path, "gzip")
        refuse_other_text(path, start)
        if b"\0" in start or path.suffix in {".parquet", ".pq"}:
            raise AnswersError(f"{path}: is neither a Parquet file nor CSV text")
        return _read_csv(path, None)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = first_line_not_utf8(path) if "UTF8" in str(error) or isinstance(error, UnicodeDecodeError) else ""
        raise AnswersError(f"{path}: cannot be read as a table: {reason or first_line(error)}") from error


def _read_csv(path: Path, compression: str | None) -> pa.Table:
    """The needed columns as text. Types are not guessed: `01` or `NA` may be someone's name for an attribute."""
    start = start_of(path)
    refuse_other_text(path, start)
    delimiter, skipped = separator(start)
    read = pa.csv.ReadOptions(skip_rows=skipped)
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)  # a prompt may contain a line break
    with pa.input_stream(str(path), compression=compression) as stream:
        names = pa.csv.open_csv(stream, read, parse).schema.names
    columns = _columns(path, names)
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
    )
    with pa.input_stream(str(path), compression=compression) as stream:
        return _without_empty_rows(pa.csv.read_csv(stream, read, parse, convert))


def _without_empty_rows(table: pa.Table) -> pa.Table:
    """Without the rows whose cells are all empty, which Excel writes where cells were cleared."""
    filled = None
    for column in table.columns:
        has_text = pc.not_equal(column, "")
        filled = has_text if filled is None else pc.or_(filled, has_text)
    return table if filled is None or pc.all(filled).as_py() else table.filter(filled)


def _columns(path: Path, names: list[str]) -> list[str]:
    """Those of the columns `names` that an answers table may have. Raises AnswersError if one is missing."""
    _check_columns(str(path), names)
    return [name for name in (*_NEEDED, *_OPTIONAL) if name in names]


def _check_columns(where: str, names: list[str]) -> None:
    for name in _NEEDED:
        if names.count(name) > 1:
            raise AnswersError(f"{where}: has two columns called '{name}'")
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        others = [name for name in names if name not in ANSWERS.names]
        raise AnswersError(
            f"{where}: has no column '{missing[0]}'{other_separator(names) or nearest(missing[0], others)}; "
            f"an answers table has the columns {', '.join(_NEEDED)}"
        )


def _text_column(where: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A needed column as text without gaps. Raises AnswersError naming the first row with a gap."""
    text = _cast(where, name, column, pa.string())
    if name in _MAY_BE_EMPTY:
        return pc.fill_null(text, "")
    gaps = pc.fill_null(pc.equal(text, ""), True)
    row = pc.index(gaps, True).as_py()
    if row >= 0:
        raise AnswersError(f"{where}, row {row + 1}: '{name}' is empty")
    return text


def _optional_column(where: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name == "probability":
        if pa.types.is_string(column.type):
            column = pc.if_else(pc.equal(column, ""), None, column)
        return pc.fill_null(_cast(where, name, column, pa.float64()), float("nan"))
    return pc.fill_null(_cast(where, name, column, pa.string()), "")


def _cast(where: str, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise AnswersError(f"{where}: column '{name}' holds values that are not {kind}: {error}") from error
