"""Removing shards for good: of models and VLMs, with what belongs to them, in an order that a kill does not spoil."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from seesaw.results.errors import InputError, nearest
from seesaw.results.store.inventory import FolderContent, folder_contents
from seesaw.results.store.names import is_unfinished
from seesaw.results.store.store import MARK, Store

__all__ = ["Removal", "plan_removal", "remove", "remove_empty_store", "unreferenced"]

UNFINISHED = 3600.0  #: seconds after which a temporary file was left by a writer that was killed
_ENOUGH = 6  #: characters of an identity that name a model


@dataclass(frozen=True)
class Removal:
    """What is to be removed: files by folder, bytes of them, in the order in which they go."""

    names: dict[str, list[str]]
    size: int
    kept: tuple[str, ...]  #: foreign things in folders of which all shards go

    @property
    def files(self) -> int:
        return sum(map(len, self.names.values()))


def plan_removal(store: Store, chosen: Sequence[str]) -> Removal:
    """What belongs to some models and VLMs: each a folder, a name, or the first characters of an identity.

    To a model belong its images and all answers about them, to a VLM its answers. A folder (`images/NAME-IDENTITY`)
    stands for what is in it alone.

    Raises:
        InputError: there is none, or several have that name.
    """
    contents = list(folder_contents(store))
    folders: list[FolderContent] = []
    of_models: list[FolderContent] = []
    for word in chosen:
        exact = [content for content in contents if content.folder == word.strip("/")]
        found = exact or [content for content in contents if _means(word, content)]
        if not found:
            known = [content.name for content in contents]
            raise InputError(f"'{store.root}' has no model or VLM '{word}'{nearest(word, known)}")
        if len(found) > 1:
            raise InputError(f"'{word}' is several: {', '.join(each.folder for each in found)}; say which")
        folders += found
        of_models += [each for each in found if not exact and each.kind == "images"]
    return _removal(contents, folders, of_models)


def _means(word: str, content: FolderContent) -> bool:
    begins = len(word) >= _ENOUGH and content.identity.startswith(word)
    return word in (content.name, content.folder.partition("/")[2]) or begins


def unreferenced(store: Store, identities: Iterable[str]) -> Removal:
    """What belongs to no model or VLM of these identities, and temporary files of writers that were killed."""
    known, contents = {*identities}, list(folder_contents(store))
    folders = [content for content in contents if content.identity and content.identity not in known]
    removal = _removal(contents, folders, [content for content in folders if content.kind == "images"])
    stale = [name for content in contents for name in content.others if _stale(store, name)]
    if stale:
        removal.names["unfinished writes"] = stale
    return removal


def _stale(store: Store, name: str) -> bool:
    if not is_unfinished(name) or not store.local:
        return False
    with suppress(OSError):
        return time.time() - os.lstat(store.path(name)).st_mtime > UNFINISHED
    return False


def _removal(
    contents: Sequence[FolderContent], folders: Sequence[FolderContent], of_models: Sequence[FolderContent]
) -> Removal:
    """Answers first: what images there are tells which answers are about them, also after a kill."""
    batches = {os.path.basename(name).removesuffix(".parquet") for model in of_models for name in model.shards}
    names: dict[str, list[str]] = {}
    size = 0
    chosen = {content.folder for content in folders}
    for content in sorted(contents, key=lambda content: content.kind):
        going = [
            name
            for name in content.shards
            if content.folder in chosen or os.path.basename(name).partition("-")[0] in batches
        ]
        if going:
            names[content.folder] = going
            size += sum(content.shards[name] for name in going)
    kept = tuple(name for content in folders for name in content.others if not name.endswith(".tmp"))
    return Removal(names, size, kept)


def remove(store: Store, removal: Removal, removed: Callable[[str], None]) -> None:
    """Remove what was planned, and the measured seconds of folders that are gone then."""
    for folder, names in removal.names.items():
        for name in names:
            store.remove(name)
            removed(name)
        if folder.startswith(("images/", "answers/")) and not store.entries(folder):
            store.remove(f"costs/{folder.partition('/')[2]}.json")


def remove_empty_store(store: Store) -> bool:
    """Remove what is left of a local store that holds nothing any more; whether it is gone then."""
    for content in list(folder_contents(store)):
        for name in content.others:
            if is_unfinished(name):
                store.remove(name)
    for folder in ("costs", "images", "answers"):
        for info in store.entries(folder):
            if folder == "costs":
                store.remove(f"costs/{info.base_name}")
            elif store.local:
                with suppress(OSError):  # something is in it
                    os.rmdir(store.path(f"{folder}/{info.base_name}"))
        if store.local:
            with suppress(OSError):
                os.rmdir(store.path(folder))
    if not store.local:
        return not store.is_there()
    if {entry.name for entry in os.scandir(store.path(""))} <= {MARK}:
        store.remove(MARK)  # and with it the folder
    return not os.path.exists(store.path(""))
