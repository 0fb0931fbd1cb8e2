"""Where runs and their stores lie now. Both may have been moved since the run was recorded.

The config.yaml of a run directory records both places, as absolute paths. Neither is part of the run's identity:

- A run directory is where it is found, whatever its config.yaml says.
- Its store is where it was recorded. If the run directory was moved and a store lies to it as the recorded one lay to
  the recorded directory, it is that one: a project folder can be moved, or copied, as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from filelock import FileLock, Timeout

from seesaw.results.errors import InputError
from seesaw.results.store.parquet import regular_file
from seesaw.results.store.store import MARK, Store

__all__ = ["every_run", "find_runs", "is_driven", "places_of", "same_place", "store_of"]

_LARGEST_CONFIG = 1 << 26  #: bytes


def find_runs(folder: Path, deep: int) -> Iterator[Path]:
    """The run directories in `folder` and up to `deep` levels below; links and hidden folders are not followed."""
    with suppress(OSError):  # a folder that this user may not read
        if (folder / "run.json").is_file():
            yield folder
        elif deep:
            for inside in sorted(folder.iterdir()):
                if inside.is_dir() and not inside.is_symlink() and not inside.name.startswith("."):
                    yield from find_runs(inside, deep - 1)


def every_run(folder: Path) -> Iterator[Path]:
    """Every run directory in `folder`, however deep, links followed, but none inside of a store.

    Raises InputError for a folder that is none, or that this user may not read: what it holds is not known.
    """
    if not folder.is_dir():
        raise InputError(f"'{folder}' is no folder; say where the runs are with --runs DIR")

    def refuse(error: OSError) -> None:
        raise InputError(f"'{error.filename}' cannot be read ({error.strerror}), so what runs it holds is not known")

    seen: set[str] = set()
    for place, inside, files in os.walk(folder, onerror=refuse, followlinks=True):
        if os.path.realpath(place) in seen or MARK in files:
            inside.clear()
            continue
        seen.add(os.path.realpath(place))
        inside.sort()
        if "run.json" in files:
            yield Path(place)


def places_of(config: Path) -> Mapping[str, str]:
    """`run` and `store` as they are now, if `config` is the config.yaml of a run directory; else {}."""
    if config.name != "config.yaml" or not (config.parent / "run.json").is_file():
        return {}
    run, store = _recorded(config.parent)
    return {"run": str(config.parent.absolute()), "store": store_of(config.parent)} if run and store else {}


def store_of(run: Path) -> str:
    """Where the store of a run directory lies now: a path or URI, at which there may be none; "" if none is recorded.

    Opens no URI: whoever made the run chose its server.
    """
    recorded_run, recorded = _recorded(run)
    if not recorded or "://" in recorded:
        return recorded
    if recorded_run and not same_place(recorded_run, str(run)):
        moved = os.path.normpath(run.absolute() / os.path.relpath(recorded, recorded_run))
        if Store(moved).is_there():
            return moved
    return recorded


def is_driven(run: Path) -> bool:
    """Whether a driver is at work in a run directory at this moment."""
    lock = FileLock(run / ".lock")
    if not os.path.exists(lock.lock_file):
        return False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # a directory of another user, which may be read but not locked
        return False
    lock.release()
    return False


def same_place(one: str, other: str) -> bool:
    """Whether two directories are the same, links followed, or two URIs are equal."""
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return os.path.realpath(one) == os.path.realpath(other)


def _recorded(run: Path) -> tuple[str, str]:
    """Run directory ("" if not as an absolute path) and store as config.yaml records them; "" for none."""
    config: Any = None
    with suppress(OSError, ValueError, RecursionError, pa.ArrowInvalid, yaml.YAMLError):
        config = yaml.safe_load(regular_file(run / "config.yaml", _LARGEST_CONFIG))
    found = [config.get(key) if isinstance(config, dict) else None for key in ("run", "store")]
    recorded_run, store = (place.replace("\\${", "${") if isinstance(place, str) else "" for place in found)
    return recorded_run if os.path.isabs(recorded_run) else "", store if "://" in store or os.path.isabs(store) else ""
