"""Names in a store: which folders are of a model or VLM, and which files are shards or writes that never ended."""

from __future__ import annotations

import re

from seesaw.results.store.shards import readable_name

__all__ = ["identity_of", "is_shard", "is_unfinished", "shard_folder"]

_SHARD = re.compile(r"(images/[\w.-]+/[0-9a-f]{32}|answers/[\w.-]+/[0-9a-f]{32}-[0-9a-f]{32})\.parquet")
_FOLDER = re.compile(r"(?:images|answers)/[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}-([0-9a-f]{32})")
_UNFINISHED = re.compile(r"\.[\w.-]+\.tmp")


def shard_folder(kind: str, name: str, identity: str) -> str:
    """Folder of a model's images or a VLM's answers: its name, made safe for a path, and its identity."""
    return f"{kind}/{readable_name(name)}-{identity}"


def is_shard(name: str) -> bool:
    """Whether a file could be a shard, by its name."""
    return _SHARD.fullmatch(name) is not None


def is_unfinished(name: str) -> bool:
    """Whether a file is the temporary one of a write (`results.atomic_write`)."""
    return _UNFINISHED.fullmatch(name.rpartition("/")[2]) is not None


def identity_of(folder: str) -> str:
    """The identity in the name of a folder that a model or VLM could have; "" if it is no such name."""
    match = _FOLDER.fullmatch(folder)
    return match[1] if match else ""
