"""What batches and loads took, as measured: a small file a model in the store, for plans and for the next run's fleet.

    costs/<model>-<identity>.json      {"batches": 812, "seconds": 9.81, "load_seconds": 44.2}

An estimate and no record of anything: whoever deletes it loses nothing but the estimate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa

from results.errors import SeesawError
from results.filesystem import open_filesystem

__all__ = ["Measured", "read_costs", "write_costs"]


@dataclass(frozen=True)
class Measured:
    batches: int
    seconds: float  #: a batch on one replica that has done its first
    load_seconds: float  #: the start of the process included


def read_costs(root: str, folder: str) -> Measured | None:
    """What was measured of the model or VLM whose shards lie in `folder` of the store; None if nothing sound."""
    try:
        filesystem, base = open_filesystem(root)
        with filesystem.open_input_stream(f"{base}/{_name(folder)}", compression=None) as stream:
            found = json.loads(stream.read())
        measured = Measured(int(found["batches"]), float(found["seconds"]), float(found["load_seconds"]))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, SeesawError):
        return None
    sound = measured.batches > 0 and 0 < measured.seconds < math.inf and 0 <= measured.load_seconds < math.inf
    return measured if sound else None


def write_costs(root: str, costs: Mapping[str, Measured]) -> None:
    """Keep what was measured last, by folder of the store; a store that is full or away keeps what it had."""
    try:
        filesystem, base = open_filesystem(root)
        filesystem.create_dir(f"{base}/costs")
        for folder, measured in costs.items():
            with filesystem.open_output_stream(f"{base}/{_name(folder)}") as stream:
                stream.write(json.dumps(asdict(measured)).encode())
    except (OSError, pa.ArrowException, SeesawError):
        return


def _name(folder: str) -> str:
    return f"costs/{folder.rpartition('/')[2]}.json"
