"""What can happen in a run: one frozen dataclass for each kind of event.

`Events` (`seesaw.runner.display.events`) makes them and counts; displays match on their type. `kind` and the fields are
what `--json` prints, so a field is renamed or dropped only together with that contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from seesaw.runner.scheduling.resources import State

__all__ = [
    "AnswersDone",
    "BatchReused",
    "BatchSetAside",
    "CellDone",
    "EngineMetrics",
    "Event",
    "FleetDecision",
    "FleetState",
    "ImagesDone",
    "MitigationStep",
    "ModelState",
    "Note",
    "ReplicaLost",
    "ReplicaReady",
    "ReplicaState",
    "RunEnded",
    "RunStarted",
]


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str]  #: its name in `--json`

    def fields(self) -> dict[str, Any]:
        """What `--json` prints of it, in order."""
        return asdict(self)


@dataclass(frozen=True)
class RunStarted(Event):
    kind = "start"
    message: str


@dataclass(frozen=True)
class Note(Event):
    """Something that a user should know and that needs no action."""

    kind = "note"
    message: str


@dataclass(frozen=True)
class ReplicaReady(Event):
    kind = "replica"
    pool: str  #: the model or VLM that it serves
    name: str
    pid: int  #: on its node
    load_seconds: float  #: of the engine alone
    start_seconds: float  #: the start of its process included


@dataclass(frozen=True)
class ReplicaLost(Event):
    """A replica died or hung."""

    kind = "lost"
    name: str
    error: str
    held: int  #: batches in its line, which are tried again


@dataclass(frozen=True)
class FleetDecision(Event):
    """What the fleet's policy has decided to start or stop, and why."""

    kind = "decision"
    message: str


@dataclass(frozen=True)
class ModelState:
    left: int  #: batches that are known to be left
    done: int  #: batches
    replicas: int
    rate: float  #: batches a second of all its loaded replicas together; 0 before it is known


@dataclass(frozen=True)
class ReplicaState:
    node: str  #: address
    state: State
    done: int  #: batches


@dataclass(frozen=True)
class FleetState(Event):
    """Where replicas run and how busy they are."""

    kind = "fleet"
    gpu_idle: float | None  #: share of the GPUs' time so far without a batch, loading included; None without GPUs
    models: Mapping[str, ModelState]  #: by name, the VLM included
    replicas: Mapping[str, ReplicaState]  #: by name


@dataclass(frozen=True)
class ImagesDone(Event):
    """A batch has its images."""

    kind = "images"
    made: int
    held: int  #: that the store had already


@dataclass(frozen=True)
class AnswersDone(Event):
    """A batch has its answers."""

    kind = "answers"
    count: int


@dataclass(frozen=True)
class BatchReused(Event):
    """A batch whose answers the store had already, or that another caller had asked for a moment ago."""

    kind = "reused"
    images: int


@dataclass(frozen=True)
class BatchSetAside(Event):
    """A batch that failed for good, or a cell of which some images are blank."""

    kind = "failed"
    cell: str
    stage: str
    error: str
    message: str


@dataclass(frozen=True)
class CellDone(Event):
    kind = "cell"
    failed: bool  #: one of its batches was set aside, for the first time in this run


@dataclass(frozen=True)
class MitigationStep(Event):
    """A mitigation has observed a state or chosen an axis."""

    kind = "step"
    label: str
    axis: str  #: that was just chosen; "" if none was
    tau: Sequence[float]  #: one a step so far
    mitigated: Sequence[str]  #: axes so far
    outcome: str  #: "" while it goes on
    reason: str


@dataclass(frozen=True)
class EngineMetrics(Event):
    """What a replica's engine measured of itself; which figures there are depends on the engine."""

    kind = "metrics"
    replica: str
    figures: Mapping[str, float]

    def fields(self) -> dict[str, Any]:
        return {"replica": self.replica, **self.figures}


@dataclass(frozen=True)
class RunEnded(Event):
    kind = "end"
    message: str
    state: str  #: done, partial, interrupted or failed
    report: str | None = None  #: path of the report; "" if this run has none, None (not printed) if none was due

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}
