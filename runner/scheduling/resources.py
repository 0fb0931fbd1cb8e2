"""What the nodes have, what a replica needs, and which GPUs of a node are free for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["TOLERANCE", "Demand", "FreeResources", "Node", "PlacedReplica", "State", "places"]

State = Literal["loading", "idle", "busy", "draining"]  #: draining: it stops once it has done what it has begun

TOLERANCE = 1e-6  #: of a GPU, a CPU or a GB: sums of fractions miss by less


@dataclass(frozen=True)
class Demand:
    """What is left to do for a model or the VLM, and what one replica of it needs.

    `queued` counts the batches that are known to be left and that no replica has begun, wherever they wait. For the VLM
    these are batches whose images are stored; the policy adds those whose images are still to be made. Seconds are
    measured where they can be, else estimated. A replica's GPUs are all on one node; with a fraction below 1 it shares
    one with others.
    """

    name: str
    queued: int  #: batches
    running: int  #: batches
    seconds: float  #: a batch on one replica
    load_seconds: float
    gpus: float = 1.0
    gpu_gb: float = 0.0  #: memory that each of its GPUs must have; of a shared GPU it gets its share alone
    cpus: float = 0.0
    memory_gb: float = 0.0  #: of the node
    pinned: int | None = None  #: exactly so many replicas, while there is work for them and they fit
    #: more work may follow from the answers, as in a mitigation, so an idle replica saves a load
    more_to_come: bool = False
    excluded: frozenset[str] = frozenset()  #: nodes on which it cannot be loaded


@dataclass(frozen=True)
class Node:
    name: str
    gpus: int
    gpu_gb: float = math.inf  #: of one GPU
    cpus: float = math.inf
    memory_gb: float = math.inf


@dataclass(frozen=True)
class PlacedReplica:
    name: str
    model: str
    node: str
    gpus: tuple[int, ...]  #: indices on the node
    state: State


def places(demand: Demand, nodes: Sequence[Node]) -> int:
    """How many replicas the nodes could hold if they were empty, no more than are pinned; 0 if none fits anywhere."""
    total = 0
    for node in nodes:
        if not _suits(demand, node):
            continue
        count = math.inf
        if demand.gpus:
            shared = math.floor(1 / demand.gpus + TOLERANCE)
            count = node.gpus * shared if demand.gpus < 1 else node.gpus // math.ceil(demand.gpus)
        for needed, available in ((demand.cpus, node.cpus), (demand.memory_gb, node.memory_gb)):
            if needed and available < math.inf:
                count = min(count, math.floor(available / needed + TOLERANCE))
        total += int(min(count, 1_000_000))
    return total if demand.pinned is None else min(total, demand.pinned)


def _suits(demand: Demand, node: Node) -> bool:
    """Whether a replica may be on a node, whatever else is there: it is not excluded, and its GPUs are large enough."""
    return node.name not in demand.excluded and (not demand.gpus or demand.gpu_gb <= node.gpu_gb + TOLERANCE)


@dataclass
class FreeResources:
    """What is free of one node."""

    node: Node
    cpus: float
    memory_gb: float
    shares: list[float]  #: of each GPU, the free share

    @classmethod
    def of(cls, node: Node) -> FreeResources:
        return cls(node, node.cpus, node.memory_gb, [1.0] * node.gpus)

    def allocate(self, demand: Demand, gpus: tuple[int, ...]) -> None:
        """Take what one replica needs, on these GPUs."""
        self._add(demand, gpus, -1)

    def release(self, demand: Demand, gpus: tuple[int, ...]) -> None:
        """Give back what `allocate` took."""
        self._add(demand, gpus, 1)

    def _add(self, demand: Demand, gpus: tuple[int, ...], sign: int) -> None:
        self.cpus += sign * demand.cpus
        self.memory_gb += sign * demand.memory_gb
        for gpu in gpus:
            self.shares[gpu] += sign * min(demand.gpus, 1.0)

    def fit(self, demand: Demand) -> tuple[int, ...] | None:
        """GPUs for one more replica, those with the smallest free shares that suffice; None if it does not fit."""
        if not _suits(demand, self.node):
            return None
        if demand.cpus > self.cpus + TOLERANCE or demand.memory_gb > self.memory_gb + TOLERANCE:
            return None
        if not demand.gpus:
            return ()
        share, count = min(demand.gpus, 1.0), math.ceil(demand.gpus)
        usable = [gpu for gpu, free in enumerate(self.shares) if free >= share - TOLERANCE]
        if len(usable) < count:
            return None
        return tuple(sorted(sorted(usable, key=lambda gpu: (self.shares[gpu], gpu))[:count]))

    def order(self, demand: Demand) -> tuple[float, ...]:
        """A sort key that puts the best node for a replica first.

        For a replica with GPUs it is the node where fewest GPUs are left without CPUs; then the one with the smallest
        GPUs, and the one with least free, so that large GPUs and whole nodes stay free for models that need them.
        Without GPUs it is a node that has none, and the most free CPUs.
        """
        if not demand.gpus:
            return (self.node.gpus > 0, -self.cpus)
        stranded = max(demand.cpus / self.node.cpus - demand.gpus / self.node.gpus, 0.0) if self.node.gpus else 0.0
        return (round(stranded, 6), self.node.gpu_gb, sum(self.shares))
