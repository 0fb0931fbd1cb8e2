"""The store: images and answers by content, as Parquet shards on any filesystem that pyarrow opens.

    images/<model>-<identity>/<batch>.parquet                   one batch of images
    answers/<vlm>-<identity>/<batch>-<questionnaire>.parquet    the answers to one batch
    damaged/...                                                 shards found altered: moved here, never deleted
    costs/...                                                   measured seconds: estimates (`results.store.costs`)
    leases/...                                                  of an object store: who is at work (`store.lock`)

A committed shard *is* the record of completed work; no other ledger can disagree with it. On a local or shared
filesystem a shard is written atomically (`results.atomic_write`), so it is complete or absent, whatever is killed. A
second writer finds the shard and keeps it. Every shard carries its own SHA-256 (`results.store.shards`).

On an object store a commit is one PUT, or from 10 MB on one multipart upload, of which nothing is visible until it is
complete (a bucket rule should delete uploads that were never completed). A writer keeps a shard that it finds when it
looks. If two writers look at the same moment, both put and the last one stays. That is safe: the name stands for the
same images, and on the same hardware for the same bytes. Credentials come only from the environment, the endpoint from
`AWS_ENDPOINT_URL` or the URI (`?endpoint_override=http%3A%2F%2F127.0.0.1%3A9000`). A server that is silent for 5 s is
asked three times, so its absence is reported within about 20 s.

What may pass, such as a full disk or a share or server that is away, is StoreUnavailable: the same Store works again
afterwards. What will not pass, such as denied access or a missing bucket, is EnvironmentFault.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from seesaw.results.atomic_write import atomic_write
from seesaw.results.errors import EnvironmentFault, StoreError
from seesaw.results.secrets import first_line
from seesaw.results.store.filesystem import meaning, no_bucket, open_filesystem
from seesaw.results.store.names import identity_of, is_shard, is_unfinished, shard_folder
from seesaw.results.store.parquet import end_of_file, regular_file
from seesaw.results.store.shards import (
    ANSWER_SHARD,
    IMAGE_SHARD,
    LARGEST_SHARD,
    check_name,
    check_vlm,
    deserialise,
    serialise,
)

__all__ = [
    "ANSWER_SHARD",
    "IMAGE_SHARD",
    "LEASES",
    "MARK",
    "READERS",
    "Store",
    "StoreProblem",
    "problem_in",
    "shard_folder",
]

MARK = ".seesaw"  #: marks a local store: the mount point of a share that is away has none
LEASES = "leases"  #: in an object store: who is at work on it (`results.store.lock`)
LARGEST_NOTE = 1 << 20  #: bytes of a file that is no shard
READERS = 16  #: threads that read the ends of shards; a folder may have hundreds of thousands
COMMITS = 5  #: tries to commit a shard whose name something else takes
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreProblem:
    """Something in the store that is not a sound shard. `kind` is damaged, temporary, foreign or unproven."""

    name: str
    kind: str
    message: str


class Store:
    """Shards under one root: a directory, or a URI such as `s3://bucket/prefix` (credentials from the environment).

    `exists` says that somebody has probed the store already. If its root is then missing, or is not a store, it counts
    as away and is not created again.

    Raises:
        ConfigError: the URI holds credentials.
        EnvironmentFault: no such filesystem or bucket, or access is denied; so does every method.
        StoreUnavailable: the store is full or away for now; so does every method but `probe`.

    Example::

        store = seesaw.Store("outputs/store")
        {folder: len(store.names(folder)) for folder in store.folders()}
        damaged = [problem for name, problem in store.verify() if problem]
    """

    def __init__(self, root: str | Path, exists: bool = False) -> None:
        self.root = str(root)
        self._fs, self._base = open_filesystem(self.root)
        self.local = isinstance(self._fs, fs.LocalFileSystem)
        # a root that existed once is never created again: if a share is not mounted, that would fill the local disk
        self._exists = self.local and (exists or os.path.isdir(self._base))
        self._mounted = self._exists and os.path.ismount(self._base)
        self._marked = self.local and (exists or os.path.exists(self.path(MARK)))

    def path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def is_there(self) -> bool:
        """Whether anything of a store is at its place. An empty folder, such as a mount point, is none."""
        marked = self.local and os.path.exists(self.path(MARK))
        return marked or any(self.entries(kind) for kind in ("images", "answers"))

    def probe(self) -> None:
        """Raise EnvironmentFault unless the store can be written and read, before any GPU hour is spent."""
        name, sent = self.path(f".probe-{uuid.uuid4().hex}.tmp"), b"seesaw"
        try:
            if self.local:
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
            fault = meaning(error, self.root, local=self.local, gone=self._gone())
            if not isinstance(fault, EnvironmentFault):
                fault = EnvironmentFault(f"store '{self.root}' cannot be written: {first_line(error)}")
            raise fault from error
        if kept != sent:  # a server that does not support trailing checksums stores them as content
            raise EnvironmentFault(
                f"store '{self.root}' does not return the bytes that were written to it; if its server does not "
                "support checksums in requests, set AWS_REQUEST_CHECKSUM_CALCULATION=WHEN_REQUIRED in the environment"
            )

    def commit(self, name: str, table: pa.Table) -> bool:
        """Write `table` as the shard `name`, atomically. False if the shard exists already, which is kept."""
        return self.put(name, serialise(table, name))

    def put(self, name: str, content: bytes) -> bool:
        """Write the bytes of a shard, as `commit` does."""
        with self._translated():
            return self._write_file(name, content) if self.local else self._put_object(name, content)

    def commit_or_keep(self, name: str, table: pa.Table) -> pa.Table:
        """Commit `table` as the shard `name`, or keep the sound shard of that name; the shard that the store has then.

        Anything else of that name, a folder or a FIFO among them, is moved to `damaged/`: it came after this store was
        listed, and no fault of the batch. Raises StoreError if it comes back each time.
        """
        content = serialise(table, name)
        for _ in range(COMMITS):
            if self.put(name, content):
                return table
            try:
                stored = self.read(name)
                check_name(name, stored)
            except (StoreError, FileNotFoundError) as error:  # a link may lead nowhere
                with contextlib.suppress(FileNotFoundError):  # another writer has moved it
                    log.warning("%s; moved to %s", error, self.quarantine(name))
            else:
                return stored
        raise StoreError(f"shard '{name}' cannot be committed: something else takes its name again and again")

    def quarantined(self) -> set[str]:
        """Names of all that `quarantine` has moved."""
        return {
            f"damaged/{kind}/{folder.base_name}/{info.base_name}"
            for kind in ("images", "answers")
            for folder in self.entries(f"damaged/{kind}")
            if folder.type == fs.FileType.Directory
            for info in self.entries(f"damaged/{kind}/{folder.base_name}")
        }

    def gone(self, folder: str, names: Iterable[str]) -> set[str]:
        """Those of `names`, shards in `folder`, that are not there now."""
        there = {f"{folder}/{info.base_name}" for info in self.entries(folder)}
        return {name for name in names if name.startswith(f"{folder}/")} - there

    def _put_object(self, name: str, content: bytes) -> bool:
        path = self.path(name)
        if self._fs.get_file_info(path).type == fs.FileType.File:
            return False
        with self._fs.open_output_stream(path) as stream:
            stream.write(content)
        return True

    def _write_file(self, name: str, content: bytes) -> bool:
        self._make_folder(os.path.dirname(name))
        try:
            with atomic_write(self.path(name), exclusive=True) as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def keep(self, name: str, content: bytes) -> None:
        """Write a file that is not a shard and may be replaced, atomically."""
        with self._translated():
            if self.local:
                self._make_folder(os.path.dirname(name))
                with atomic_write(self.path(name)) as file:
                    file.write(content)
            else:
                with self._fs.open_output_stream(self.path(name)) as stream:
                    stream.write(content)

    def recall(self, name: str) -> bytes:
        """The content that `keep` wrote as `name`; FileNotFoundError if there is none, StoreError if it is no file."""
        return self._content(name, LARGEST_NOTE)

    def read(self, name: str) -> pa.Table:
        """The shard `name`. FileNotFoundError if it is absent, StoreError if it is not as it was committed."""
        return deserialise(name, self.content(name))

    def content(self, name: str) -> bytes:
        """The bytes of a shard, whatever they are. FileNotFoundError if it is absent, StoreError if it is too large."""
        return self._content(name, LARGEST_SHARD)

    def end(self, name: str, count: int) -> bytes:
        """The last `count` bytes of a shard, or all if it has fewer. Raises as `content` does."""
        with self._translated():
            if self.local:
                return self._refusing(name, lambda: end_of_file(self.path(name), count))
            with self._fs.open_input_file(self.path(name)) as file:
                size = file.size()
                ending: bytes = file.read_at(min(count, size), max(0, size - count))
            return ending

    def _content(self, name: str, largest: int) -> bytes:
        with self._translated():
            if self.local:
                return self._refusing(name, lambda: regular_file(self.path(name), largest))
            with self._fs.open_input_file(self.path(name)) as file:  # asks for the size first
                if file.size() > largest:
                    raise StoreError(
                        f"'{name}' cannot be read: it has {file.size():,} bytes, and {largest:,} are the most"
                    )
                content: bytes = file.read_at(file.size(), 0)
            return content

    def _refusing(self, name: str, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except pa.ArrowInvalid as error:
            raise StoreError(f"'{name}' cannot be read: {error}") from error

    def remove(self, name: str) -> None:
        """Remove a file for good, if it is there, and its folder if that is empty then."""
        with self._translated():
            if not self.local:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_file(self.path(name))
                return
            self._check_root()
            Path(self.path(name)).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # further files are in it
                os.rmdir(os.path.dirname(self.path(name)))

    def look(self, folder: str) -> tuple[set[str], list[StoreProblem]]:
        """Names of the shards in a folder that end as a complete shard does, and problems with all else there.

        Further folders of the same model are problems too.
        """
        message = f"a further folder of the same model; '{folder}' is read instead"
        names, problems = set(), [StoreProblem(other, "foreign", message) for other in self._others(folder)]
        for name, problem in self._looked_at(folder):
            if problem is None:
                names.add(name)
            else:
                problems.append(problem)
        return names, problems

    def _looked_at(self, folder: str) -> Iterator[tuple[str, StoreProblem | None]]:
        """Everything in a folder, and why it is no shard that ends as a complete one does."""
        for name, complete in self._scan(folder):
            if is_shard(name):
                problem = None if complete else StoreProblem(name, "damaged", "cut short")
            elif is_unfinished(name):
                problem = StoreProblem(name, "temporary", "a write that was never finished; it counts nowhere")
            else:
                problem = _foreign(name)
            yield name, problem

    def names(self, folder: str) -> set[str]:
        """The names in `look`."""
        return self.look(folder)[0]

    def problems(self, folder: str) -> list[StoreProblem]:
        """The problems in `look`."""
        return self.look(folder)[1]

    def quarantine(self, name: str) -> str:
        """Move a damaged shard to `damaged/`, so that it is made again. Nothing is deleted. Returns its new name."""
        target = f"damaged/{name}.{uuid.uuid4().hex[:8]}"
        with self._translated():
            if self.local:
                self._make_folder(os.path.dirname(target))
            self._fs.move(self.path(name), self.path(target))
        return target

    def folders(self, kinds: Sequence[str] = ("images", "answers")) -> list[str]:
        """Every folder that may hold shards."""
        return sorted(
            f"{kind}/{info.base_name}"
            for kind in kinds
            for info in self.entries(kind)
            if info.type == fs.FileType.Directory
        )

    def folder(self, kind: str, name: str, identity: str) -> str:
        """The folder of a model's images or a VLM's answers.

        It is the one of this name and identity. If there is none, the model was renamed since, and it is the one of
        this identity; of several, the one with the most shards.
        """
        exact = shard_folder(kind, name, identity)
        folders = [folder for folder in self.folders([kind]) if identity_of(folder) == identity]
        return max(folders, key=lambda folder: (folder == exact, len(self.names(folder))), default=exact)

    def _others(self, folder: str) -> list[str]:
        """Further folders of the same model, such as copies."""
        kind, identity = folder.partition("/")[0], identity_of(folder)
        folders = self.folders([kind]) if identity else []
        return [other for other in folders if other != folder and identity_of(other) == identity]

    def verify(self) -> Iterator[tuple[str, StoreProblem | None]]:
        """Check every byte of every shard: (name, None) for a sound one, (name, problem) for anything else."""
        own = {"images", "answers", "damaged", "costs", LEASES, MARK}
        for info in self.entries(""):
            if info.base_name not in own:
                yield (
                    info.base_name,
                    _foreign(info.base_name),
                )
        for kind in ("images", "answers"):
            for info in self.entries(kind):
                if info.type != fs.FileType.Directory:
                    name = f"{kind}/{info.base_name}"
                    yield name, _foreign(name)
        for folder in self.folders():
            if others := self._others(folder):
                message = f"one of several folders of the same model: {', '.join(others)}; a run reads one of them"
                yield folder, StoreProblem(folder, "foreign", message)
            for name, problem in self._looked_at(folder):
                yield name, problem or self._problem_of(name)

    def _problem_of(self, name: str) -> StoreProblem | None:
        try:
            content = self.content(name)
        except StoreError as error:
            return StoreProblem(name, "damaged", str(error))
        return problem_in(name, content)

    def entries(self, folder: str) -> list[fs.FileInfo]:
        """What a folder contains; [] if there is no such folder. A store that is away raises and never looks empty."""
        with self._translated():
            place = self.path(folder) if folder else self._base
            infos: list[fs.FileInfo] = self._fs.get_file_info(fs.FileSelector(place, allow_not_found=True))
            if not infos:
                self._check_root()
            return infos

    def _scan(self, folder: str) -> list[tuple[str, bool]]:
        """(name, whether it ends as Parquet does) of all in a folder, sorted. An object store has no half objects."""
        if not self.local:
            infos = self.entries(folder)
            return sorted((f"{folder}/{i.base_name}", i.type == fs.FileType.File and i.size > 12) for i in infos)
        names = []
        with self._translated():
            try:
                entries = list(os.scandir(self.path(folder)))
            except (FileNotFoundError, NotADirectoryError):
                entries = []
            with ThreadPoolExecutor(READERS) as pool:  # each file that is not in memory waits for a disk or a server
                for some in pool.map(_ends, (entries[first::READERS] for first in range(READERS))):
                    names += [(f"{folder}/{name}", complete) for name, complete in some]
            self._check_root()
        return sorted(names)

    def _make_folder(self, folder: str) -> None:
        """Create a folder of a local store, and its root only if it never existed."""
        if not self._exists:
            os.makedirs(self._base, exist_ok=True)
            self._exists, self._mounted = True, os.path.ismount(self._base)
        self._check_root()
        place = self._base
        for part in filter(None, folder.split("/")):
            place = f"{place}/{part}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(place)
            if not os.path.isdir(place):
                raise EnvironmentFault(
                    f"store '{self.root}': '{place}' is no folder, and must be one; move it elsewhere"
                )

    def _check_root(self) -> None:
        """Raise FileNotFoundError if the root has gone, EnvironmentFault if the bucket does not exist."""
        if self._gone():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._base)
        bucket = "" if self.local else self._base.partition("/")[0]
        if bucket and self._fs.get_file_info(bucket).type == fs.FileType.NotFound:
            raise no_bucket(self.root, f"there is no '{bucket}'")

    def _gone(self) -> bool:
        """Whether the root has gone. Other faults show in the call that meets them."""
        if not self._exists:
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
    def _translated(self) -> Iterator[None]:
        """Turn an error of the filesystem into the error of ours that it means (`meaning`)."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            translated = meaning(error, self.root, local=self.local, gone=self._gone())
            if translated is error:
                raise
            raise translated from error


