"""Write a file so that nobody ever sees half of it: no reader, and nobody after a kill or a loss of power.

Every local file that Seesaw writes and may read again goes through here. An object store needs none of it: there one
PUT shows the whole object or nothing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["atomic_write"]


@contextmanager
def atomic_write(path: str | Path, *, exclusive: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that appears at `path`, complete, when the block ends without an error.

    The bytes go to a temporary file in the same folder (`.<name>.<process>.<random>.tmp`), which is fsynced and then
    renamed to `path`; then the folder is fsynced, so that the rename survives a loss of power too. After an error, in
    the block or in writing, whatever was at `path` before is still there, and the temporary file is removed. Only a
    kill leaves a temporary file behind.

    Args:
        path: where the file is to be; its folder must exist.
        exclusive: keep a file that is already at `path` instead of replacing it. Of several writers the first one wins.
            On a filesystem without hard links this cannot be guaranteed, and the last writer wins.

    Raises:
        FileExistsError: with `exclusive`, and `path` exists when the block ends.
        OSError: the file cannot be written, as on a full disk.

    Example:
        >>> with atomic_write("run.json") as file:
        ...     file.write(b"{}")
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            _link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _fsync_folder(path.parent)


def _link(temporary: Path, path: Path) -> None:
    """Give `temporary` the name `path` as well, unless that name is taken (FileExistsError)."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without hard links
        temporary.replace(path)


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
