"""The store: images and answers by content, as Parquet shards on any filesystem that pyarrow opens.

    images/<model>-<identity>/<batch>.parquet                     one batch of images
    answers/<vlm>-<identity>/<batch>-<questionnaire>.parquet      the answers to one batch
    damaged/...                                                   shards found altered, moved here, never deleted

A committed shard *is* the record of completion; there is no other ledger. On a local or shared filesystem it is written
aside, fsynced and linked into place: complete or absent, whatever is killed. Whoever commits second adopts what is
there. On object stores one PUT does the same. Every shard carries the SHA-256 of itself: its footer holds 64
hex digits that were zeros when the hash was taken, so that no flipped byte goes unseen, in data or metadata.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from results.errors import EnvironmentFault, StoreError
from results.identity import batch_key, image_key

__all__ = ["ANSWERS", "IMAGES", "Problem", "Store", "shard_folder"]

IMAGES = pa.schema(
    [
        ("image_key", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("model", pa.string()),
        ("prompt", pa.string()),
        ("adapter", pa.string()),
        ("seed", pa.int64()),
        ("withheld", pa.string()),  # "" for an image that may be asked, else why not: blank, flagged
    ]
)
ANSWERS = pa.schema(
    [
        ("image_key", pa.string()),
        ("question", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("answer", pa.string()),
        ("probabilities", pa.list_(pa.float64())),
        ("mass", pa.float64()),
        ("vlm", pa.string()),
    ]
)
_FEATURES = {
    **{name: {"dtype": str(IMAGES.field(name).type), "_type": "Value"} for name in IMAGES.names if name != "image"},
    "image": {"_type": "Image"},
}
_HUGGING_FACE = {"huggingface": json.dumps({"info": {"features": {n: _FEATURES[n] for n in IMAGES.names}}})}
_DIGEST = "seesaw.sha256"
_ZEROS = b"0" * 64
_SHARD = re.compile(r"(images/[\w.-]+/[0-9a-f]{32}|answers/[\w.-]+/[0-9a-f]{32}-[0-9a-f]{32})\.parquet")
_STALE = re.compile(r"\.[\w.-]+\.tmp")


@dataclass(frozen=True)
class Problem:
    """Something in the store that is not a sound shard: `kind` is damaged, temporary or foreign."""

    name: str
    kind: str
    message: str


def shard_folder(kind: str, name: str, identity: str) -> str:
    """Folder of a model's images or a VLM's answers: a readable name, made safe for a path, and its identity."""
    return f"{kind}/{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-')[:60] or 'model'}-{identity}"


class Store:
    """Shards under one root: a directory, or a URI such as `s3://bucket/prefix` (credentials from the environment)."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        try:
            if "://" in self.root:
                self._fs, self._base = fs.FileSystem.from_uri(self.root)
            else:
                self._fs, self._base = fs.LocalFileSystem(), str(Path(self.root).absolute())
        except (pa.ArrowInvalid, OSError) as error:
            raise EnvironmentFault(f"store '{self.root}' cannot be opened: {error}") from error
        self._local = isinstance(self._fs, fs.LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def probe(self) -> None:
        """Raise EnvironmentFault unless the store can be written, before any GPU hour is spent on it."""
        name = self.path(f".probe-{uuid.uuid4().hex}.tmp")
        try:
            self._fs.create_dir(self._base, recursive=True)
            with self._fs.open_output_stream(name) as stream:
                stream.write(b"seesaw")
            self._fs.delete_file(name)
        except OSError as error:
            raise EnvironmentFault(f"store '{self.root}' cannot be written: {error}") from error

    def commit(self, name: str, table: pa.Table) -> bool:
        """Make `table` the shard `name`, whole or not at all; False if the shard was there already (it stays)."""
        content = _serialise(table)
        path = self.path(name)
        if not self._local:
            if self._fs.get_file_info(path).type == fs.FileType.File:
                return False
            with self._fs.open_output_stream(path) as stream:
                stream.write(content)
            return True
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        aside = f"{folder}/.{os.path.basename(path)}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(aside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(aside, path)
            except FileExistsError:
                return False
            except OSError:  # a filesystem without hard links: rename, and the last writer wins
                os.replace(aside, path)
            _fsync_folder(folder)
            return True
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise EnvironmentFault(f"store '{self.root}' is full: {error.strerror}; make room and go on") from error
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)

    def read(self, name: str) -> pa.Table:
        """The shard `name`; FileNotFoundError if absent, StoreError if a single byte of it is not as committed."""
        with self._fs.open_input_stream(self.path(name), compression=None) as stream:
            content = stream.read()
        return _deserialise(name, content)

    def names(self, folder: str) -> set[str]:
        """Names of the shards in a folder that are complete as far as a look at their ends can tell."""
        return {name for name, whole in self._scan(folder) if whole and _SHARD.fullmatch(name)}

    def problems(self, folder: str) -> list[Problem]:
        """What in a folder is no shard, without reading shards whole."""
        found = []
        for name, whole in self._scan(folder):
            base = name.rsplit("/", 1)[-1]
            if _STALE.fullmatch(base):
                found.append(Problem(name, "temporary", "a write that was never finished; it counts nowhere"))
            elif not _SHARD.fullmatch(name):
                found.append(Problem(name, "foreign", "not written by Seesaw; it counts nowhere"))
            elif not whole:
                found.append(Problem(name, "damaged", "cut short"))
        return found

    def quarantine(self, name: str) -> str:
        """Move a damaged shard out of the way, so that it is made again; nothing is deleted."""
        target = f"damaged/{name}.{uuid.uuid4().hex[:8]}"
        self._fs.create_dir(os.path.dirname(self.path(target)), recursive=True)
        self._fs.move(self.path(name), self.path(target))
        return target

    def folders(self, kinds: Sequence[str] = ("images", "answers")) -> list[str]:
        """Every folder that may hold shards."""
        found = []
        for kind in kinds:
            selector = fs.FileSelector(self.path(kind), allow_not_found=True)
            found += [
                f"{kind}/{i.base_name}" for i in self._fs.get_file_info(selector) if i.type == fs.FileType.Directory
            ]
        return sorted(found)

    def folder(self, kind: str, name: str, identity: str) -> str:
        """Where a model's images or a VLM's answers lie, whatever it was called when the first of them came."""
        there = [folder for folder in self.folders([kind]) if folder.endswith(f"-{identity}")]
        return there[0] if there else shard_folder(kind, name, identity)

    def verify(self) -> Iterator[tuple[str, Problem | None]]:
        """Check every byte of every shard: (name, None) for a sound one, (name, problem) for what is not."""
        known = {"images", "answers", "damaged"}
        for info in self._fs.get_file_info(fs.FileSelector(self._base, allow_not_found=True)):
            if info.base_name not in known:
                yield info.base_name, Problem(info.base_name, "foreign", "not written by Seesaw; it counts nowhere")
        for kind in ("images", "answers"):
            for info in self._fs.get_file_info(fs.FileSelector(self.path(kind), allow_not_found=True)):
                if info.type != fs.FileType.Directory:
                    name = f"{kind}/{info.base_name}"
                    yield name, Problem(name, "foreign", "not written by Seesaw; it counts nowhere")
        for folder in self.folders():
            odd = {p.name: p for p in self.problems(folder)}
            for name, _ in self._scan(folder):
                if name in odd:
                    yield name, odd[name]
                    continue
                try:
                    _check_name(name, self.read(name))
                except StoreError as error:
                    yield name, Problem(name, "damaged", str(error))
                else:
                    yield name, None

    def _scan(self, folder: str) -> list[tuple[str, bool]]:
        """(name, ends as Parquet does) of everything in a folder, sorted. Remote stores never cut a PUT short."""
        if not self._local:
            infos = self._fs.get_file_info(fs.FileSelector(self.path(folder), allow_not_found=True))
            return sorted((f"{folder}/{i.base_name}", i.size > 12) for i in infos)
        try:
            entries = list(os.scandir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for entry in entries:
            # a temporary file that a live writer has just renamed is gone, and its folder is not empty for it
            with contextlib.suppress(FileNotFoundError):
                found.append((f"{folder}/{entry.name}", entry.is_file() and _ends_whole(entry.path)))
        return sorted(found)


def _ends_whole(path: str) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) < 12:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read(4) == b"PAR1"


