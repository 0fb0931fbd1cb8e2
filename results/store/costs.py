"""Measured seconds of batches and loads: a small file for each model in the store, for plans and for the next run.

    costs/<model>-<identity>.json      {"batches": 812, "seconds": 9.81, "load_seconds": 44.2}

These are estimates. Deleting the file loses nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from seesaw.results.errors import SeesawError
from seesaw.results.store.store import Store

__all__ = ["MeasuredCosts", "read_costs", "write_costs"]

LONGEST = 1e5  #: seconds of a batch or a load; a longer time is not believed


@dataclass(frozen=True)
class MeasuredCosts:
    batches: int
    seconds: float  #: of a batch on one replica, its first batch not counted
    load_seconds: float  #: including the start of the process


def read_costs(store: Store, folder: str) -> MeasuredCosts | None:
    """What was measured of the model or VLM with shards in `folder`; None if there is nothing, or it makes no sense."""
    try:
        costs = json.loads(store.recall(_name(folder)))
        measured = MeasuredCosts(int(costs["batches"]), float(costs["seconds"]), float(costs["load_seconds"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SeesawError):
        return None
    sound = measured.batches > 0 and 0 < measured.seconds < LONGEST and 0 <= measured.load_seconds < LONGEST
    return measured if sound else None


def write_costs(store: Store, costs: Mapping[str, MeasuredCosts]) -> None:
    """Write what was measured, by folder of the store. If the store is full or away, its older figures stay."""
    with suppress(OSError, SeesawError):
        for folder, measured in costs.items():
            store.keep(_name(folder), json.dumps(asdict(measured)).encode())


def _name(folder: str) -> str:
    return f"costs/{folder.rpartition('/')[2]}.json"
