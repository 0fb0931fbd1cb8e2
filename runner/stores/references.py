"""Which runs refer to what in a store.

A run refers to a model or VLM if its run.json mentions its identity, wherever its own store lies: the place of a store
is no part of a run. To the whole of a model belong all its prompts and seeds, since a mitigation may compose any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seesaw.results.errors import RunDirectoryError
from seesaw.results.tables.run_reader import read_run_json
from seesaw.runner.run_places import every_run

__all__ = ["Reference", "find_references"]

_IDENTITY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Reference:
    run: Path
    identities: frozenset[str]
    used: float  #: when run.json was written last, in seconds since 1970


def find_references(folders: Sequence[Path]) -> tuple[list[Reference], list[str]]:
    """What every run in some folders refers to, and what is wrong with each run.json that cannot be read.

    Raises:
        InputError: there is no such folder, or it cannot be read.
    """
    found, unread = [], []
    for run in dict.fromkeys(run for folder in folders for run in every_run(folder)):
        try:
            fingerprint = read_run_json(run, needed=("fingerprint",))["fingerprint"]
        except RunDirectoryError as error:
            unread.append(str(error))
        else:
            used = (run / "run.json").stat().st_mtime
            found.append(Reference(run, frozenset(_identities(fingerprint)), used))
    return found, unread


def _identities(value: Any) -> Iterator[str]:
    if isinstance(value, str) and _IDENTITY.fullmatch(value):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _identities(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _identities(inner)