def _serialise(table: pa.Table) -> bytes:
    schema = table.schema.with_metadata(_HUGGING_FACE) if table.schema.names == IMAGES.names else table.schema
    sink = pa.BufferOutputStream()
    # PNGs do not compress again, and a page checksum tells readers other than us of a flipped byte too
    codec: Any = {name: "NONE" if name.startswith("image.") else "ZSTD" for name in _leaves(schema)}
    with pq.ParquetWriter(
        sink, schema, compression=codec, write_page_checksum=True, write_statistics=False, store_schema=True
    ) as writer:
        writer.write_table(table.cast(schema))
        writer.add_key_value_metadata({_DIGEST: _ZEROS.decode()})
    content: bytes = sink.getvalue().to_pybytes()
    at = _digest_at(content)
    return content[:at] + hashlib.sha256(content).hexdigest().encode() + content[at + 64 :]


def _leaves(schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from (f"{field.name}.{field.type.field(i).name}" for i in range(field.type.num_fields))
        elif pa.types.is_list(field.type):
            yield f"{field.name}.list.element"
        else:
            yield field.name


def _digest_at(content: bytes) -> int:
    """Offset of the 64 hex digits in the footer, -1 without them."""
    at = content.rfind(_DIGEST.encode())
    if at < 0:
        return -1
    found = re.compile(rb"[0-9a-f]{64}").search(content, at + len(_DIGEST))
    return found.start() if found else -1


def _deserialise(name: str, content: bytes) -> pa.Table:
    at = _digest_at(content)
    if at < 0 or content[-4:] != b"PAR1":
        raise StoreError(f"shard '{name}' is cut short or was not written by Seesaw ({len(content)} bytes)")
    claimed = content[at : at + 64].decode()
    if hashlib.sha256(content[:at] + _ZEROS + content[at + 64 :]).hexdigest() != claimed:
        raise StoreError(f"shard '{name}' was altered after it was committed: its SHA-256 is not the one it carries")
    return pq.read_table(pa.BufferReader(content))


def _check_name(name: str, table: pa.Table) -> None:
    """StoreError if images lie under a name that is not theirs: a name follows from model, prompt and seeds."""
    kind, folder, file = name.split("/")
    if kind != "images":
        return
    identity = folder.rpartition("-")[2]
    columns = [table.column(c).to_pylist() for c in ("prompt", "adapter", "seed", "image_key")]
    prompts, adapters, seeds, keys = columns
    sound = (
        len({*zip(prompts, adapters, strict=True)}) == 1
        and file == f"{batch_key(identity, prompts[0], adapters[0], seeds)}.parquet"
        and keys == [image_key(identity, prompts[0], adapters[0], seed) for seed in seeds]
    )
    if not sound:
        raise StoreError(f"shard '{name}' holds images of another batch than its name says")


def _fsync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
