"""The store: images and answers by content, as Parquet shards on any filesystem that pyarrow opens.

    images/<model>-<identity>/<batch>.parquet                     one batch of images
    answers/<vlm>-<identity>/<batch>-<questionnaire>.parquet      the answers to one batch
    damaged/...                                                   shards found altered, moved here, never deleted
    costs/...                                                     what batches took (`results.store.costs`); no record of work

A committed shard *is* the record of completion; there is no other ledger. On a local or shared filesystem it is written
aside, fsynced and linked into place: complete or absent, whatever is killed. Whoever commits second adopts what is
there. Every shard carries the SHA-256 of itself (`results.store.shards`).

An object store does the same with one PUT, and from 10 MB on with one multipart upload, which shows nothing before it
is completed (a rule of the bucket should drop what was never completed). There "second" means: who finds the shard when
looking. Of two that look at once both put, and the last stays, which is whole and as good: a name stands for the same
images, and made on the same hardware for the same bytes. Credentials come from the environment alone, the endpoint from
`AWS_ENDPOINT_URL` or the URI (`?endpoint_override=http%3A%2F%2F127.0.0.1%3A9000`). A server that is silent for 5 s is
asked three times, so that its absence is told within about 20 s.

What may pass by itself, a full disk, a share or server that is away, is StoreUnavailable: the same Store goes on
afterwards. What will not, a denied access, a bucket that does not exist, is EnvironmentFault.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from seesaw.results.atomic_write import atomic_write
from seesaw.results.errors import EnvironmentFault, StoreError
from seesaw.results.secrets import first_line
from seesaw.results.store.filesystem import meaning, no_bucket, open_filesystem
from seesaw.results.store.shards import ANSWER_SHARD, IMAGE_SHARD, check_name, deserialise, serialise

__all__ = ["ANSWER_SHARD", "IMAGE_SHARD", "Store", "StoreProblem", "shard_folder"]

MARK = ".seesaw"  #: the file that tells a local store from a folder of its name, as where a share is not mounted
_SHARD = re.compile(r"(images/[\w.-]+/[0-9a-f]{32}|answers/[\w.-]+/[0-9a-f]{32}-[0-9a-f]{32})\.parquet")
LOOKERS = 16  #: threads that look at the ends of shards, of which a folder has hundred thousands
_STALE = re.compile(r"\.[\w.-]+\.tmp")


@dataclass(frozen=True)
class StoreProblem:
    """Something in the store that is not a sound shard: `kind` is damaged, temporary or foreign."""

    name: str
    kind: str
    message: str


def shard_folder(kind: str, name: str, identity: str) -> str:
    """Folder of a model's images or a VLM's answers: a readable name, made safe for a path, and its identity."""
    return f"{kind}/{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-')[:60] or 'model'}-{identity}"


class Store:
    """Shards under one root: a directory, or a URI such as `s3://bucket/prefix` (credentials from the environment).

    `made` says that somebody has probed it: where its root is not there, or another, it is away and not made again.

    Raises:
        ConfigError: the URI holds credentials.
        EnvironmentFault: no such filesystem or bucket, or access is denied; so does every method.
        StoreUnavailable: the store is full or away for now; so does every method but `probe`.

    Example::

        store = seesaw.Store("outputs/store")
        {folder: len(store.names(folder)) for folder in store.folders()}
        damaged = [problem for name, problem in store.verify() if problem]
    """

    def __init__(self, root: str | Path, made: bool = False) -> None:
        self.root = str(root)
        self._fs, self._base = open_filesystem(self.root)
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        # a root that was there once is never made again: where a share is not mounted, that would fill the local disk
        self._made = self._local and (made or os.path.isdir(self._base))
        self._mounted = self._made and os.path.ismount(self._base)
        self._marked = self._local and (made or os.path.exists(self.path(MARK)))

    def path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def probe(self) -> None:
        """Raise EnvironmentFault unless the store can be written and read, before any GPU hour is spent on it."""
        name, sent = self.path(f".probe-{uuid.uuid4().hex}.tmp"), b"seesaw"
        try:
            if self._local:
                self._make_folder("")
                if not self._marked:
                    Path(self.path(MARK)).touch()
                    self._marked = True
            with self._fs.open_output_stream(name) as stream:
                stream.write(sent)
            with self._fs.open_input_stream(name, compression=None) as stream:
                kept = stream.read()
            self._fs.delete_file(name)
        except (OSError, pa.ArrowException) as error:
            told = meaning(error, self.root, local=self._local, gone=self._gone())
            if not isinstance(told, EnvironmentFault):
                told = EnvironmentFault(f"store '{self.root}' cannot be written: {first_line(error)}")
            raise told from error
        if kept != sent:  # a server that knows no trailing checksums keeps them as content
            raise EnvironmentFault(
                f"store '{self.root}' keeps other bytes than it was given; for a server that does not know the "
                "checksums that are sent along, set AWS_REQUEST_CHECKSUM_CALCULATION=WHEN_REQUIRED in the environment"
            )

    def commit(self, name: str, table: pa.Table) -> bool:
        """Make `table` the shard `name`, whole or not at all; False if the shard was there already (it stays)."""
        content = serialise(table)
        with self._told():
            return self._link(name, content) if self._local else self._put(name, content)

    def _put(self, name: str, content: bytes) -> bool:
        path = self.path(name)
        if self._fs.get_file_info(path).type == fs.FileType.File:
            return False
        with self._fs.open_output_stream(path) as stream:
            stream.write(content)
        return True

    def _link(self, name: str, content: bytes) -> bool:
        self._make_folder(os.path.dirname(name))
        try:
            with atomic_write(self.path(name), exclusive=True) as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def keep(self, name: str, content: bytes) -> None:
        """Write what is no shard and may be written again, whole or not at all."""
        with self._told():
            if self._local:
                self._make_folder(os.path.dirname(name))
                with atomic_write(self.path(name)) as file:
                    file.write(content)
            else:
                with self._fs.open_output_stream(self.path(name)) as stream:
                    stream.write(content)

    def recall(self, name: str) -> bytes:
        """What was kept as `name`; FileNotFoundError if nothing was."""
        with self._told(), self._fs.open_input_stream(self.path(name), compression=None) as stream:
            content: bytes = stream.read()
        return content

    def read(self, name: str) -> pa.Table:
        """The shard `name`; FileNotFoundError if absent, StoreError if a single byte of it is not as committed."""
        with self._told(), self._fs.open_input_stream(self.path(name), compression=None) as stream:
            content = stream.read()
        return deserialise(name, content)

    def look(self, folder: str) -> tuple[set[str], list[StoreProblem]]:
        """Names of the shards in a folder that are complete as far as their ends can tell, and what else lies there."""
        names, problems = set(), []
        for name, whole in self._scan(folder):
            if _SHARD.fullmatch(name):
                if whole:
                    names.add(name)
                else:
                    problems.append(StoreProblem(name, "damaged", "cut short"))
            elif _STALE.fullmatch(name.rsplit("/", 1)[-1]):
                problems.append(StoreProblem(name, "temporary", "a write that was never finished; it counts nowhere"))
            else:
                problems.append(StoreProblem(name, "foreign", "not written by Seesaw; it counts nowhere"))
        return names, problems

    def names(self, folder: str) -> set[str]:
        """The names that `look` finds."""
        return self.look(folder)[0]

    def problems(self, folder: str) -> list[StoreProblem]:
        """The problems that `look` finds."""
        return self.look(folder)[1]

    def quarantine(self, name: str) -> str:
        """Move a damaged shard out of the way, so that it is made again; nothing is deleted."""
        target = f"damaged/{name}.{uuid.uuid4().hex[:8]}"
        with self._told():
            if self._local:
                self._make_folder(os.path.dirname(target))
            self._fs.move(self.path(name), self.path(target))
        return target

    def folders(self, kinds: Sequence[str] = ("images", "answers")) -> list[str]:
        """Every folder that may hold shards."""
        found = []
        for kind in kinds:
            found += [f"{kind}/{i.base_name}" for i in self._list(kind) if i.type == fs.FileType.Directory]
        return sorted(found)

    def folder(self, kind: str, name: str, identity: str) -> str:
        """Where a model's images or a VLM's answers lie, whatever it was called when the first of them came."""
        there = [folder for folder in self.folders([kind]) if folder.endswith(f"-{identity}")]
        return there[0] if there else shard_folder(kind, name, identity)

    def verify(self) -> Iterator[tuple[str, StoreProblem | None]]:
        """Check every byte of every shard: (name, None) for a sound one, (name, problem) for what is not."""
        known = {"images", "answers", "damaged", "costs", MARK}
        for info in self._list(""):
            if info.base_name not in known:
                yield (
                    info.base_name,
                    StoreProblem(info.base_name, "foreign", "not written by Seesaw; it counts nowhere"),
                )
        for kind in ("images", "answers"):
            for info in self._list(kind):
                if info.type != fs.FileType.Directory:
                    name = f"{kind}/{info.base_name}"
                    yield name, StoreProblem(name, "foreign", "not written by Seesaw; it counts nowhere")
        for folder in self.folders():
            odd = {p.name: p for p in self.problems(folder)}
            for name, _ in self._scan(folder):
                if name in odd:
                    yield name, odd[name]
                    continue
                try:
                    check_name(name, self.read(name))
                except StoreError as error:
                    yield name, StoreProblem(name, "damaged", str(error))
                else:
                    yield name, None

    def _list(self, folder: str) -> list[fs.FileInfo]:
        """What lies in a folder, nothing if there is no such folder; never nothing because the store is away."""
        with self._told():
            place = self.path(folder) if folder else self._base
            found: list[fs.FileInfo] = self._fs.get_file_info(fs.FileSelector(place, allow_not_found=True))
            if not found:
                self._check_root()
            return found

    def _scan(self, folder: str) -> list[tuple[str, bool]]:
        """(name, ends as Parquet does) of everything in a folder, sorted. Remote stores never cut a PUT short."""
        if not self._local:
            infos = self._list(folder)
            return sorted((f"{folder}/{i.base_name}", i.type == fs.FileType.File and i.size > 12) for i in infos)
        found = []
        with self._told():
            try:
                entries = list(os.scandir(self.path(folder)))
            except (FileNotFoundError, NotADirectoryError):
                entries = []
            with ThreadPoolExecutor(LOOKERS) as pool:  # what is not in memory takes a disk's or a server's time each
                for some in pool.map(_ends, (entries[first::LOOKERS] for first in range(LOOKERS))):
                    found += [(f"{folder}/{name}", whole) for name, whole in some]
            self._check_root()
        return sorted(found)

    def _make_folder(self, folder: str) -> None:
        """Make a folder of a local store; its root only if it never was there."""
        if not self._made:
            os.makedirs(self._base, exist_ok=True)
            self._made, self._mounted = True, os.path.ismount(self._base)
        self._check_root()
        place = self._base
        for part in filter(None, folder.split("/")):
            place = f"{place}/{part}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(place)

    def _check_root(self) -> None:
        """Raise FileNotFoundError if the root is not there any more, EnvironmentFault if there is no such bucket."""
        if self._gone():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._base)
        bucket = "" if self._local else self._base.partition("/")[0]
        if bucket and self._fs.get_file_info(bucket).type == fs.FileType.NotFound:
            raise no_bucket(self.root, f"there is no '{bucket}'")

    def _gone(self) -> bool:
        """True if the root is not where it was. What else is wrong with it, the call that meets it says."""
        if not self._made:
            return False
        try:
            os.stat(self._base)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        unmarked = self._marked and not os.path.exists(self.path(MARK))
        return unmarked or (self._mounted and not os.path.ismount(self._base))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what filesystems raise into what it means."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            told = meaning(error, self.root, local=self._local, gone=self._gone())
            if told is error:
                raise
            raise told from error


def _ends(entries: Sequence[os.DirEntry[str]]) -> list[tuple[str, bool]]:
    """(name, is a file that ends as Parquet does) of what is still there."""
    found = []
    for entry in entries:
        # a temporary file that a live writer has just renamed is gone, and its folder is not empty for it
        with contextlib.suppress(FileNotFoundError):
            found.append((entry.name, entry.is_file() and _ends_whole(entry.path)))
    return found


def _ends_whole(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(handle).st_size
        return size >= 12 and os.pread(handle, 4, size - 4) == b"PAR1"
    finally:
        os.close(handle)
