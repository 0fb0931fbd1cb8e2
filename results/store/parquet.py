"""Reading files from others: no code that they carry is run, none is waited for, and none fills the memory.

Every shard and table is opened here. What is no regular file is refused: a FIFO would be waited for, and `/dev/zero`
has no end. Only the columns that the caller needs are read, and only if the footer says that their data, uncompressed,
is no larger than such a file can be.

A column of a Parquet file may have an Arrow extension type. Opening the file, even only for its metadata, passes the
description of that type to whichever library registered its name in this process. Some libraries unpickle it:
`ray.data` does. So the footer is first searched as bytes, and a file with such a type is refused.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "LARGEST_TABLE",
    "end_of_file",
    "file_digest",
    "plain_batches",
    "plain_metadata",
    "plain_table",
    "regular_file",
]

LARGEST_TABLE = 8 << 30  #: bytes of the columns that are read whole, uncompressed: the answers of a billion questions
_ROWS = 1 << 16  #: read at a time
_EXTENSION = b"ARROW:extension:name"  #: marks such a type in the schema, which the footer holds as base64


def _encoded(text: bytes) -> list[bytes]:
    """How `text` looks inside a longer text in base64: one form for each of the 3 offsets that it may have."""
    forms = [base64.b64encode(b"\0" * before + text) for before in range(3)]
    return [form[-(-8 * before // 6) : 8 * (before + len(text)) // 6] for before, form in enumerate(forms)]


_FORMS = _encoded(_EXTENSION)


def regular_file(path: str | Path, largest: int) -> bytes:
    """The content of a local file.

    Raises:
        pa.ArrowInvalid: it is no regular file, or has more than `largest` bytes.
        OSError: it cannot be read.
    """
    handle = _open_regular(path)
    with os.fdopen(handle, "rb", buffering=0) as file:
        size = os.fstat(handle).st_size
        if size > largest:
            raise pa.ArrowInvalid(f"it has {size:,} bytes, and {largest:,} are the most that such a file can have")
        content = bytearray(size)
        filled = 0
        while filled < size and (count := file.readinto(memoryview(content)[filled:])):
            filled += count
    return bytes(content[:filled])


def file_digest(path: str | Path) -> str:
    """SHA-256 of a local file, streaming, as 64 hex digits. Raises as `regular_file` does."""
    with os.fdopen(_open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def end_of_file(path: str | Path, count: int) -> bytes:
    """The last `count` bytes of a local file, or all if it has fewer. Raises as `regular_file` does."""
    handle = _open_regular(path)
    try:
        size = os.fstat(handle).st_size
        return os.pread(handle, min(count, size), max(0, size - count))
    finally:
        os.close(handle)


def _open_regular(path: str | Path) -> int:
    """A descriptor of a regular file. ArrowInvalid for anything else, which is never waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # a socket, a device that is absent, a loop of links
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.ELOOP):
            raise pa.ArrowInvalid("it is no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise pa.ArrowInvalid("it is no regular file")
    return handle


def plain_table(
    source: Path | bytes,
    columns: Sequence[str] | None = None,
    largest: int | None = None,
    allowed: pa.Schema | None = None,
) -> pa.Table:
    """The `columns` of a Parquet file, or of its bytes; None: all of them. `allowed`: it may have no others than these.

    Raises:
        pa.ArrowException, OSError: it is not a Parquet file, it lacks a column, a column has an extension type, or what
            would be read has more than `largest` bytes (LARGEST_TABLE).
    """
    # not pq.read_table, which reads a dataset of one file: slower, and its threads may keep the file open for a while
    with _opened(source) as file, pq.ParquetFile(file) as table:
        names = table.schema_arrow.names if columns is None else _present(table, columns)
        if allowed is not None:
            _check_columns(table.schema_arrow, allowed)
        _check_size(table.metadata, names if columns is not None else None, largest or LARGEST_TABLE)
        if largest is not None and _worst_size(table.metadata) > largest:
            return _row_by_row(table, names, largest)
        return table.read(None if columns is None else names)


def _worst_size(metadata: Any) -> int:
    """Bytes that the data could have in memory: every value of a column with a dictionary may be its longest word."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size * (chunk.num_values if chunk.has_dictionary_page else 1) for chunk in chunks
    )


def _row_by_row(table: pq.ParquetFile, names: Sequence[str], largest: int) -> pa.Table:
    """All rows of a small file; ArrowInvalid as soon as they have more than `largest` bytes."""
    batches, size = [], 0
    for batch in table.iter_batches(1, columns=names):
        size += batch.nbytes
        if size > largest:
            raise pa.ArrowInvalid(f"its data has more than {largest:,} bytes, the most that such a file can have")
        batches.append(batch)
    metadata = {key: value for key, value in (table.metadata.metadata or {}).items() if key != b"ARROW:schema"}
    return pa.Table.from_batches(batches, table.schema_arrow.with_metadata(metadata)).combine_chunks()


def _check_columns(schema: pa.Schema, allowed: pa.Schema) -> None:
    for field in schema:
        if allowed.get_field_index(field.name) < 0 or allowed.field(field.name).type != field.type:
            raise pa.ArrowInvalid(f"it has a column '{field.name}' of {field.type}, which it should not have")


def _check_size(metadata: Any, columns: Sequence[str] | None, largest: int) -> None:
    """ArrowInvalid if the data of `columns` (None: of all), uncompressed, exceeds `largest` bytes by the footer."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    size = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if columns is None or chunk.path_in_schema.split(".")[0] in columns
    )
    if size > largest:
        raise pa.ArrowInvalid(f"it has {size:,} bytes of data, and {largest:,} are the most that such a file can have")


def plain_batches(path: Path, columns: Sequence[str], words: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A Parquet file, streaming, with the `words` among its `columns` as dictionaries. Raises as `plain_table` does."""
    with _opened(path) as file, pq.ParquetFile(file, read_dictionary=list(words), pre_buffer=False) as table:
        _check_size(table.metadata, columns, LARGEST_TABLE)
        yield from table.iter_batches(_ROWS, columns=_present(table, columns))


def plain_metadata(source: Path | bytes) -> Any:
    """`pq.FileMetaData` of a Parquet file, or of its last bytes. Raises as `plain_table` does."""
    with _opened(source) as file:
        return pq.read_metadata(file)


def _present(table: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """`columns`; ArrowInvalid if the file lacks one."""
    lacking = set(columns) - set(table.schema_arrow.names)
    if lacking:
        raise pa.ArrowInvalid(f"it has no column {', '.join(sorted(lacking))}")
    return list(columns)


def _opened(source: Path | bytes) -> pa.NativeFile:
    """The open file; ArrowInvalid if it is no regular file, or its footer mentions an extension type."""
    if isinstance(source, bytes):
        file = pa.BufferReader(source)
    else:
        handle = _open_regular(source)
        try:
            file = pa.OSFile(f"/dev/fd/{handle}")  # the very file that was looked at
        finally:
            os.close(handle)
    end = file.read_at(8, max(0, file.size() - 8))
    length = min(file.size(), 8 + int.from_bytes(end[:4], "little"))
    footer = file.read_at(length, file.size() - length)
    if any(form in footer for form in _FORMS):
        file.close()
        raise pa.ArrowInvalid(
            "it has a column of an Arrow extension type, and reading one can run code; write columns of plain types"
        )
    return file
