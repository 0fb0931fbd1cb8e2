"""What batches and loads took, as measured: a small file a model in the store, for plans and for the next run's fleet.

    costs/<model>-<identity>.json      {"batches": 812, "seconds": 9.81, "load_seconds": 44.2}

An estimate and no record of anything: whoever deletes it loses nothing but the estimate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from seesaw.results.errors import SeesawError
from seesaw.results.store.store import Store

__all__ = ["MeasuredCosts", "read_costs", "write_costs"]

LONGEST = 1e5  #: seconds of a batch or a load that are believed


@dataclass(frozen=True)
class MeasuredCosts:
    batches: int
    seconds: float  #: a batch on one replica that has done its first
    load_seconds: float  #: the start of the process included


def read_costs(store: Store, folder: str) -> MeasuredCosts | None:
    """What was measured of the model or VLM whose shards lie in `folder` of the store; None if nothing sound."""
    try:
        found = json.loads(store.recall(_name(folder)))
        measured = MeasuredCosts(int(found["batches"]), float(found["seconds"]), float(found["load_seconds"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SeesawError):
        return None
    sound = measured.batches > 0 and 0 < measured.seconds < LONGEST and 0 <= measured.load_seconds < LONGEST
    return measured if sound else None


def write_costs(store: Store, costs: Mapping[str, MeasuredCosts]) -> None:
    """Keep what was measured last, by folder of the store; a store that is full or away keeps what it had."""
    with suppress(OSError, SeesawError):
        for folder, measured in costs.items():
            store.keep(_name(folder), json.dumps(asdict(measured)).encode())


def _name(folder: str) -> str:
    return f"costs/{folder.rpartition('/')[2]}.json"
