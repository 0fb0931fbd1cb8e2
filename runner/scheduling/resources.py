"""What a cluster has and what a replica takes: which GPUs of which node are free for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["TINY", "Demand", "FreeResources", "Node", "PlacedReplica", "State", "places"]

State = Literal["loading", "idle", "busy", "draining"]  # draining: ends after what it has begun

TINY = 1e-6  #: of a GPU, a CPU or a GB, which sums may miss


@dataclass(frozen=True)
class Demand:
    """What is left to do for a model or the VLM, and what one replica of it takes.

    `queued` counts all that is known to be left and that no replica has begun, wherever it waits; of the VLM, images
    that are stored (the policy adds those that are still to be made). Seconds are measured where they can be, else
    estimated. `gpus` of a replica are on one node; a fraction below 1 says that it may share one.
    """

    name: str
    queued: int  #: batches
    running: int  #: batches
    seconds: float  #: a batch on one replica
    load_seconds: float
    gpus: float = 1.0
    gpu_gb: float = 0.0  #: that its GPUs must have: of a shared one it has no more than its share
    cpus: float = 0.0
    memory_gb: float = 0.0  #: of the node
    pinned: int | None = None  #: exactly so many replicas, while there is work and room
    open: bool = False  #: more may come when answers are in, as in a mitigation: an idle replica is worth its load
    shuns: frozenset[str] = frozenset()  #: nodes on which it cannot load


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


def places(work: Demand, nodes: Sequence[Node]) -> int:
    """How many replicas an empty cluster could hold; 0 if none fits anywhere."""
    count = 0
    for node in nodes:
        room = math.inf
        if not _suits(work, node):
            continue
        if work.gpus:
            shared = math.floor(1 / work.gpus + TINY)
            room = node.gpus * shared if work.gpus < 1 else node.gpus // math.ceil(work.gpus)
        for need, have in ((work.cpus, node.cpus), (work.memory_gb, node.memory_gb)):
            room = min(room, math.floor(have / need + TINY) if need and have < math.inf else math.inf)
        count += int(min(room, 1_000_000))
    return count if work.pinned is None else min(count, work.pinned)


def _suits(work: Demand, node: Node) -> bool:
    """Whether a replica may be there, as far as the node alone tells."""
    return node.name not in work.shuns and (not work.gpus or work.gpu_gb <= node.gpu_gb + TINY)


@dataclass
class FreeResources:
    """What of one node is free."""

    node: Node
    cpus: float
    memory_gb: float
    shares: list[float]  #: of every GPU

    @classmethod
    def of(cls, node: Node) -> FreeResources:
        return cls(node, node.cpus, node.memory_gb, [1.0] * node.gpus)

    def take(self, work: Demand, gpus: tuple[int, ...], sign: int = 1) -> None:
        self.cpus -= sign * work.cpus
        self.memory_gb -= sign * work.memory_gb
        for gpu in gpus:
            self.shares[gpu] -= sign * min(work.gpus, 1.0)

    def give(self, work: Demand, gpus: tuple[int, ...]) -> None:
        self.take(work, gpus, -1)

    def find(self, work: Demand) -> tuple[int, ...] | None:
        """GPUs for one more replica, the fullest that will do; None if it does not fit."""
        if not _suits(work, self.node):
            return None
        if work.cpus > self.cpus + TINY or work.memory_gb > self.memory_gb + TINY:
            return None
        if not work.gpus:
            return ()
        share, count = min(work.gpus, 1.0), math.ceil(work.gpus)
        fit = [gpu for gpu, free in enumerate(self.shares) if free >= share - TINY]
        if len(fit) < count:
            return None
        return tuple(sorted(sorted(fit, key=lambda gpu: (self.shares[gpu], gpu))[:count]))

    def order(self, work: Demand) -> tuple[float, ...]:
        """Best node first: no GPU is left without CPUs, large GPUs and whole nodes are kept for who needs them."""
        if not work.gpus:
            return (self.node.gpus > 0, -self.cpus)
        strands = max(work.cpus / self.node.cpus - work.gpus / self.node.gpus, 0.0) if self.node.gpus else 0.0
        return (round(strands, 6), self.node.gpu_gb, sum(self.shares))
