"""Bringing the shards of one store into another: what lacks there is copied, what is there stays as it is.

A shard's name stands for what is in it, so copying one twice changes nothing, and a copy that was killed goes on. A
shard is copied only if every byte of it is as it was committed. Damaged, foreign and conflicting ones (of one name and
of different content) are left where they are and reported. Nothing is ever overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from pyarrow import fs

from seesaw.results.errors import SeesawError, StoreError
from seesaw.results.store.inventory import folder_contents
from seesaw.results.store.shards import ENDING, digest_in
from seesaw.results.store.store import READERS, Store, StoreProblem, problem_in

__all__ = ["Transfer", "copy_shards", "plan_transfer", "remove_copied"]


@dataclass(frozen=True)
class Transfer:
    """What copying one store into another would do. Names are pairs: in the one, and in the other."""

    lacking: tuple[tuple[str, str], ...]
    same: tuple[tuple[str, str], ...]
    problems: tuple[StoreProblem, ...]  #: of kind conflict or foreign
    size: int  #: bytes of the shards that are to be copied


def plan_transfer(source: Store, target: Store) -> Transfer:
    """Compare two stores, by the names of their shards and by the SHA-256 that those of one name carry."""
    size, lacking, shared, problems = 0, [], [], []
    there = {content.folder: content for content in folder_contents(target)}
    for content in folder_contents(source):
        if not content.identity:
            problems.append(StoreProblem(content.folder, "foreign", "not written by Seesaw; it is not copied"))
            continue
        folder = target.folder(content.kind, content.name, content.identity)
        held = there[folder].shards if folder in there else {}
        others = {name.rpartition("/")[2] for name in there[folder].others} if folder in there else set()
        pairs = [(name, f"{folder}/{name.rpartition('/')[2]}") for name in content.shards]
        shared += [pair for pair in pairs if pair[1] in held]
        for name, copy in pairs:
            if copy not in held and name.rpartition("/")[2] in others:
                problems.append(StoreProblem(name, "conflict", f"'{copy}' in '{target.root}' is no file; it is left"))
            elif copy not in held:
                lacking.append((name, copy))
                size += content.shards[name]
        unfinished = [name for name in content.others if not name.endswith(".tmp")]
        problems += [StoreProblem(name, "foreign", "not written by Seesaw; it is not copied") for name in unfinished]
    same = []
    with ThreadPoolExecutor(READERS) as pool:
        for pair, equal in zip(shared, pool.map(lambda pair: _equal(source, target, *pair), shared), strict=True):
            if equal:
                same.append(pair)
            else:
                message = f"'{target.root}' has another of this name; both are left as they are"
                problems.append(StoreProblem(pair[0], "conflict", message))
    return Transfer(tuple(lacking), tuple(same), tuple(problems), size)


def _equal(source: Store, target: Store, name: str, copy: str) -> bool:
    try:
        digests = [digest_in(store.end(each, ENDING)) for store, each in ((source, name), (target, copy))]
    except (StoreError, FileNotFoundError):
        return False
    return digests[0] == digests[1] != ""


def copy_shards(source: Store, target: Store, transfer: Transfer) -> Iterator[tuple[str, StoreProblem | None]]:
    """Copy what lacks: the name of each shard, and why it was left, if it was."""
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(lambda pair: _copy(source, target, *pair), transfer.lacking)
    _copy_costs(source, target)


def _copy(source: Store, target: Store, name: str, copy: str) -> tuple[str, StoreProblem | None]:
    try:
        content = source.content(name)
    except FileNotFoundError:  # a driver has moved it aside meanwhile
        return name, StoreProblem(name, "damaged", "gone from the store meanwhile")
    except StoreError as error:
        return name, StoreProblem(name, "damaged", str(error))
    problem = problem_in(name, content)
    if problem is not None and problem.kind == "damaged":
        return name, problem
    target.put(copy, content)
    return name, None


def _copy_costs(source: Store, target: Store) -> None:
    """Measured seconds of models that the other store knows nothing of; they are estimates, and may lack."""
    for info in source.entries("costs"):
        name = f"costs/{info.base_name}"
        with suppress(SeesawError, OSError):
            if info.type == fs.FileType.File and info.base_name not in {i.base_name for i in target.entries("costs")}:
                target.keep(name, source.recall(name))


def remove_copied(source: Store, target: Store, removed: Callable[[str], None]) -> list[StoreProblem]:
    """Remove from `source` each shard of which `target` has every byte; returns what is left there, and why."""
    transfer = plan_transfer(source, target)
    left = [*transfer.problems]
    left += [StoreProblem(name, "damaged", "not copied, so it is left where it is") for name, _ in transfer.lacking]

    def check(pair: tuple[str, str]) -> bool:
        try:
            return _digest(source.content(pair[0])) == _digest(target.content(pair[1]))
        except (StoreError, FileNotFoundError):
            return False

    with ThreadPoolExecutor(READERS) as pool:
        for (name, copy), equal in zip(transfer.same, pool.map(check, transfer.same), strict=True):
            if equal:
                source.remove(name)
                removed(name)
            else:
                left.append(StoreProblem(name, "damaged", f"differs from '{copy}' in '{target.root}'; both are left"))
    return left


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
