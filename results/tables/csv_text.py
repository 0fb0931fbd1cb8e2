"""What a file that should be CSV is: how its columns are separated, and what it is if it is no CSV text in UTF-8."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pyarrow as pa

from seesaw.results.errors import AnswersError

__all__ = ["csv_header", "first_line_not_utf8", "other_separator", "refuse_other_text", "separator", "start_of"]

_START = 1 << 16  #: bytes in which a header ends
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_SEP = re.compile(rb'"?sep=([^"\r\n])"?\r?\n', re.IGNORECASE)
_UTF_8 = "save it as CSV UTF-8"
_NAMED = {"\t": "tabs", ";": "';'", "|": "'|'"}


def start_of(path: Path) -> bytes:
    """The first bytes of a file's text, unzipped and without the mark that Excel sets before UTF-8. Raises OSError."""
    with _opened(path) as file:
        return file.read(_START).removeprefix(_BOM)


def refuse_other_text(path: Path, start: bytes) -> None:
    """AnswersError if a text that starts so is UTF-16 or JSON."""
    evens, odds = set(start[:64:2]), set(start[1:64:2])
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(start) > 1 and {0} in (evens, odds)):
        raise AnswersError(f'{path}: is text in UTF-16, as Excel\'s "Unicode text"; {_UTF_8}')
    if start.lstrip().startswith((b"{", b"[")):
        raise AnswersError(f"{path}: is JSON; make it a CSV or Parquet table, with a column for each key")


def separator(start: bytes) -> tuple[str, int]:
    """What separates the columns, and the lines before the header: Excel's `sep=;` is one."""
    line = _SEP.match(start)
    return (line[1].decode("latin-1"), 1) if line else (",", 0)


def csv_header(start: bytes) -> list[str]:
    """The column names of a CSV text; bytes that are not UTF-8 are replaced."""
    delimiter, skipped = separator(start)
    lines = start.decode("utf-8", "replace").splitlines()[skipped:]
    return [name.strip() for name in next(csv.reader(lines, delimiter=delimiter), [])]


def other_separator(names: list[str]) -> str:
    """The end of a message about columns that are missing: what separates them, if it is no comma."""
    for character, word in _NAMED.items():
        if len(names) == 1 and names[0].count(character) > 1:
            return f"; its columns are separated by {word} and not by commas: save it as CSV with commas"
    return ""


def first_line_not_utf8(path: Path) -> str:
    """Where a text is no UTF-8, and what to do; "" if all of it is."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"line {number} is not UTF-8; {_UTF_8}"
    return ""


def _opened(path: Path) -> io.BufferedReader:
    with path.open("rb") as file:
        compression = "gzip" if file.read(2) == _GZIP else None
    return io.BufferedReader(pa.input_stream(str(path), compression=compression))
