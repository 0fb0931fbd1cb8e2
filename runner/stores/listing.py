"""`seesaw store ls` and `du`: models and VLMs of a store, how much is there of each, and which runs refer to them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from seesaw.results.errors import InputError
from seesaw.results.store.inventory import FolderContent, count_rows, folder_contents, other_bytes
from seesaw.results.store.store import Store
from seesaw.results.words import duration, in_bytes
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape
from seesaw.runner.stores.references import Reference, find_references

__all__ = ["listed", "open_store", "show_store", "show_use"]

_LISTED = 10  #: runs that are named in a line; the others are counted


def open_store(root: str) -> Store:
    """The store at a directory or URI. InputError if there is none."""
    store = Store(root)
    if not store.is_there():
        beside = Path(root).parent / "store"
        hint = f"; did you mean '{beside}'?" if "://" not in root and beside.is_dir() else ""
        raise InputError(f"there is no store at '{root}'{hint}")
    return store


def show_store(root: str, folders: Sequence[Path], as_json: bool) -> None:
    """Print every model and VLM of a store, the one that was used last first.

    Last used is when its last shard was written, or a run that refers to it, whichever was later.
    """
    store = open_store(root)
    there = [folder for folder in folders if folder.is_dir()]
    references, unread = find_references(there)
    table = Table(box=None, pad_edge=False)
    for column in ("kind", "name", "identity", "images", "answers", "size", "last used", "runs"):
        right = column in ("images", "answers", "size", "last used")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "runs")
    contents = [(content, *_used(content, references)) for content in folder_contents(store)]
    for content, used, runs in sorted(contents, key=lambda each: (-each[1], each[0].folder)):
        rows = count_rows(store, content)
        if as_json:
            about: dict[str, object] = {
                "event": "folder",
                "folder": content.folder,
                "kind": content.kind,
                "name": content.name,
            }
            about |= {"identity": content.identity, "shards": len(content.shards), content.kind: rows}
            when = datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds") if used else None
            say(json.dumps({**about, "bytes": content.size, "last_used": when, "runs": runs}))
            continue
        counts = (f"{rows:,}", "") if content.kind == "images" else ("", f"{rows:,}")
        age = f"{duration(max(0.0, time.time() - used))} ago" if used else ""
        table.add_row(
            "model" if content.kind == "images" else "VLM", escape(content.name), content.identity[:8], *counts,
            in_bytes(content.size), age, escape(listed(runs, _LISTED)) or "-",
        )  # fmt: skip
    damaged, damaged_bytes = other_bytes(store, "damaged")
    size = sum(content.size for content, *_ in contents)
    if as_json:
        totals = {"event": "store", "store": store.root, "bytes": size, "damaged": damaged}
        say(json.dumps({**totals, "looked_at": [str(folder) for folder in there], "unread": unread}))
        return
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    say(f"{in_bytes(size)} in all; runs were looked for in {listed(map(str, there), _LISTED) or 'no folder'}")
    if damaged:
        say(f"{damaged:,} damaged files were moved to {store.root}/damaged, {in_bytes(damaged_bytes)}")
    for problem in unread:
        say(problem)


def show_use(root: str, as_json: bool) -> None:
    """Print the bytes of every model and VLM, the largest first, and of all else that Seesaw keeps there."""
    store = open_store(root)
    rows = [(content.folder, len(content.shards), content.size) for content in folder_contents(store)]
    rows += [(folder, *other_bytes(store, folder)) for folder in ("damaged", "costs")]
    rows = sorted((row for row in rows if row[1]), key=lambda row: (-row[2], row[0]))
    total = sum(row[2] for row in rows)
    table = Table(box=None, pad_edge=False)
    for column in ("folder", "files", "size", "share"):
        table.add_column(column, justify="left" if column == "folder" else "right", no_wrap=True)
    for folder, files, size in rows:
        if as_json:
            say(json.dumps({"event": "folder", "folder": folder, "files": files, "bytes": size}))
        table.add_row(escape(folder), f"{files:,}", in_bytes(size), f"{size / max(1, total):.0%}")
    table.add_section()
    table.add_row("all", f"{sum(row[1] for row in rows):,}", in_bytes(total), "")
    if as_json:
        say(json.dumps({"event": "store", "store": store.root, "files": sum(row[1] for row in rows), "bytes": total}))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table)


def _used(content: FolderContent, references: Sequence[Reference]) -> tuple[float, list[str]]:
    """When a model or VLM was used last, and the runs that refer to it."""
    mine = [reference for reference in references if content.identity in reference.identities]
    return max([content.written, *(each.used for each in mine)]), [str(each.run) for each in mine]


def listed(names: Sequence[str] | map[str], most: int) -> str:
    """Some names in a line, the others counted."""
    all_of_them = list(names)
    more = f" and {len(all_of_them) - most:,} more" if len(all_of_them) > most else ""
    return ", ".join(all_of_them[:most]) + more