def _foreign(name: str) -> StoreProblem:
    return StoreProblem(name, "foreign", "not written by Seesaw; it counts nowhere")


def problem_in(name: str, content: bytes) -> StoreProblem | None:
    """What is wrong with the bytes of a shard, read to the last one; None if it is what its name says."""
    try:
        table = deserialise(name, content)
        if name.startswith("images/"):
            check_name(name, table)
            return None
    except StoreError as error:
        return StoreProblem(name, "damaged", str(error))
    try:
        check_vlm(name, table)
    except StoreError as error:
        message = f"{error}, and no identity, as version 0.1.0 wrote them; a run takes them if its VLM has that name"
        return StoreProblem(name, "unproven", message)
    return None


def _ends(entries: Sequence[os.DirEntry[str]]) -> list[tuple[str, bool]]:
    """(name, whether it is a file that ends as Parquet does) of the entries that still exist."""
    names = []
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # a temporary file that its writer has renamed in the meantime
            names.append((entry.name, entry.is_file() and _ends_as_parquet(entry.path)))
    return names


def _ends_as_parquet(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO that has just taken its place is not waited for
    try:
        size = os.fstat(handle).st_size
        return size >= 12 and os.pread(handle, 4, size - 4) == b"PAR1"
    finally:
        os.close(handle)
