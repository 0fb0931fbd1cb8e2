"""Looking after the fleet: the loop that starts, ends and replaces replicas as `seesaw.runner.scheduling.policy` says.

It wakes when a replica has nothing to do, has ended or has loaded, when a batch or a node has come, and every few
seconds. Each time it looks at the nodes, kills replicas that hang, asks the policy, does what it decided, and reports
where everything runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from seesaw.results.errors import HeadLost, Interrupted, SeesawError
from seesaw.results.printable import printable
from seesaw.results.store.costs import MeasuredCosts, write_costs
from seesaw.results.store.store import Store
from seesaw.runner.cluster.nodes import Nodes
from seesaw.runner.cluster.preflight import Ready
from seesaw.runner.display.event_types import FleetState, ModelState, ReplicaState
from seesaw.runner.display.events import Events
from seesaw.runner.display.waiting import Waiting
from seesaw.runner.experiment import Experiment, ResolvedModel
from seesaw.runner.fleet.backlog import Backlog
from seesaw.runner.fleet.pool import ReplicaPool
from seesaw.runner.plan import costs_of
from seesaw.runner.scheduling.policy import Decision, decide
from seesaw.runner.scheduling.resources import Demand, PlacedReplica, places

__all__ = ["Steering"]

WRITE_COSTS_SECONDS = 60.0  #: between two writes of measured costs
LOOK_SECONDS = 5.0  #: between two looks at the nodes and the policy when nothing happens
SETTLE_SECONDS = 0.05  #: what happens within this time is decided together
SUSPENDED_SECONDS = 60.0  #: between two looks: this process stood still for that long, so no replica is said to hang
HEAD_RETRY_SECONDS = 1.0  #: after a look that Ray's head did not answer
ASSUMED_BATCH_SECONDS = 1.0  #: of a model for which nothing is known or measured; one replica will find out
AVOID_NODE_SECONDS = 15.0  #: after a loss nothing is started on that node: Ray may still list it
IDLE_SECONDS = 1.0  #: after which an idle replica for which nobody waits has nothing to do
HUNG_AFTER_TIMES = 10.0  #: times the mean of a batch or a load, where that is more than cluster.hang_seconds


class RunOwner(Protocol):
    """The fleet, as its steering sees it."""

    @property
    def stopping(self) -> bool: ...
    def end_run(self, fault: SeesawError) -> None:
        """Begin nothing more, and end the run with this."""

    def abandon(self, fault: HeadLost) -> None:
        """End the run with this at once: what is in flight cannot be waited for."""


class Steering:
    """The loop over `pools` (by name, the VLM's included). `more` work may come, as in a mitigation."""

    def __init__(
        self,
        experiment: Experiment,
        logs: Path,
        events: Events,
        ready: Ready,
        pools: Mapping[str, ReplicaPool],
        backlog: Backlog,
        owner: RunOwner,
        more: bool,
    ) -> None:
        self._experiment, self._log, self._events = experiment, logs.absolute() / "fleet.log", events
        self._pools, self._backlog, self._owner, self._more = pools, backlog, owner, more
        self._wake = asyncio.Event()
        self.nodes = Nodes(experiment, ready, events, changed=self._wake.set)
        self._costs = {name: demand for name, (demand, _) in costs_of(experiment).items()}
        self._loop: asyncio.Task[None] | None = None
        self._stranded = Waiting(events, grace=LOOK_SECONDS)  # a batch may just have ended: that is no wait yet
        self._fit_nowhere: set[str] = set()  # models
        self._gpu_seconds, self._last_look = 0.0, time.monotonic()
        self._costs_written, self._store = self._last_look, Store(experiment.store, exists=True)

    def wake(self) -> None:
        """Something has changed. The first call starts the loop: a run for which all is there loads nothing."""
        self._wake.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())
            self._loop.add_done_callback(self._ended)

    def note_change(self) -> None:
        """As `wake`, of a loop that runs already."""
        self._wake.set()

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
        self.nodes.close()
        await self._write_costs()

    def _ended(self, loop: asyncio.Task[None]) -> None:
        """A bug in the loop ends the run; otherwise the run would wait forever."""
        if not loop.cancelled() and (error := loop.exception()) is not None:
            for pool in self._pools.values():
                pool.fail(error)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            began = time.monotonic()
            try:
                answered = await self.nodes.look(self._nodes_in_use())
            except HeadLost as fault:
                self._owner.abandon(fault)
                return
            if not answered:
                await asyncio.sleep(HEAD_RETRY_SECONDS)
                continue
            self._kill_hung()
            if not self._owner.stopping:
                self._apply(self._decide())
            self._report()
            if time.monotonic() - self._costs_written > WRITE_COSTS_SECONDS:
                await self._write_costs()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout=LOOK_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
            if time.monotonic() - began > SUSPENDED_SECONDS:
                for pool in self._pools.values():
                    for replica in pool.replicas:
                        replica.wait_outside()

    # -- what the policy is asked, and what is done with its answer -----------------------------------------------

    def _decide(self) -> Decision:
        nodes = self.nodes.now
        names = {node.name for node in nodes}
        replicas = [
            PlacedReplica(replica.name, pool.name, replica.node, replica.gpus, replica.state)
            for pool in self._pools.values()
            for replica in pool.replicas
            if replica.node in names
        ]
        *models, vlm = (self._demand(pool, self._left(name)) for name, pool in self._pools.items())
        decision = decide(models, vlm, replicas, nodes)
        waiting = [demand for demand in (*models, vlm) if demand.queued]
        at_work = any(replica.state != "idle" for replica in replicas) or any(p.held_back for p in self._pools.values())
        self._wait_for_nodes(waiting, bool(waiting) and not at_work and not decision.lines)
        served = {replica.model for replica in replicas}
        fit_nowhere = {demand.name for demand in waiting if demand.name not in served and not places(demand, nodes)}
        for name in sorted(fit_nowhere - self._fit_nowhere):
            needs = self._resources(name)
            self._events.note(f"{name} fits on no node now ({needs}); others go on, and so will it once it fits")
        self._fit_nowhere = fit_nowhere
        return decision

    def _left(self, name: str) -> int:
        """Batches that are left for a model; for the VLM, those whose images the store has."""
        if name == self._experiment.vlm.name:
            return self._backlog.without_answers
        return self._backlog.without_images(name)

    def _demand(self, pool: ReplicaPool, left: int) -> Demand:
        """What is left for a pool, at measured costs where there are any."""
        estimate = self._costs[pool.name]
        now = time.monotonic()
        recent_losses = {
            node for other in self._pools.values() for node, at in other.losses.items() if now - at < AVOID_NODE_SECONDS
        }
        idle = any(r.state == "idle" and now - r.last_progress > IDLE_SECONDS for r in pool.replicas)
        if idle and not pool.waiting:
            left = pool.running  # none of it can be handed out for now, so others may have the place
        measured = pool.batch_seconds
        pinned = estimate.pinned or (None if measured or estimate.seconds else 1)
        if pool.max_replicas is not None:
            pinned = min(pool.max_replicas, pinned or pool.max_replicas)
        return replace(
            estimate,
            queued=0 if pool.broken or pool.stopping else max(left - pool.running, 0),
            running=pool.running,
            seconds=measured or estimate.seconds or ASSUMED_BATCH_SECONDS,
            load_seconds=pool.load_seconds or estimate.load_seconds,
            pinned=pinned,
            more_to_come=self._more,
            excluded=frozenset(pool.avoided_nodes | self.nodes.lacking(pool.name) | recent_losses),
        )

    def fits_somewhere(self, pool: ReplicaPool) -> bool:
        """Whether a node that the pool does not avoid could hold one of its replicas."""
        return places(self._demand(pool, 0), self.nodes.now) > 0

    def places_of_each(self) -> list[int]:
        """For each pool, how many of its replicas the nodes could hold if they were empty."""
        return [places(demand, self.nodes.now) for demand in self._costs.values()]

    def _apply(self, decision: Decision) -> None:
        by_name = {replica.name: (pool, replica) for pool in self._pools.values() for replica in pool.replicas}
        for stop in decision.stop:
            pool, replica = by_name[stop.replica]
            pool.end(replica)
        for start in decision.start:
            self._pools[start.model].start(start.node, start.gpus)
        if decision.lines:
            lines = [printable(self.nodes.readable(line)) for line in decision.lines]
            with suppress(OSError), self._log.open("a", encoding="utf-8") as file:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                file.writelines(f"{now} {line}\n" for line in lines)
            for line in lines:
                self._events.decided(line)

    def _wait_for_nodes(self, waiting: Sequence[Demand], stranded: bool) -> None:
        """If nothing is at work and nothing can be started: say so, wait for a node, end the run after too long."""
        if not stranded:
            self._stranded.over("work goes on")
            return
        nodes, longest = self.nodes.now, self._experiment.cluster.wait_seconds
        needs = ", ".join(f"{demand.name} ({self._resources(demand.name)})" for demand in waiting)
        gpus, cpus = sum(node.gpus for node in nodes), sum(node.cpus for node in nodes)
        have = f"the cluster has {gpus} GPUs and {cpus:g} CPUs free on {len(nodes)} nodes"
        reason = f"no node can serve what is left: {needs}; {have}"
        waited = self._stranded.still_waiting(f"waiting for up to {longest:g} s for a node, nothing is lost: {reason}")
        if waited >= longest:
            again = "the same command goes on where this one was"
            self._owner.end_run(Interrupted(f"{reason} (waited for {waited:.0f} s); {again}"))

    def _resources(self, name: str) -> str:
        demand = self._costs[name]
        return f"{demand.gpus:g} GPU, {demand.cpus:g} CPU"

    def _kill_hung(self) -> None:
        """Kill replicas that have made no progress for far too long; batches in their lines are tried elsewhere."""
        now, least = time.monotonic(), self._experiment.cluster.hang_seconds
        for pool in self._pools.values():
            estimate = self._costs[pool.name]
            batch_seconds = pool.batch_seconds or estimate.seconds
            load_seconds = pool.load_seconds or estimate.load_seconds
            for replica in list(pool.replicas):
                usual = batch_seconds if replica.ready else load_seconds
                silent = now - replica.last_progress
                if replica.state != "idle" and silent > max(least, HUNG_AFTER_TIMES * usual):
                    loading = f"while it loaded, or waited for its place on {self.nodes.label(replica.node)}"
                    what = f"with {replica.line[0]}" if replica.line else loading
                    pool.lose(replica, f"it hung for {silent:.0f} s {what} (cluster.hang_seconds)")

    # -- what is reported and kept --------------------------------------------------------------------------------

    def _nodes_in_use(self) -> set[str]:
        return {replica.node for pool in self._pools.values() for replica in pool.replicas}

    def _report(self) -> None:
        """Where everything runs, how much is left of what, and how much of the GPUs' time was idle."""
        now = time.monotonic()
        self._gpu_seconds += sum(node.gpus for node in self.nodes.now) * (now - self._last_look)
        self._last_look = now
        models, replicas, busy = {}, {}, 0.0
        for name, pool in self._pools.items():
            work, seconds = pool.work_done, pool.batch_seconds
            rate = sum(replica.ready for replica in pool.replicas) / seconds if seconds else 0.0
            models[name] = ModelState(self._left(name), work.batches, len(pool.replicas), rate)
            busy += work.seconds * self._costs[name].gpus
            for replica in pool.replicas:
                replicas[replica.name] = ReplicaState(self.nodes.label(replica.node), replica.state, replica.done)
        gpu_idle = max(1 - busy / self._gpu_seconds, 0.0) if self._gpu_seconds else None
        self._events.fleet(FleetState(gpu_idle, models, replicas))

    async def _write_costs(self) -> None:
        """Keep in the store what batches and loads took, for the next plan and run."""
        self._costs_written = time.monotonic()
        resolved: list[ResolvedModel[Any]] = [*self._experiment.models, self._experiment.vlm]
        costs = {}
        for model in resolved:
            pool = self._pools[model.name]
            if pool.batch_seconds and pool.load_seconds is not None:
                costs[model.folder] = MeasuredCosts(pool.work_done.batches, pool.batch_seconds, pool.load_seconds)
        if costs:
            await asyncio.to_thread(write_costs, self._store, costs)
