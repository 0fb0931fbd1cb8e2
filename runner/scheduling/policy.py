"""The fleet's policy: queues, costs and nodes in, replicas out. One pure function, `decide`, which knows no Ray.

Every model starts with one replica where there is room, the longest first; a free GPU then joins the model that would
take longest with what it has, if what the newcomer would do is worth its load. So models end together, and a GPU loads
few of them. The VLM reads stored images whenever it likes: it gets a GPU once it would be busy until the last image is
made, or between two models once the images that wait outweigh its load by far; if it needs no GPU it runs beside.
What is loaded stays until somebody else needs its place: idle replicas give it up, and a busy one (to the VLM alone)
only if its model has others. `tests/runner/test_policy.py` is this page in examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from seesaw.results.words import duration
from seesaw.runner.scheduling.resources import TINY, Demand, FreeResources, Node, PlacedReplica, places

__all__ = ["Decision", "Keep", "Start", "Stop", "decide"]

PAYS = 0.25  #: a further replica must take over this much work, in units of its load and a batch
PAYS_CPU = 4.0  #: the same of one that needs no GPU: its load takes CPU from those at work
WORTH = 30.0  #: images that wait are worth a swap of the VLM between models if they outweigh its load so often
SLACK = 1.5  #: the VLM gives its GPU up if it would idle for longer than this many times the two loads of a move


@dataclass(frozen=True)
class Start:
    model: str
    node: str
    gpus: tuple[int, ...]  #: free once the stops of the same decision are done; empty if it needs none
    reason: str


@dataclass(frozen=True)
class Stop:
    replica: str
    model: str
    after_batch: bool  #: it is busy: let it finish what it has begun, give it nothing more, then end it
    reason: str


@dataclass(frozen=True)
class Keep:
    model: str
    replicas: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Decision:
    """What to do now: the stops first, then the starts."""

    stop: tuple[Stop, ...]
    start: tuple[Start, ...]
    keep: tuple[Keep, ...]

    @property
    def lines(self) -> list[str]:
        """One line for the log a decision to change something."""
        stops = [f"stop {s.replica}{' after its batch' if s.after_batch else ''}: {s.reason}" for s in self.stop]
        return stops + [f"start {s.model} on {_where(s.node, s.gpus)}: {s.reason}" for s in self.start]


def decide(
    models: Sequence[Demand], vlm: Demand | None, replicas: Sequence[PlacedReplica], nodes: Sequence[Node]
) -> Decision:
    """Which replicas to start and where, which to stop, which to keep, each with its reason.

    The same arguments give the same decision. A model that fits on no node (`places` is 0) gets no replica.

    Raises:
        ValueError: two of models and VLM have one name, or a replica is on a node that is not there.
    """
    works = [*models, *([vlm] if vlm else [])]
    if len({work.name for work in works}) < len(works):
        raise ValueError(f"models and the VLM need names of their own, got {[work.name for work in works]}")
    unknown = {replica.node for replica in replicas} - {node.name for node in nodes}
    if unknown:
        raise ValueError(f"replicas on nodes that are not there: {sorted(unknown)}")
    draft = _Draft(models, vlm, replicas, nodes)
    if vlm:
        draft.add_vqa(vlm)
    draft.add_models()
    return Decision(tuple(draft.stops), tuple(draft.starts), tuple(draft.keeps()))


@dataclass
class _Draft:
    """A decision in the making: replicas that count, rooms as they will be, and what was decided so far."""

    models: Sequence[Demand]
    vlm: Demand | None
    replicas: Sequence[PlacedReplica]
    nodes: Sequence[Node]
    stops: list[Stop] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._works = {work.name: work for work in (*self.models, *([self.vlm] if self.vlm else []))}
        self._rooms = {node.name: FreeResources.of(node) for node in self.nodes}
        self._places = {work.name: places(work, self.nodes) for work in self._works.values()}
        self._count = dict.fromkeys(self._works, 0)  # replicas that go on, and those that are started here
        for replica in self.replicas:
            work = self._work(replica)
            self._rooms[replica.node].take(work, replica.gpus)
            if replica.state != "draining" and replica.model in self._count:
                self._count[replica.model] += 1
        for name, count in self._count.items():  # what runs has its places, whatever has been said of them since
            self._places[name] = max(self._places[name], count)
        self._total = {
            "gpus": float(sum(node.gpus for node in self.nodes)),
            "cpus": sum(node.cpus for node in self.nodes),
        }
        self._quiet = all(replica.state == "idle" for replica in self.replicas)
        self._spare = [replica for replica in self.replicas if self._is_spare(replica)]

    def _work(self, replica: PlacedReplica) -> Demand:
        """What a replica takes; of one whose model is not served any more, the GPUs that it holds."""
        known = self._works.get(replica.model)
        return known or Demand(replica.model, 0, 0, 0.0, 0.0, gpus=float(len(replica.gpus)))

    @property
    def _making(self) -> int:
        """Batches of images that are still to be made of what can be made here."""
        return sum(work.queued + work.running for work in self.models if self._places[work.name])

    def _is_spare(self, replica: PlacedReplica) -> bool:
        """Whether its place may be given to somebody else."""
        work = self._works.get(replica.model)
        if replica.state != "idle" or (work and work.queued):
            return False
        if work is None or work is not self.vlm or not self._making:
            return True
        if not any(self._count[model.name] and model.queued + model.running for model in self.models):
            return True  # no image will come while it stays
        count = self._count[work.name]
        if work.pinned is not None or (not work.gpus and count == 1):
            return False
        waits = [model.load_seconds for model in self.models if model.queued]
        return bool(waits) and self._rest(count) - self._asking(work) / count > SLACK * (work.load_seconds + min(waits))

    def _rest(self, vqa: int) -> float:
        """Seconds until all images are made, spread over all that `vqa` replicas of the VLM leave; inf if nothing."""
        longest = 0.0
        for kind, total in self._total.items():
            need = sum(
                getattr(work, kind) * ((work.queued + work.running) * work.seconds + self._first_load(work))
                for work in self.models
                if self._places[work.name]
            )
            left = total - (vqa * getattr(self.vlm, kind) if self.vlm else 0)
            if need:
                longest = max(longest, need / left if left > TINY else math.inf)
        return longest

    def _first_load(self, work: Demand) -> float:
        return work.load_seconds if work.queued and not self._count[work.name] else 0.0

    def _asking(self, vlm: Demand) -> float:
        """Seconds of one replica for all that is left to ask, of images stored or still to be made."""
        return (vlm.queued + vlm.running + self._making) * vlm.seconds

    def add_vqa(self, vlm: Demand) -> None:
        """Start the VLM where it is time to, in the place of a busy replica if it is urgent."""
        coming = sum(replica.state == "draining" for replica in self.replicas)
        while True:
            reason, urgent = self._vqa_reason(vlm)
            if not reason:
                return
            if self._start(vlm, reason, self._leaves_room):
                continue
            if coming:  # a place that is on its way
                coming -= 1
                self._count[vlm.name] += 1
            elif not urgent or not self._preempt(vlm, reason):
                return

    def _vqa_reason(self, vlm: Demand) -> tuple[str, bool]:
        """Why one more replica of the VLM is due, "" if none is; and whether it may have a busy one's place for it."""
        count, left, making = self._count[vlm.name], self._asking(vlm), self._making
        if not left or count >= min(self._places[vlm.name], vlm.queued + making):
            return "", False
        told = f"{vlm.queued:,} batches wait to be asked and {making:,} are to be made"
        if vlm.pinned is not None:
            return f"{told}; {vlm.pinned} replicas are pinned", True
        if not vlm.gpus and not count:
            return f"{told}; it needs no GPU and runs beside", False
        gain = self._gain(vlm, left)
        if not any(model.queued for model in self.models if self._places[model.name]):
            return (f"{told}; no other work waits", False) if gain > 0 else ("", False)
        rest = self._rest(count + 1)
        if left / (count + 1) + vlm.load_seconds >= rest and gain > 0:
            return f"{told}; {count + 1} of it will be busy until the last is made, in {duration(rest)}", (
                gain >= vlm.load_seconds
            )
        if vlm.queued * vlm.seconds / (count + 1) >= WORTH * vlm.load_seconds > 0:
            return f"{told}; what waits outweighs its load {WORTH:g} times", False
        return "", False

    def _leaves_room(self) -> bool:
        """Whether, as the rooms are now, images can be made beside the VLM, or need not be."""
        waiting = [model for model in self.models if model.queued and self._places[model.name]]
        at_work = any(self._count[model.name] and model.queued + model.running for model in self.models)
        backlog = self.vlm is not None and self.vlm.queued * self.vlm.seconds >= WORTH * self.vlm.load_seconds > 0
        return not waiting or at_work or backlog or any(self._place(model) for model in waiting)

    def _preempt(self, vlm: Demand, reason: str) -> bool:
        """Let the VLM have the place of a replica whose model has others, the one that loses least by it."""
        stopped = {stop.replica for stop in self.stops}
        for model in sorted(self.models, key=lambda work: work.queued * work.seconds / max(self._count[work.name], 1)):
            if self._count[model.name] < 2 or model.pinned is not None or model.gpus < vlm.gpus:
                continue
            for replica in self.replicas:
                room = self._rooms[replica.node]
                if replica.model != model.name or replica.state != "busy" or replica.name in stopped:
                    continue
                room.give(model, replica.gpus)
                fits = room.find(vlm) is not None
                room.take(model, replica.gpus)
                if fits:
                    others = self._count[model.name] - 1
                    self._count[model.name] -= 1
                    self._count[vlm.name] += 1
                    why = f"{vlm.name} needs its place ({reason}); {others} others go on with {model.name}"
                    self.stops.append(Stop(replica.name, model.name, True, why))
                    return True
        return False

    def add_models(self) -> None:
        """Give what is free to whoever would take longest without it, for as long as that pays."""
        closed: set[str] = set()
        while True:
            waiting = [work for work in self.models if work.queued and work.name not in closed]
            if not waiting:
                return
            work = max(waiting, key=self._urgency)
            reason = self._model_reason(work)
            if not reason or not self._start(work, reason):
                closed.add(work.name)

    def _urgency(self, work: Demand) -> tuple[int, float]:
        """First who has no replica, the longest or, while the VLM waits for images, the fastest (Johnson's rule)."""
        seconds, count = work.queued * work.seconds, self._count[work.name]
        if count:
            return (1 if work.pinned is not None else 0), seconds / count
        starving = self.vlm is not None and self.vlm.gpus and self._count[self.vlm.name]
        return 2, -work.seconds if starving else seconds / max(self._places[work.name], 1)

    def _model_reason(self, work: Demand) -> str:
        """Why one more replica of a model is due; empty if none is."""
        count, seconds = self._count[work.name], work.queued * work.seconds
        if count >= min(self._places[work.name], work.queued + work.running):
            return ""
        told = f"{work.queued:,} batches wait ({duration(seconds)})"
        if work.pinned is not None:
            return f"{told}; {work.pinned} replicas are pinned"
        if not count:
            return f"{told} and it has no replica"
        gain = self._gain(work, seconds)
        if gain <= 0:
            return ""
        load = duration(work.load_seconds)
        return f"{told}; it takes {duration(gain)} of that from {count} others, for {load} of loading"

    def _gain(self, work: Demand, seconds: float) -> float:
        """Seconds of work that one more replica would do before all `seconds` are done; 0 if that does not pay."""
        count = self._count[work.name]
        share = (seconds - count * work.load_seconds) / (count + 1)
        pays = PAYS if work.gpus else PAYS_CPU
        return share if share >= pays * (work.load_seconds + work.seconds) or not count else 0.0

    def _place(self, work: Demand) -> tuple[FreeResources, tuple[int, ...]] | None:
        """Where a replica fits right now."""
        for room in sorted(self._rooms.values(), key=lambda room: room.order(work)):
            gpus = room.find(work)
            if gpus is not None:
                return room, gpus
        return None

    def _start(self, work: Demand, reason: str, sound: Callable[[], bool] = lambda: True) -> bool:
        """Start a replica where it fits, or where idle ones make room; not if things are not `sound` after that."""
        evicted: list[PlacedReplica] = []
        place = self._place(work)
        if place is None:
            evicted = self._evictable(work)
            for replica in evicted:
                self._rooms[replica.node].give(self._work(replica), replica.gpus)
            place = self._place(work) if evicted else None
        if place is None:
            return False
        room, gpus = place
        room.take(work, gpus)
        if not sound():
            room.give(work, gpus)
            for replica in evicted:
                self._rooms[replica.node].take(self._work(replica), replica.gpus)
            return False
        for replica in evicted:
            self._spare.remove(replica)
            if replica.model in self._count:
                self._count[replica.model] -= 1
            self.stops.append(Stop(replica.name, replica.model, False, f"idle, and {work.name} needs its place"))
        self._count[work.name] += 1
        self.starts.append(Start(work.name, room.node.name, gpus, reason))
        return True

    def _evictable(self, work: Demand) -> list[PlacedReplica]:
        """The fewest idle replicas of others, on one node, that make room for `work`; none if they cannot."""
        best: list[PlacedReplica] = []
        by_node: dict[str, list[PlacedReplica]] = {}
        for replica in sorted(self._spare, key=lambda replica: self._work(replica).load_seconds):
            if replica.model != work.name and self._may_evict(replica, work):
                by_node.setdefault(replica.node, []).append(replica)
        for room in sorted((self._rooms[name] for name in by_node), key=lambda room: room.order(work)):
            found = self._fewest(room, by_node[room.node.name], work)
            if found and (not best or len(found) < len(best)):
                best = found
            if len(best) == 1:
                break
        return best

    def _may_evict(self, replica: PlacedReplica, work: Demand) -> bool:
        if not self._is_spare(replica):  # the VLM has given up others in the meantime, and needs this one
            return False
        victim = self._work(replica)
        move = victim.load_seconds + work.load_seconds
        return self._quiet or not victim.open or self._gain(work, work.queued * work.seconds) >= move

    def _fewest(self, room: FreeResources, spare: Sequence[PlacedReplica], work: Demand) -> list[PlacedReplica]:
        gone: list[PlacedReplica] = []
        for replica in spare:
            room.give(self._work(replica), replica.gpus)
            gone.append(replica)
            if room.find(work) is not None:
                break
        needed = list(gone) if room.find(work) is not None else []
        for replica in list(needed):  # who did not help stays
            room.take(self._work(replica), replica.gpus)
            if room.find(work) is not None:
                needed.remove(replica)
            else:
                room.give(self._work(replica), replica.gpus)
        for replica in needed or gone:
            room.take(self._work(replica), replica.gpus)
        return needed

    def keeps(self) -> Iterator[Keep]:
        """What goes on as it is, a line a model."""
        stopped = {stop.replica for stop in self.stops}
        kept: dict[str, list[PlacedReplica]] = {}
        for replica in self.replicas:
            if replica.name not in stopped:
                kept.setdefault(replica.model, []).append(replica)
        for name, those in kept.items():
            work = self._works.get(name)
            states = [replica.state for replica in those]
            counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
            wait = f"{work.queued:,} batches wait" if work and work.queued else "nothing waits, nobody needs the place"
            yield Keep(name, tuple(replica.name for replica in those), f"{counts}; {wait}")


def _where(node: str, gpus: tuple[int, ...]) -> str:
    return f"{node}, GPU {', '.join(map(str, gpus))}" if gpus else node
