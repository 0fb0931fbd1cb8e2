"""Reading Parquet files from others without running code that they carry.

A column of a Parquet file may have an Arrow extension type. Opening the file, even only for its metadata, passes the
description of that type to whichever library registered its name in this process. Some libraries unpickle it:
`ray.data` does. So the footer is first searched as bytes, and a file with such a type is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["plain_batches", "plain_metadata", "plain_table"]

_ROWS = 1 << 16  #: read at a time
_EXTENSION = b"ARROW:extension:name"  #: marks such a type in the schema, which the footer holds as base64


def _encoded(text: bytes) -> list[bytes]:
    """How `text` looks inside a longer text in base64: one form for each of the 3 offsets that it may have."""
    forms = [base64.b64encode(b"\0" * before + text) for before in range(3)]
    return [form[-(-8 * before // 6) : 8 * (before + len(text)) // 6] for before, form in enumerate(forms)]


_FORMS = _encoded(_EXTENSION)


def plain_table(source: Path | bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The table of a Parquet file, or of its bytes.

    Raises:
        pa.ArrowException, OSError: it is not a Parquet file, or a column has an extension type.
    """
    # not pq.read_table, which reads a dataset of one file: slower, and its threads may keep the file open for a while
    with _opened(source) as file, pq.ParquetFile(file) as table:
        return table.read(None if columns is None else _present(table, columns))


def plain_batches(path: Path, columns: Sequence[str], words: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A Parquet file, streaming, with the `words` among its `columns` as dictionaries. Raises as `plain_table` does."""
    with _opened(path) as file, pq.ParquetFile(file, read_dictionary=list(words), pre_buffer=False) as table:
        yield from table.iter_batches(_ROWS, columns=_present(table, columns))


def plain_metadata(path: Path) -> Any:
    """`pq.FileMetaData` of a Parquet file. Raises as `plain_table` does."""
    with _opened(path) as file:
        return pq.read_metadata(file)


def _present(table: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """`columns`; ArrowInvalid if the file lacks one."""
    lacking = set(columns) - set(table.schema_arrow.names)
    if lacking:
        raise pa.ArrowInvalid(f"it has no column {', '.join(sorted(lacking))}")
    return list(columns)


def _opened(source: Path | bytes) -> pa.NativeFile:
    """The open file; ArrowInvalid if its footer mentions an extension type."""
    file = pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source))
    end = file.read_at(8, max(0, file.size() - 8))
    length = min(file.size(), 8 + int.from_bytes(end[:4], "little"))
    footer = file.read_at(length, file.size() - length)
    if any(form in footer for form in _FORMS):
        file.close()
        raise pa.ArrowInvalid(
            "it has a column of an Arrow extension type, and reading one can run code; write columns of plain types"
        )
    return file
