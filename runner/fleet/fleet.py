"""The fleet: replicas of models and of the VLM in Ray actors, where `runner.scheduling.policy` wants them.

The Lab tells what is left (`Backlog`), pools do the batches, and in between `Fleet` looks after all of it: it asks the
policy when a replica has nothing to do, has ended or has loaded, when nodes come or go, and every few seconds; it
starts and ends replicas as told, replaces those that hang, and waits for what is away: a store, or a node that could
serve what is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from seesaw.actors.tti import ImageBatch
from seesaw.actors.vqa import AnswerBatch
from seesaw.results.errors import HeadLost, Interrupted, SeesawError
from seesaw.results.printable import printable
from seesaw.results.store.costs import Measured, write_costs
from seesaw.results.store.store import Store
from seesaw.runner.cluster.nodes import Nodes
from seesaw.runner.cluster.preflight import Ready
from seesaw.runner.config import ModelConfig, VLMConfig
from seesaw.runner.display.event_types import FleetState, ModelState, ReplicaState
from seesaw.runner.display.events import Events
from seesaw.runner.display.waiting import Waiting
from seesaw.runner.experiment import Experiment, ResolvedModel
from seesaw.runner.fleet.outage import Outage
from seesaw.runner.fleet.pool import ReplicaPool
from seesaw.runner.fleet.replica import Replica
from seesaw.runner.fleet.serve import WRITING, starter
from seesaw.runner.plan import Batch, costs_of
from seesaw.runner.scheduling.policy import Decision, decide
from seesaw.runner.scheduling.resources import Demand, PlacedReplica, places

__all__ = ["Backlog", "Fleet"]

KEEP = 60.0  #: seconds after which measured costs are kept again
LOOK = 5.0  #: seconds between two looks at the nodes and the policy when nothing happens
SETTLE = 0.05  #: seconds in which what happens together is decided together
ASLEEP = 60.0  #: seconds between two looks after which it was this process that stood still, and nobody hung
GUESS = 1.0  #: seconds of a batch of which nobody has said or measured what it takes; one replica will find out
WIDEST = 512  #: replicas of a model that are reckoned with when it is said how much may be in flight
HELD = 0.3  #: share of Ray's object store that images on their way to the VLM may fill; others are read from the store
SHY = 15.0  #: seconds in which nothing is started on a node that a replica was lost with, or to: Ray may list it still
HANDED = 1.0  #: seconds after which an idle replica that nobody waits for has nothing to do
VAIN = 10.0  #: times what a batch or a load takes in the mean before it hangs, where that is more than hang_seconds


@dataclass
class Backlog:
    """Names of the batches that are known to be left; the Lab keeps it, wherever they wait or are at work."""

    unmade: dict[str, set[str]]  #: by model
    unasked: set[str] = field(default_factory=set)  #: whose images the store holds


class Fleet:
    """One pool a model and one for the VLM, on the nodes that are `ready`; `more` work may come, as in a mitigation."""

    def __init__(self, experiment: Experiment, logs: Path, events: Events, ready: Ready, more: bool = False) -> None:
        self._experiment, self._logs, self._events, self._more = experiment, logs.absolute(), events, more
        self.fault: SeesawError | None = None  #: what ended the run for all, if anything did
        self.abandon: Callable[[], object] = lambda: None  #: called when what is in flight cannot be waited for
        cluster = experiment.cluster
        self.backlog = Backlog({model.name: set() for model in experiment.models})
        self._changed = asyncio.Event()

        def pool(spec: ModelConfig | VLMConfig) -> ReplicaPool:
            vital = isinstance(spec, VLMConfig)
            return ReplicaPool(
                spec.name, starter(experiment, spec, logs), cluster.in_flight, cluster.attempts, events, vital,
                fatal=self._end, changed=self._changed.set, elsewhere=lambda: self._fits(spec.name),
                several=lambda: len(self._nodes.now) > 1,
            )  # fmt: skip

        self._pools = {model.name: pool(model.spec) for model in experiment.models}
        self._vqa = pool(experiment.vlm.spec)
        self._everyone = (*self._pools.values(), self._vqa)
        self.outage = Outage(cluster.wait_seconds, events, self._end, lambda: self.stopping)
        self._costs = {name: work for name, (work, _) in costs_of(experiment).items()}
        self._nodes = Nodes(experiment, ready, events, self._changed.set)
        replicas = sum(min(places(work, self._nodes.now), WIDEST) for work in self._costs.values())
        self.width = max(replicas, 1) * cluster.in_flight  #: batches that can be at replicas at once
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._room = HELD * total.get("object_store_memory", 0.0) / max(len(self._nodes.now), 1)  # bytes
        self._steering: asyncio.Task[None] | None = None
        self._stranded = Waiting(events, grace=LOOK)  # what has just come to its end is not stranded
        self._homeless: set[str] = set()  # models that fit on no node
        self._gpu_seconds, self._last_look = 0.0, time.monotonic()
        self._costs_kept, self._store = self._last_look, Store(experiment.store, made=True)

    # -- what the Lab calls ---------------------------------------------------------------------------------------

    async def generate(self, batch: Batch) -> tuple[Any, int] | None:
        """Make and commit a batch of images.

        A reference to their encoded bytes, which stay where they were made, and how many bytes they are; None if there
        is no room to keep them there until they are asked.
        """
        task = ImageBatch(
            batch.images, batch.model, batch.prompt.text, batch.prompt.adapter, batch.seeds, batch.image_keys
        )

        async def submit(replica: Replica, first: bool) -> tuple[Any, int] | None:
            await replica.actor.generate.remote(task)

            async def commit() -> tuple[Any, tuple[int, int]]:
                told, images = replica.actor.commit.options(num_returns=2, concurrency_group=WRITING).remote(task)
                return images, await told

            images, (blanks, size) = await self.outage.through(commit, replica.waits)
            self._events.blank(batch, blanks)
            if size > self._room:
                return None
            self._room -= size
            return images, size

        self._steer_on()
        return await self._pools[batch.model].call(batch.label, "generate", submit, batch.prompt.subject)

    async def ask(self, batch: Batch, images: tuple[Any, int] | None) -> pa.Table:
        """Ask a batch of images (None, or lost on the way: the store's) and commit the answers; returns them."""
        task = AnswerBatch(batch.answers, batch.images, self._experiment.vlm.name, batch.image_keys)

        async def submit(replica: Replica, first: bool) -> pa.Table:
            sent = images[0] if images and first else None
            return await self.outage.through(lambda: replica.actor.answer.remote(task, sent), replica.waits)

        self._steer_on()
        try:
            return await self._vqa.call(batch.label, "ask", submit, batch.prompt.subject)
        finally:
            if images:
                self._room += images[1]

    # -- looking after it -----------------------------------------------------------------------------------------

    def _steer_on(self) -> None:
        """Begin to look after the fleet with the first batch: a run for which all is there loads nothing."""
        self._changed.set()
        if self._steering is None:
            self._steering = asyncio.create_task(self._steer())
            self._steering.add_done_callback(self._steered)

    def _steered(self, task: asyncio.Task[None]) -> None:
        """An error of ours in here ends the run: without the policy it would wait for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for pool in self._everyone:
                pool.fail(error)

    async def _steer(self) -> None:
        while True:
            self._changed.clear()
            before = time.monotonic()
            try:
                answered = await self._nodes.look(self._places())
            except HeadLost as fault:
                self._end(fault)
                self.abandon()
                return
            if not answered:
                await asyncio.sleep(1.0)
                continue
            self._replace_hung()
            if not self.stopping:
                self._apply(self._decide())
            self._tell()
            if time.monotonic() - self._costs_kept > KEEP:
                await self._keep_costs()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout=LOOK)
            await asyncio.sleep(SETTLE)
            if time.monotonic() - before > ASLEEP:
                for pool in self._everyone:
                    for replica in pool.replicas:
                        replica.waits()

    async def _keep_costs(self) -> None:
        """Leave in the store what batches and loads took."""
        self._costs_kept = time.monotonic()
        everyone: list[ResolvedModel[Any]] = [*self._experiment.models, self._experiment.vlm]
        folders = {served.name: served.folder for served in everyone}
        costs = {
            folders[pool.name]: Measured(pool.done, pool.seconds, pool.load_seconds)
            for pool in self._everyone
            if pool.seconds and pool.load_seconds is not None
        }
        if costs:
            await asyncio.to_thread(write_costs, self._store, costs)

    def _places(self) -> set[str]:
        return {replica.node for pool in self._everyone for replica in pool.replicas}

    def _fits(self, name: str) -> bool:
        pool = self._vqa if name == self._vqa.name else self._pools[name]
        return places(self._work(pool, 0), self._nodes.now) > 0

    def _decide(self) -> Decision:
        here = {node.name for node in self._nodes.now}
        replicas = [
            PlacedReplica(r.name, pool.name, r.node, r.gpus, r.state)
            for pool in self._everyone
            for r in pool.replicas
            if r.node in here
        ]
        models = [self._work(pool, len(self.backlog.unmade[name])) for name, pool in self._pools.items()]
        vlm = self._work(self._vqa, len(self.backlog.unasked))
        decision = decide(models, vlm, replicas, self._nodes.now)
        waiting = [work for work in (*models, vlm) if work.queued]
        at_work = any(replica.state != "idle" for replica in replicas)
        self._strand(waiting, bool(waiting) and not at_work and not decision.lines)
        served = {replica.model for replica in replicas}
        homeless = {work.name for work in waiting if work.name not in served and not places(work, self._nodes.now)}
        for name in sorted(homeless - self._homeless):
            self._events.note(f"{name} fits on no node now ({self._needs(name)}); others go on, and it when it does")
        self._homeless = homeless
        return decision

    def _work(self, pool: ReplicaPool, left: int) -> Demand:
        """What is left for a pool, at the costs that were measured where they were."""
        work = self._costs[pool.name]
        now = time.monotonic()
        left_alone = {node for other in self._everyone for node, at in other.left.items() if now - at < SHY}
        if not pool.waiting and any(r.state == "idle" and now - r.moved > HANDED for r in pool.replicas):
            left = pool.running  # nothing of it can be handed out for now: its place may be somebody else's
        pinned = work.pinned or (None if pool.seconds or work.seconds else 1)
        if pool.most is not None:
            pinned = min(pool.most, pinned or pool.most)
        return replace(
            work,
            queued=0 if pool.broken or pool.stopping else max(left - pool.running, 0),
            running=pool.running,
            seconds=pool.seconds or work.seconds or GUESS,
            load_seconds=pool.load_seconds or work.load_seconds,
            pinned=pinned,
            open=self._more,
            shuns=frozenset(pool.shuns | self._nodes.lacking(pool.name) | left_alone),
        )

    def _apply(self, decision: Decision) -> None:
        names = {r.name: (pool, r) for pool in self._everyone for r in pool.replicas}
        for stop in decision.stop:
            pool, replica = names[stop.replica]
            pool.end(replica)
        for start in decision.start:
            pool = self._vqa if start.model == self._vqa.name else self._pools[start.model]
            pool.start(start.node, start.gpus)
        if decision.lines:
            lines = [printable(self._nodes.readable(line)) for line in decision.lines]
            with suppress(OSError), (self._logs / "fleet.log").open("a", encoding="utf-8") as file:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                file.writelines(f"{now} {line}\n" for line in lines)
            for line in lines:
                self._events.decided(line)

    def _needs(self, name: str) -> str:
        work = self._costs[name]
        return f"{work.gpus:g} GPU, {work.cpus:g} CPU"

    def _strand(self, waiting: Sequence[Demand], stranded: bool) -> None:
        """Nothing is at work and nothing can be started: say so, wait for a node, and give up after too long."""
        if not stranded:
            self._stranded.is_over("work goes on")
            return
        longest = self._experiment.cluster.wait_seconds
        needs = ", ".join(f"{work.name} ({self._needs(work.name)})" for work in waiting)
        gpus, cpus = sum(node.gpus for node in self._nodes.now), sum(node.cpus for node in self._nodes.now)
        have = f"the cluster has {gpus} GPUs and {cpus:g} CPUs free on {len(self._nodes.now)} nodes"
        told = f"no node can serve what is left: {needs}; {have}"
        waited = self._stranded.goes_on(f"waiting for up to {longest:g} s for a node, nothing is lost: {told}")
        if waited >= longest:
            self._end(Interrupted(f"{told} (waited for {waited:.0f} s); the same command goes on where this one was"))

    def _replace_hung(self) -> None:
        """End replicas that have done nothing for far too long; who was in line is tried elsewhere."""
        now, least = time.monotonic(), self._experiment.cluster.hang_seconds
        for pool in self._everyone:
            for replica in list(pool.replicas):
                if replica.state == "idle":
                    continue
                cost = self._costs[pool.name]
                usual = (pool.seconds or cost.seconds) if replica.ready else (pool.load_seconds or cost.load_seconds)
                if now - replica.moved > max(least, VAIN * usual):
                    loading = f"while it loaded, or waited for its place on {self._nodes.label(replica.node)}"
                    doing = f"with {replica.line[0]}" if replica.line else loading
                    pool.lose(replica, f"it hung for {now - replica.moved:.0f} s {doing} (cluster.hang_seconds)")

    def _tell(self) -> None:
        """Where everything runs, how much is left of what, and how much of the GPUs' time was work."""
        now = time.monotonic()
        self._gpu_seconds += sum(node.gpus for node in self._nodes.now) * (now - self._last_look)
        self._last_look = now
        pools = self._everyone
        busy = sum(pool.busy * self._costs[pool.name].gpus for pool in pools)
        left = {
            **{n: len(batches) for n, batches in self.backlog.unmade.items()},
            self._vqa.name: len(self.backlog.unasked),
        }
        models = {}
        for pool in pools:
            rate = sum(replica.ready for replica in pool.replicas) / pool.seconds if pool.seconds else 0.0
            models[pool.name] = ModelState(left[pool.name], pool.done, len(pool.replicas), rate)
        replicas = {
            replica.name: ReplicaState(self._nodes.label(replica.node), replica.state, replica.done)
            for pool in pools
            for replica in pool.replicas
        }
        gpu_idle = max(1 - busy / self._gpu_seconds, 0.0) if self._gpu_seconds else None
        self._events.fleet(FleetState(gpu_idle, models, replicas))

    def _end(self, fault: SeesawError) -> None:
        """Begin nothing more: somebody has to do something about this, and had better hear of it now than in days."""
        if self.fault is None:
            self.fault = fault
            self._events.note(f"stopping, what is in flight is finished and kept: {fault}")
            self.stop()

    async def metrics(self) -> None:
        await self._vqa.metrics()

    @property
    def stopping(self) -> bool:
        return self._vqa.stopping

    def stop(self) -> None:
        """Begin nothing more, in any pool."""
        for pool in self._everyone:
            pool.stop()

    async def close(self) -> None:
        if self._steering is not None:
            self._steering.cancel()
        self._nodes.close()
        await self._keep_costs()
        if not isinstance(self.fault, HeadLost):  # who would have to end the actors; they end by themselves
            await asyncio.gather(*(pool.close() for pool in self._everyone))
