"""What a store holds, folder by folder: of which model or VLM, how much, and since when."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from seesaw.results.errors import StoreError
from seesaw.results.store.names import identity_of, is_shard
from seesaw.results.store.shards import ENDING, rows_in
from seesaw.results.store.store import READERS, Store

__all__ = ["FolderContent", "count_rows", "folder_contents", "other_bytes"]


@dataclass(frozen=True)
class FolderContent:
    """A folder of images or answers. `kind` is images or answers; `identity` is "" for a folder of nobody's."""

    folder: str
    kind: str
    name: str  #: of the model or VLM, as a folder can have it
    identity: str
    shards: Mapping[str, int]  #: bytes by name
    others: tuple[str, ...]  #: what is no shard: writes that were never finished, and foreign things
    written: float  #: when the last shard came, in seconds since 1970; 0 for none

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(self.shards.values())


def folder_contents(store: Store) -> Iterator[FolderContent]:
    """Every folder of a store, from the names and sizes of its files alone."""
    for folder in store.folders():
        kind, identity = folder.partition("/")[0], identity_of(folder)
        if store.local and os.path.islink(store.path(folder)):  # what it leads to is not the store's to remove
            yield FolderContent(folder, kind, folder.partition("/")[2], "", {}, (folder,), 0)
            continue
        shards: dict[str, int] = {}
        others, written = [], 0
        for info in sorted(store.entries(folder), key=lambda info: str(info.base_name)):
            name = f"{folder}/{info.base_name}"
            if info.type == fs.FileType.File and is_shard(name):
                shards[name], written = info.size, max(written, info.mtime_ns or 0)
            else:
                others.append(name)
        readable = folder.partition("/")[2].removesuffix(f"-{identity}")
        yield FolderContent(folder, kind, readable, identity, shards, tuple(others), written / 1e9)


def count_rows(store: Store, content: FolderContent) -> int:
    """Images, or answers, in a folder by the footers of its shards; one that cannot be read counts as none."""

    def rows(name: str) -> int:
        try:
            return rows_in(store.end(name, ENDING))
        except (StoreError, OSError, pa.ArrowException):
            return 0

    with ThreadPoolExecutor(READERS) as pool:
        return sum(pool.map(rows, content.shards))


def other_bytes(store: Store, folder: str) -> tuple[int, int]:
    """(files, bytes) of all below a folder that holds no shards that count: `damaged`, `costs`."""
    files, size, left = 0, 0, [folder]
    while left:
        place = left.pop()
        for info in store.entries(place):
            if info.type == fs.FileType.Directory:
                left.append(f"{place}/{info.base_name}")
            else:
                files, size = files + 1, size + (info.size or 0)
    return files, size
