"""The fleet's policy against a virtual clock: what a run would take on machines that are not there.

A heap of events and no sleeping: replicas load, make batch after batch and ask the images that were made, and
`runner.scheduling.policy.decide` is called as a fleet calls it: when a replica has nothing to do, when one has ended, and on a
timer.
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

TICK = 60.0  #: seconds between two calls of the policy when nothing happens; of long runs a thousandth, if that is more
SETTLE = 1.0  #: seconds in which what happens together is decided together


@dataclass
class SimulatedReplica:
    """The life of one replica, in seconds of the virtual clock."""

    name: str
    work: Demand
    node: str
    gpus: tuple[int, ...]
    began: float
    ended: float = math.inf
    busy: float = 0.0  #: seconds with a batch
    done: list[tuple[str, int]] = field(default_factory=list)  #: batches, as (model, number), in order
    state: State = "loading"
    batch: tuple[str, int] | None = None

    @property
    def loaded(self) -> float:
        return min(self.began + self.work.load_seconds, self.ended)


@dataclass(frozen=True)
class Simulation:
    """What the policy would make of the work; `spells` in the order of their starts."""

    makespan: float  #: seconds
    bound: float  #: seconds, that no policy can do without: `lower_bound`
    nodes: tuple[Node, ...]
    spells: tuple[SimulatedReplica, ...]
    log: tuple[str, ...]  #: every decision to change something, with its time and reason

    @property
    def loads(self) -> int:
        return len(self.spells)

    @cached_property
    def utilisation(self) -> Mapping[tuple[str, int], float]:
        """Share of the makespan that every GPU (node, index) has a batch; loading is not work."""
        used = {(node.name, gpu): 0.0 for node in self.nodes for gpu in range(node.gpus)}
        for spell in self.spells:
            for gpu in spell.gpus:
                used[spell.node, gpu] += spell.busy * min(spell.work.gpus, 1.0)
        return {gpu: seconds / self.makespan if self.makespan else 0.0 for gpu, seconds in used.items()}

    @cached_property
    def gpu_hours(self) -> Mapping[str, float]:
        """GPU-hours of batches, by model and VLM; of one that needs no GPU, 0."""
        hours: dict[str, float] = {}
        for spell in self.spells:
            hours[spell.work.name] = hours.get(spell.work.name, 0.0) + spell.busy * spell.work.gpus / 3600
        return hours

    @property
    def loading_hours(self) -> float:
        """GPU-hours in which replicas load."""
        return sum((spell.loaded - spell.began) * spell.work.gpus for spell in self.spells) / 3600


def lower_bound(models: Sequence[Demand], vlm: Demand | None, nodes: Sequence[Node]) -> float:
    """Seconds that no policy can do without.

    All work spread over all GPUs (or CPUs), with one load of every model and at least one on every GPU; and every
    model by itself on all the places that it can have.
    """
    works = _with_work(models, vlm)
    if not works:
        return 0.0
    longest = max(
        work.load_seconds + math.ceil(_batches(work, models, vlm) / places(work, nodes)) * work.seconds
        for work in works
    )
    for kind in ("gpus", "cpus"):
        total, needing = sum(getattr(node, kind) for node in nodes), [w for w in works if getattr(w, kind)]
        if not needing or total == math.inf:
            continue
        area = sum(
            getattr(work, kind) * (_batches(work, models, vlm) * work.seconds + work.load_seconds) for work in needing
        )
        if kind == "gpus":
            further = max(total - sum(math.ceil(work.gpus) for work in needing), 0)
            area += further * min(work.load_seconds * min(work.gpus, 1.0) for work in needing)
        longest = max(longest, area / total)
    return longest


def _batches(work: Demand, models: Sequence[Demand], vlm: Demand | None) -> int:
    own = work.queued + work.running
    return own + sum(model.queued + model.running for model in models) if work is vlm else own


def _with_work(models: Sequence[Demand], vlm: Demand | None) -> list[Demand]:
    return [work for work in (*models, *([vlm] if vlm else [])) if _batches(work, models, vlm)]


def simulate(models: Sequence[Demand], vlm: Demand | None, nodes: Sequence[Node]) -> Simulation:
    """Run all work to its end: every batch of every model, and, with a VLM, the questions to each.

    `queued` and `running` of a model are batches to make, of the VLM batches of stored images; nothing is loaded.

    Raises:
        ValueError: a model with work fits on no node.
    """
    for work in _with_work(models, vlm):
        if not places(work, nodes):
            raise ValueError(
                f"'{work.name}' fits on no node: it takes {work.gpus:g} GPUs of at least {work.gpu_gb:g} GB"
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
        self._queues = {work.name: deque(range(work.queued + work.running)) for work in models}
        self._waiting = deque(("stored", number) for number in range(vlm.queued + vlm.running)) if vlm else deque()
        self._live: list[SimulatedReplica] = []
        self._spells: list[SimulatedReplica] = []
        self._idle: dict[str, deque[SimulatedReplica]] = {
            work.name: deque() for work in (*models, *([vlm] if vlm else []))
        }
        self._at_work = dict.fromkeys(self._idle, 0)
        self._log: list[str] = []
        self._last = 0.0

    def run(self) -> Simulation:
        self._decide()
        while self._left():
            if not self._events:  # nobody does anything: one more look at replicas that are all idle
                self._decide()
                if not self._events:
                    raise RuntimeError(f"the policy is stuck with {self._left()} batches left: {self._live}")
            self._now, _, spell = heapq.heappop(self._events)
            if spell is not None:
                self._moment(spell)
            elif self._now >= self._decide_at:
                self._decide()
        for spell in self._live:
            spell.ended = self._last
        return Simulation(self._last, self._bound, self._nodes, tuple(self._spells), tuple(self._log))

    def _left(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._waiting) + sum(self._at_work.values())

    def _push(self, at: float, spell: SimulatedReplica | None) -> None:
        self._calls += 1
        heapq.heappush(self._events, (at, self._calls, spell))

    def _wake(self, at: float) -> None:
        if at < self._decide_at:
            self._decide_at = at
            self._push(at, None)

    def _moment(self, spell: SimulatedReplica) -> None:
        """A replica has loaded, or has done its batch: it takes the next."""
        if spell.batch is not None:
            self._finish(spell, spell.batch)
        if spell.state == "draining":
            self._end(spell)
            self._wake(self._now)
            return
        spell.state = "idle"
        self._idle[spell.work.name].append(spell)
        self._feed(spell.work.name)
        if spell.state == "idle":
            self._wake(self._now + SETTLE)

    def _finish(self, spell: SimulatedReplica, batch: tuple[str, int]) -> None:
        spell.busy += spell.work.seconds
        spell.done.append(batch)
        spell.batch = None
        self._at_work[spell.work.name] -= 1
        self._last = self._now
        if self._vlm is not None and spell.work.name != self._vlm.name:
            self._waiting.append(batch)
            self._feed(self._vlm.name)

    def _feed(self, name: str) -> None:
        """Give idle replicas of a model what waits."""
        idle = self._idle[name]
        asks = self._vlm is not None and name == self._vlm.name
        while idle and (self._waiting if asks else self._queues[name]):
            spell = idle.popleft()
            spell.batch = self._waiting.popleft() if asks else (name, self._queues[name].popleft())
            spell.state = "busy"
            self._at_work[name] += 1
            self._push(self._now + spell.work.seconds, spell)

    def _decide(self) -> None:
        self._decide_at = math.inf
        models = [
            replace(work, queued=len(self._queues[work.name]), running=self._at_work[work.name])
            for work in self._models
        ]
        vlm = self._vlm and replace(self._vlm, queued=len(self._waiting), running=self._at_work[self._vlm.name])
        replicas = [PlacedReplica(s.name, s.work.name, s.node, s.gpus, s.state) for s in self._live]
        decision = decide(models, vlm, replicas, self._nodes)
        self._log += [f"{self._now:10.0f} s  {line}" for line in decision.lines]
        by_name = {spell.name: spell for spell in self._live} if decision.stop else {}
        for stop in decision.stop:
            self._stop(stop, by_name[stop.replica])
        for start in decision.start:
            self._start(start)
        if self._events:
            self._wake(self._now + max(TICK, self._bound / 1000))

    def _stop(self, stop: Stop, spell: SimulatedReplica) -> None:
        if stop.after_batch:
            spell.state = "draining"
        else:
            self._idle[spell.work.name].remove(spell)
            self._end(spell)

    def _end(self, spell: SimulatedReplica) -> None:
        spell.ended = self._now
        self._live.remove(spell)

    def _start(self, start: Start) -> None:
        work = next(work for work in (*self._models, *([self._vlm] if self._vlm else [])) if work.name == start.model)
        spell = SimulatedReplica(f"{work.name}-{len(self._spells) + 1}", work, start.node, start.gpus, self._now)
        self._live.append(spell)
        self._spells.append(spell)
        self._push(self._now + work.load_seconds, spell)
