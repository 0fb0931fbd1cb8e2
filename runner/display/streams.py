"""Only Seesaw's own messages reach the terminal. What libraries print goes to a log file of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from seesaw.results.printable import printable

__all__ = ["diverted", "own", "say"]


def own(descriptor: int) -> TextIO:
    """A stream to where standard output (1) or standard error (2) leads now; `diverted` does not change it."""
    return os.fdopen(os.dup(descriptor), "w", encoding="utf-8", errors="backslashreplace")


def say(text: str, file: TextIO | None = None, lines: bool = False) -> None:
    """Print a line, or with `lines` a message of several, to standard output or `file`, as `printable`."""
    print(printable(text, lines), file=file, flush=True)


@contextmanager
def diverted(log: Path) -> Iterator[TextIO]:
    """Append all that this process prints to `log` while the block runs, that of Ray's C++ code included.

    The block gets a stream to where standard error led before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    stderr = own(2)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield stderr
    finally:
        stderr.close()
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, original in zip((1, 2), before, strict=True):
            os.dup2(original, descriptor)
            os.close(original)
