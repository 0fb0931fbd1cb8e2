"""The fleet's policy against a virtual clock: what a run would take on machines that need not be there.

A heap of events, and no sleeping: replicas load, make batch after batch, and the VLM asks about the images that were
made. `seesaw.runner.scheduling.policy.decide` is called when a fleet would call it: when a replica has nothing to do,
when one has stopped, and on a timer.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from seesaw.runner.scheduling.policy import Start, Stop, decide
from seesaw.runner.scheduling.resources import Demand, Node, PlacedReplica, State, places

__all__ = ["SimulatedReplica", "Simulation", "lower_bound", "simulate"]

TICK = 60.0  #: seconds between two calls of the policy when nothing happens, or a thousandth of the run if that is more
SETTLE = 1.0  #: seconds: what happens within them is decided about together


@dataclass
class SimulatedReplica:
    """The life of one replica, in seconds of the virtual clock."""

    name: str
    demand: Demand
    node: str
    gpus: tuple[int, ...]
    began: float
    ended: float = math.inf
    busy: float = 0.0  #: seconds with a batch
    done: list[tuple[str, int]] = field(default_factory=list)  #: the batches that it did, as (model, number), in order
    state: State = "loading"
    batch: tuple[str, int] | None = None

    @property
    def loaded(self) -> float:
        return min(self.began + self.demand.load_seconds, self.ended)


@dataclass(frozen=True)
class Simulation:
    """How a run would go under the policy; `replicas` are in the order of their starts."""

    makespan: float  #: seconds
    bound: float  #: seconds that no policy can do without: `lower_bound`
    nodes: tuple[Node, ...]
    replicas: tuple[SimulatedReplica, ...]
    log: tuple[str, ...]  #: every decision to change something, with its time and reason

    @property
    def loads(self) -> int:
        return len(self.replicas)

    @cached_property
    def utilisation(self) -> Mapping[tuple[str, int], float]:
        """Share of the makespan that every GPU (node, index) has a batch; loading is not work."""
        used = {(node.name, gpu): 0.0 for node in self.nodes for gpu in range(node.gpus)}
        for replica in self.replicas:
            for gpu in replica.gpus:
                used[replica.node, gpu] += replica.busy * min(replica.demand.gpus, 1.0)
        return {gpu: seconds / self.makespan if self.makespan else 0.0 for gpu, seconds in used.items()}

    @cached_property
    def gpu_hours(self) -> Mapping[str, float]:
        """GPU-hours spent on batches, by model and VLM; 0 for one that needs no GPU."""
        hours: dict[str, float] = {}
        for replica in self.replicas:
            hours[replica.demand.name] = hours.get(replica.demand.name, 0.0) + replica.busy * replica.demand.gpus / 3600
        return hours

    @property
    def loading_hours(self) -> float:
        """GPU-hours spent on loading."""
        return sum((replica.loaded - replica.began) * replica.demand.gpus for replica in self.replicas) / 3600


def lower_bound(models: Sequence[Demand], vlm: Demand | None, nodes: Sequence[Node]) -> float:
    """Seconds that no policy can do without.

    It is the longest of these: all work spread evenly over all GPUs, or all CPUs, with one load of every model and at
    least one load on every GPU; and every model by itself, on all the places that it can have.
    """
    demands = _with_work(models, vlm)
    if not demands:
        return 0.0
    longest = max(
        demand.load_seconds + math.ceil(_batches(demand, models, vlm) / places(demand, nodes)) * demand.seconds
        for demand in demands
    )
    for kind in ("gpus", "cpus"):
        total, needing = sum(getattr(node, kind) for node in nodes), [w for w in demands if getattr(w, kind)]
        if not needing or total == math.inf:
            continue
        area = sum(
            getattr(demand, kind) * (_batches(demand, models, vlm) * demand.seconds + demand.load_seconds)
            for demand in needing
        )
        if kind == "gpus":
            further = max(total - sum(math.ceil(demand.gpus) for demand in needing), 0)
            area += further * min(demand.load_seconds * min(demand.gpus, 1.0) for demand in needing)
        longest = max(longest, area / total)
    return longest


def _batches(demand: Demand, models: Sequence[Demand], vlm: Demand | None) -> int:
    own = demand.queued + demand.running
    return own + sum(model.queued + model.running for model in models) if demand is vlm else own


def _with_work(models: Sequence[Demand], vlm: Demand | None) -> list[Demand]:
    return [demand for demand in (*models, *([vlm] if vlm else [])) if _batches(demand, models, vlm)]


def simulate(models: Sequence[Demand], vlm: Demand | None, nodes: Sequence[Node]) -> Simulation:
    """Run all work to its end: every batch of every model and, with a VLM, the questions about each.

    `queued` and `running` of a model are batches to make; of the VLM, batches of images that are stored already.
    At the start no replica is loaded.

    Raises:
        ValueError: a model with work fits on no node.
    """
    for demand in _with_work(models, vlm):
        if not places(demand, nodes):
            raise ValueError(
                f"'{demand.name}' fits on no node: it takes {demand.gpus:g} GPUs of at least {demand.gpu_gb:g} GB"
            )
    return _Clock(models, vlm, nodes).run()


class _Clock:
    def __init__(self, models: Sequence[Demand], vlm: Demand | None, nodes: Sequence[Node]) -> None:
        self._models, self._vlm, self._nodes = tuple(models), vlm, tuple(nodes)
        self._bound = lower_bound(models, vlm, nodes)
        self._now, self._calls, self._decide_at = 0.0, 0, math.inf
        self._events: list[
            tuple[float, int, SimulatedReplica | None]
        ] = []  # a replica's next moment; None: time to decide
        self._queues = {demand.name: deque(range(demand.queued + demand.running)) for demand in models}
        self._waiting = deque(("stored", number) for number in range(vlm.queued + vlm.running)) if vlm else deque()
        self._live: list[SimulatedReplica] = []
        self._started: list[SimulatedReplica] = []
        self._idle: dict[str, deque[SimulatedReplica]] = {
            demand.name: deque() for demand in (*models, *([vlm] if vlm else []))
        }
        self._at_work = dict.fromkeys(self._idle, 0)
        self._log: list[str] = []
        self._last = 0.0

    def run(self) -> Simulation:
        self._decide()
        while self._left():
            if not self._events:  # nothing is going on: the policy is called once more, for replicas that are all idle
                self._decide()
                if not self._events:
                    raise RuntimeError(f"the policy is stuck with {self._left()} batches left: {self._live}")
            self._now, _, replica = heapq.heappop(self._events)
            if replica is not None:
                self._go_on(replica)
            elif self._now >= self._decide_at:
                self._decide()
        for replica in self._live:
            replica.ended = self._last
        return Simulation(self._last, self._bound, self._nodes, tuple(self._started), tuple(self._log))

    def _left(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._waiting) + sum(self._at_work.values())

    def _push(self, at: float, replica: SimulatedReplica | None) -> None:
        self._calls += 1
        heapq.heappush(self._events, (at, self._calls, replica))

    def _wake(self, at: float) -> None:
        if at < self._decide_at:
            self._decide_at = at
            self._push(at, None)

    def _go_on(self, replica: SimulatedReplica) -> None:
        """A replica has loaded or has done its batch, and takes the next."""
        if replica.batch is not None:
            self._finish(replica, replica.batch)
        if replica.state == "draining":
            self._end(replica)
            self._wake(self._now)
            return
        replica.state = "idle"
        self._idle[replica.demand.name].append(replica)
        self._feed(replica.demand.name)
        if replica.state == "idle":
            self._wake(self._now + SETTLE)

    def _finish(self, replica: SimulatedReplica, batch: tuple[str, int]) -> None:
        replica.busy += replica.demand.seconds
        replica.done.append(batch)
        replica.batch = None
        self._at_work[replica.demand.name] -= 1
        self._last = self._now
        if self._vlm is not None and replica.demand.name != self._vlm.name:
            self._waiting.append(batch)
            self._feed(self._vlm.name)

    def _feed(self, name: str) -> None:
        """Give waiting batches to the idle replicas of a model or the VLM."""
        idle = self._idle[name]
        asks = self._vlm is not None and name == self._vlm.name
        while idle and (self._waiting if asks else self._queues[name]):
            replica = idle.popleft()
            replica.batch = self._waiting.popleft() if asks else (name, self._queues[name].popleft())
            replica.state = "busy"
            self._at_work[name] += 1
            self._push(self._now + replica.demand.seconds, replica)

    def _decide(self) -> None:
        self._decide_at = math.inf
        models = [
            replace(demand, queued=len(self._queues[demand.name]), running=self._at_work[demand.name])
            for demand in self._models
        ]
        vlm = self._vlm and replace(self._vlm, queued=len(self._waiting), running=self._at_work[self._vlm.name])
        replicas = [PlacedReplica(s.name, s.demand.name, s.node, s.gpus, s.state) for s in self._live]
        decision = decide(models, vlm, replicas, self._nodes)
        self._log += [f"{self._now:10.0f} s  {line}" for line in decision.lines]
        by_name = {replica.name: replica for replica in self._live} if decision.stop else {}
        for stop in decision.stop:
            self._stop(stop, by_name[stop.replica])
        for start in decision.start:
            self._start(start)
        if self._events:
            self._wake(self._now + max(TICK, self._bound / 1000))

    def _stop(self, stop: Stop, replica: SimulatedReplica) -> None:
        if stop.after_batch:
            replica.state = "draining"
        else:
            self._idle[replica.demand.name].remove(replica)
            self._end(replica)

    def _end(self, replica: SimulatedReplica) -> None:
        replica.ended = self._now
        self._live.remove(replica)

    def _start(self, start: Start) -> None:
        demand = next(
            demand for demand in (*self._models, *([self._vlm] if self._vlm else [])) if demand.name == start.model
        )
        replica = SimulatedReplica(f"{demand.name}-{len(self._started) + 1}", demand, start.node, start.gpus, self._now)
        self._live.append(replica)
        self._started.append(replica)
        self._push(self._now + demand.load_seconds, replica)
