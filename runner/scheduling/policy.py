"""The fleet's policy: which replicas to start and where, and which to stop. One pure function, `decide`; no Ray.

It is given what is left to do for every model and the VLM, what that costs, the replicas that there are, and the nodes.

Models:
- Every model starts with one replica where there is room for it, the model with the longest work first.
- A GPU that is free after that joins the model that would take longest with the replicas that it has, if the work that
  the new replica would take over is worth the time that it takes to load. So the models end together, and a GPU loads
  few of them.

The VLM, which can ask about stored images at any time:
- If it needs no GPU, it runs beside the models.
- If it needs one, it gets it once it would be busy from then until the last image is made. Before that it gets a GPU
  only between two models, once the work that waits for it far outweighs its load.

Replicas that are loaded stay until something else needs their place:
- An idle replica gives its place up.
- A busy replica gives it up to the VLM alone, after its batch, and only if its model has other replicas.

`tests/runner/test_policy.py` says the same in examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from seesaw.results.words import duration
from seesaw.runner.scheduling.resources import TOLERANCE, Demand, FreeResources, Node, PlacedReplica, places

__all__ = ["Decision", "Start", "Stop", "decide"]

#: a further replica must take over at least this much work, in units of its load and one batch
MIN_GAIN = 0.25
#: the same for a replica without a GPU, whose load takes CPU time from the replicas that work
MIN_GAIN_CPU = 4.0
#: the VLM is loaded between two models once the work that waits for it takes this many times as long as its load
MIN_BACKLOG = 30.0
#: the VLM gives its GPU up if it would be idle for more than this many times the two loads that a move takes
MAX_IDLE = 1.5


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
    after_batch: bool  #: it is busy: let it finish what it has begun, give it nothing more, then stop it
    reason: str


@dataclass(frozen=True)
class Decision:
    """What to do now: the stops first, then the starts."""

    stop: tuple[Stop, ...]
    start: tuple[Start, ...]

    @property
    def lines(self) -> list[str]:
        """A line for the log for each replica that is stopped or started."""
        stops = [f"stop {s.replica}{' after its batch' if s.after_batch else ''}: {s.reason}" for s in self.stop]
        return stops + [f"start {s.model} on {_where(s.node, s.gpus)}: {s.reason}" for s in self.start]


def decide(
    models: Sequence[Demand], vlm: Demand | None, replicas: Sequence[PlacedReplica], nodes: Sequence[Node]
) -> Decision:
    """Which replicas to start and where, and which to stop, each with its reason. All others go on.

    The same arguments give the same decision. A model that fits on no node (`places` is 0) gets no replica.

    Raises:
        ValueError: two of the models and the VLM have the same name, or a replica is on a node that is not in `nodes`.
    """
    demands = [*models, *([vlm] if vlm else [])]
    if len({demand.name for demand in demands}) < len(demands):
        raise ValueError(f"models and the VLM need names of their own, got {[demand.name for demand in demands]}")
    unknown = {replica.node for replica in replicas} - {node.name for node in nodes}
    if unknown:
        raise ValueError(f"replicas on nodes that are not there: {sorted(unknown)}")
    builder = _DecisionBuilder(models, vlm, replicas, nodes)
    if vlm:
        builder.start_vlm(vlm)
    builder.start_models()
    return Decision(tuple(builder.stops), tuple(builder.starts))


@dataclass
class _DecisionBuilder:
    """A decision as it grows: what was decided so far, and what the nodes and replicas will be like after that."""

    models: Sequence[Demand]
    vlm: Demand | None
    replicas: Sequence[PlacedReplica]
    nodes: Sequence[Node]
    stops: list[Stop] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._demands = {demand.name: demand for demand in (*self.models, *([self.vlm] if self.vlm else []))}
        self._free = {node.name: FreeResources.of(node) for node in self.nodes}
        self._places = {demand.name: places(demand, self.nodes) for demand in self._demands.values()}
        self._count = dict.fromkeys(self._demands, 0)  # by model: replicas that go on, and those that are started here
        for replica in self.replicas:
            demand = self._demand_of(replica)
            self._free[replica.node].allocate(demand, replica.gpus)
            if replica.state != "draining" and replica.model in self._count:
                self._count[replica.model] += 1
        for name, count in self._count.items():  # a replica that runs has a place, even where a new one would have none
            self._places[name] = max(self._places[name], count)
        self._total = {
            "gpus": float(sum(node.gpus for node in self.nodes)),
            "cpus": sum(node.cpus for node in self.nodes),
        }
        self._all_idle = all(replica.state == "idle" for replica in self.replicas)
        self._evictable = [replica for replica in self.replicas if self._is_evictable(replica)]

    def _demand_of(self, replica: PlacedReplica) -> Demand:
        """What a replica takes. If its model is served no more, only its GPUs are known."""
        demand = self._demands.get(replica.model)
        return demand or Demand(replica.model, 0, 0, 0.0, 0.0, gpus=float(len(replica.gpus)))

    @property
    def _images_left(self) -> int:
        """Batches of images that are still to be made, by the models that fit on these nodes."""
        return sum(demand.queued + demand.running for demand in self.models if self._places[demand.name])

    def _is_evictable(self, replica: PlacedReplica) -> bool:
        """Whether another replica may have its place: it is idle, and will not be needed soon."""
        demand = self._demands.get(replica.model)
        if replica.state != "idle" or (demand and demand.queued):
            return False
        if demand is None or demand is not self.vlm or not self._images_left:
            return True
        if not any(self._count[model.name] and model.queued + model.running for model in self.models):
            return True  # no model can make images while the VLM stays, so it would wait for nothing
        count = self._count[demand.name]
        if demand.pinned is not None or (not demand.gpus and count == 1):
            return False
        loads = [model.load_seconds for model in self.models if model.queued]
        return bool(loads) and self._seconds_of_making(count) - self._seconds_of_asking(demand) / count > MAX_IDLE * (
            demand.load_seconds + min(loads)
        )

    def _seconds_of_making(self, vlm_replicas: int) -> float:
        """Seconds until all images are made, if the models share all GPUs and CPUs that the VLM's replicas leave.

        Infinite if these leave nothing.
        """
        longest = 0.0
        for kind, total in self._total.items():
            need = sum(
                getattr(demand, kind) * ((demand.queued + demand.running) * demand.seconds + self._first_load(demand))
                for demand in self.models
                if self._places[demand.name]
            )
            left = total - (vlm_replicas * getattr(self.vlm, kind) if self.vlm else 0)
            if need:
                longest = max(longest, need / left if left > TOLERANCE else math.inf)
        return longest

    def _first_load(self, demand: Demand) -> float:
        return demand.load_seconds if demand.queued and not self._count[demand.name] else 0.0

    def _seconds_of_asking(self, vlm: Demand) -> float:
        """Seconds that one replica takes to ask about all images that are left, stored or still to be made."""
        return (vlm.queued + vlm.running + self._images_left) * vlm.seconds

    def start_vlm(self, vlm: Demand) -> None:
        """Start replicas of the VLM that are due, in the place of a busy replica if that is urgent."""
        coming = sum(replica.state == "draining" for replica in self.replicas)
        while True:
            reason, urgent = self._reason_for_vlm(vlm)
            if not reason:
                return
            if self._start(vlm, reason, self._models_can_go_on):
                continue
            if coming:  # a replica is ending, and its place will do
                coming -= 1
                self._count[vlm.name] += 1
            elif not urgent or not self._preempt(vlm, reason):
                return

    def _reason_for_vlm(self, vlm: Demand) -> tuple[str, bool]:
        """Why one more replica of the VLM is due ("" if none is), and whether a busy one may lose its place to it."""
        count, seconds, images = self._count[vlm.name], self._seconds_of_asking(vlm), self._images_left
        if not seconds or count >= min(self._places[vlm.name], vlm.queued + images):
            return "", False
        waiting = f"{vlm.queued:,} batches wait to be asked and {images:,} are to be made"
        if vlm.pinned is not None:
            return f"{waiting}; {vlm.pinned} replicas are pinned", True
        if not vlm.gpus and not count:
            return f"{waiting}; it needs no GPU and runs beside", False
        gain = self._gain(vlm, seconds)
        if not any(model.queued for model in self.models if self._places[model.name]):
            return (f"{waiting}; no other work waits", False) if gain > 0 else ("", False)
        until_made = self._seconds_of_making(count + 1)
        if seconds / (count + 1) + vlm.load_seconds >= until_made and gain > 0:
            return f"{waiting}; {count + 1} of it will be busy until the last is made, in {duration(until_made)}", (
                gain >= vlm.load_seconds
            )
        if vlm.queued * vlm.seconds / (count + 1) >= MIN_BACKLOG * vlm.load_seconds > 0:
            return f"{waiting}; what waits outweighs its load {MIN_BACKLOG:g} times", False
        return "", False

    def _models_can_go_on(self) -> bool:
        """Whether the VLM's new replica leaves it possible to make images, or no images are to be made just now."""
        waiting = [model for model in self.models if model.queued and self._places[model.name]]
        at_work = any(self._count[model.name] and model.queued + model.running for model in self.models)
        backlog = self.vlm is not None and self.vlm.queued * self.vlm.seconds >= MIN_BACKLOG * self.vlm.load_seconds > 0
        return not waiting or at_work or backlog or any(self._where_it_fits(model) for model in waiting)

    def _preempt(self, vlm: Demand, reason: str) -> bool:
        """Stop a busy replica of a model that has others, so that the VLM gets its place.

        Of such models, it is the one that has least left to do for each of its replicas. False if there is none.
        """
        stopped = {stop.replica for stop in self.stops}
        for model in sorted(
            self.models, key=lambda demand: demand.queued * demand.seconds / max(self._count[demand.name], 1)
        ):
            if self._count[model.name] < 2 or model.pinned is not None or model.gpus < vlm.gpus:
                continue
            for replica in self.replicas:
                free = self._free[replica.node]
                if replica.model != model.name or replica.state != "busy" or replica.name in stopped:
                    continue
                free.release(model, replica.gpus)
                fits = free.fit(vlm) is not None
                free.allocate(model, replica.gpus)
                if fits:
                    others = self._count[model.name] - 1
                    self._count[model.name] -= 1
                    self._count[vlm.name] += 1
                    why = f"{vlm.name} needs its place ({reason}); {others} others go on with {model.name}"
                    self.stops.append(Stop(replica.name, model.name, True, why))
                    return True
        return False

    def start_models(self) -> None:
        """Start replicas of the most urgent model, one by one, for as long as one fits and is worth its load."""
        closed: set[str] = set()
        while True:
            waiting = [demand for demand in self.models if demand.queued and demand.name not in closed]
            if not waiting:
                return
            demand = max(waiting, key=self._urgency)
            reason = self._reason_for_model(demand)
            if not reason or not self._start(demand, reason):
                closed.add(demand.name)

    def _urgency(self, demand: Demand) -> tuple[int, float]:
        """A key by which the model comes last that is to have the next replica.

        A model without a replica goes before all others. Of several such, the one with the longest work goes first; but
        while the VLM is loaded and waits for images, it is the one with the fastest batches (Johnson's rule).
        """
        seconds, count = demand.queued * demand.seconds, self._count[demand.name]
        if count:
            return (1 if demand.pinned is not None else 0), seconds / count
        vlm_waits = self.vlm is not None and self.vlm.gpus and self._count[self.vlm.name]
        return 2, -demand.seconds if vlm_waits else seconds / max(self._places[demand.name], 1)

    def _reason_for_model(self, demand: Demand) -> str:
        """Why one more replica of a model is due; "" if none is."""
        count, seconds = self._count[demand.name], demand.queued * demand.seconds
        if count >= min(self._places[demand.name], demand.queued + demand.running):
            return ""
        waiting = f"{demand.queued:,} batches wait ({duration(seconds)})"
        if demand.pinned is not None:
            return f"{waiting}; {demand.pinned} replicas are pinned"
        if not count:
            return f"{waiting} and it has no replica"
        gain = self._gain(demand, seconds)
        if gain <= 0:
            return ""
        load = duration(demand.load_seconds)
        return f"{waiting}; it takes {duration(gain)} of that from {count} others, for {load} of loading"

    def _gain(self, demand: Demand, seconds: float) -> float:
        """Seconds of work that one more replica would take over, of all `seconds`; 0 if that is not worth its load."""
        count = self._count[demand.name]
        share = (seconds - count * demand.load_seconds) / (count + 1)
        least = MIN_GAIN if demand.gpus else MIN_GAIN_CPU
        return share if share >= least * (demand.load_seconds + demand.seconds) or not count else 0.0

    def _where_it_fits(self, demand: Demand) -> tuple[FreeResources, tuple[int, ...]] | None:
        """The best node on which a replica fits now, and its GPUs there."""
        for free in sorted(self._free.values(), key=lambda free: free.order(demand)):
            gpus = free.fit(demand)
            if gpus is not None:
                return free, gpus
        return None

    def _start(self, demand: Demand, reason: str, acceptable: Callable[[], bool] = lambda: True) -> bool:
        """Start a replica where it fits, or in the place of idle ones; not if `acceptable` is False after that."""
        evicted: list[PlacedReplica] = []
        place = self._where_it_fits(demand)
        if place is None:
            evicted = self._victims(demand)
            for replica in evicted:
                self._free[replica.node].release(self._demand_of(replica), replica.gpus)
            place = self._where_it_fits(demand) if evicted else None
        if place is None:
            return False
        free, gpus = place
        free.allocate(demand, gpus)
        if not acceptable():
            free.release(demand, gpus)
            for replica in evicted:
                self._free[replica.node].allocate(self._demand_of(replica), replica.gpus)
            return False
        for replica in evicted:
            self._evictable.remove(replica)
            if replica.model in self._count:
                self._count[replica.model] -= 1
            self.stops.append(Stop(replica.name, replica.model, False, f"idle, and {demand.name} needs its place"))
        self._count[demand.name] += 1
        self.starts.append(Start(demand.name, free.node.name, gpus, reason))
        return True

    def _victims(self, demand: Demand) -> list[PlacedReplica]:
        """The fewest idle replicas of others, all on one node, whose places hold `demand`; none if they do not."""
        best: list[PlacedReplica] = []
        by_node: dict[str, list[PlacedReplica]] = {}
        for replica in sorted(self._evictable, key=lambda replica: self._demand_of(replica).load_seconds):
            if replica.model != demand.name and self._may_evict(replica, demand):
                by_node.setdefault(replica.node, []).append(replica)
        for free in sorted((self._free[name] for name in by_node), key=lambda free: free.order(demand)):
            victims = self._fewest(free, by_node[free.node.name], demand)
            if victims and (not best or len(victims) < len(best)):
                best = victims
            if len(best) == 1:
                break
        return best

    def _may_evict(self, replica: PlacedReplica, demand: Demand) -> bool:
        """Whether an idle replica's place is worth more to `demand` than the load that may be needed to replace it."""
        if not self._is_evictable(replica):  # the VLM has lost other replicas since, and needs this one
            return False
        victim = self._demand_of(replica)
        move = victim.load_seconds + demand.load_seconds
        return self._all_idle or not victim.more_to_come or self._gain(demand, demand.queued * demand.seconds) >= move

    def _fewest(self, free: FreeResources, spare: Sequence[PlacedReplica], demand: Demand) -> list[PlacedReplica]:
        gone: list[PlacedReplica] = []
        for replica in spare:
            free.release(self._demand_of(replica), replica.gpus)
            gone.append(replica)
            if free.fit(demand) is not None:
                break
        needed = list(gone) if free.fit(demand) is not None else []
        for replica in list(needed):  # a replica whose place does not help stays
            free.allocate(self._demand_of(replica), replica.gpus)
            if free.fit(demand) is not None:
                needed.remove(replica)
            else:
                free.release(self._demand_of(replica), replica.gpus)
        for replica in needed or gone:
            free.allocate(self._demand_of(replica), replica.gpus)
        return needed


def _where(node: str, gpus: tuple[int, ...]) -> str:
    return f"{node}, GPU {', '.join(map(str, gpus))}" if gpus else node
