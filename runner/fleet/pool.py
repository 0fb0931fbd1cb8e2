"""A pool: the replicas of one model. It leases them to batches, and notices when one dies, hangs or has to go.

How many replicas there are, and where, is decided elsewhere (`seesaw.runner.scheduling.policy`, by way of
`seesaw.runner.fleet.steering`). What follows when a batch fails is decided in `seesaw.runner.fleet.retry`. If replicas
keep dying, while they load or later, the pool is marked broken and reports the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayError

from seesaw.actors.engine_errors import kind_of
from seesaw.results.errors import (
    BatchFailed,
    EnvironmentFault,
    InputError,
    Interrupted,
    SeesawError,
    StoreUnavailable,
    TryLater,
)
from seesaw.runner.cluster.local_ray import own_node_died
from seesaw.runner.config import ClusterConfig
from seesaw.runner.display.event_types import ReplicaReady
from seesaw.runner.display.events import Events
from seesaw.runner.fleet.backoff import Patience
from seesaw.runner.fleet.health import DEATHS_WHILE_LOADING, PoolHealth
from seesaw.runner.fleet.replica import Replica, WorkDone
from seesaw.runner.fleet.retry import Failure, Next, RetryPolicy, Tries
from seesaw.runner.fleet.work import TryFailed, Work, cause_of, short_message

__all__ = ["PoolOwner", "ReplicaPool"]

UNFIXABLE = (InputError, EnvironmentFault, StoreUnavailable)  #: errors of a batch that would meet every other batch
METRICS_SECONDS = 10  #: that a replica has to answer what its engine measured


class PoolOwner(Protocol):
    """The fleet, as its pools see it."""

    def pool_changed(self) -> None:
        """The policy may see things differently now."""

    def end_run(self, fault: SeesawError) -> None:
        """No retry helps: begin nothing more, and end the run with this."""

    def fits_elsewhere(self, pool: ReplicaPool) -> bool:
        """Whether a node that the pool does not avoid has a place for one of its replicas."""

    def has_several_nodes(self) -> bool: ...


class ReplicaPool:
    """Replicas of one actor. `make(name, node)` starts one; its `load` must return before it gets work.

    If a `vital` pool (the VLM's) is broken, the run ends. Of any other, only its own batches fail from then on.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str, str], Any],
        cluster: ClusterConfig,
        events: Events,
        owner: PoolOwner,
        vital: bool = True,
    ) -> None:
        self.name, self._make, self._events, self._owner, self._vital = name, make, events, owner, vital
        self._in_flight = cluster.in_flight
        self._policy = RetryPolicy(cluster.attempts, cluster.wait_seconds)
        self._health = PoolHealth(cluster.attempts, cluster.in_flight)
        self._patience = Patience(name, events)
        self._slots: asyncio.Queue[Replica | None] = asyncio.Queue()  # None wakes those who wait in a broken pool
        self.replicas: list[Replica] = []
        self.avoided_nodes: set[str] = set()  #: it cannot load there
        self.losses: dict[str, float] = {}  #: by node, when (monotonic) a replica was last lost with it
        self.waiting = 0  #: callers that wait for a slot, or for the end of a pause
        self.max_replicas: int | None = None  #: set once so many died that no more are started
        self.load_seconds: float | None = None  #: of the last replica that loaded, the start of its process included
        self.stopping = False
        self._loading: set[asyncio.Task[None]] = set()
        self._started = 0  # replicas, ever
        self._work_of_departed = WorkDone()
        self._fault: BaseException | None = None  # why it serves nothing any more

    @property
    def broken(self) -> bool:
        return self._fault is not None

    @property
    def held_back(self) -> bool:
        """Whether the service behind the model is left alone for a while."""
        return self._patience.held_back

    @property
    def running(self) -> int:
        """Batches that are at replicas."""
        return sum(len(replica.line) for replica in self.replicas)

    @property
    def work_done(self) -> WorkDone:
        """By all its replicas, those that are gone included."""
        return sum((replica.work_done for replica in self.replicas), self._work_of_departed)

    @property
    def batch_seconds(self) -> float | None:
        """Measured seconds of a batch on a replica that has done its first; None before any was measured."""
        work = self.work_done
        return work.warm_seconds / work.warm_batches if work.warm_batches else None

    # -- the path of a batch --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, work: Work, *, alone: bool = False) -> AsyncIterator[Replica]:
        """A place in the line of a free replica, until the block ends; with `alone`, nobody else is in that line.

        A block that ends without an error has done the batch.

        Raises:
            TryFailed: the block raised an error of Ray's.
            Interrupted: the pool was told to stop before a replica was free.
            BatchFailed, SeesawError: the pool is broken.
        """
        replica = await self._enter_line(work.label, alone)
        done, sent = False, time.monotonic()
        try:
            yield replica
            done = True
            self._health.batch_done()
            self._patience.done()
        except RayError as error:
            raise self._failed_try(replica, work.label, error, sent) from error
        finally:
            self._leave_line(replica, work.label, done)

    async def _enter_line(self, label: str, alone: bool) -> Replica:
        while True:
            replica = await self._free_replica()
            entered = False
            try:
                entered = await replica.enter(label, alone) and not self.stopping
            finally:
                if not entered:
                    self._leave_line(replica, label, done=False)
            if entered:
                return replica

    async def _free_replica(self) -> Replica:
        """A replica with a free slot, which is taken by this; not before the end of a pause."""
        while not self.stopping:
            self.waiting += 1
            try:
                await self._patience.pause_is_over()
                replica = await self._slots.get()
            finally:
                self.waiting -= 1
            if replica is None:
                self._slots.put_nowait(None)  # for the next who waits
                if isinstance(self._fault, BatchFailed):
                    raise BatchFailed(str(self._fault), stage="load", error="died", attempts=self._fault.attempts)
                if self._fault is not None:
                    raise self._fault
            elif replica.alive and not replica.leaving and not self.stopping:
                if not self.held_back:
                    return replica
                self._slots.put_nowait(replica)  # a pause began meanwhile
        raise Interrupted("stopped on request; the same command goes on where this one was")

    def _leave_line(self, replica: Replica, label: str, done: bool) -> None:
        """Give the slot back."""
        replica.leave(label, done)
        if replica.alive and replica.leaving:
            if not replica.line:
                self.end(replica)
        elif replica.alive:
            self._slots.put_nowait(replica)
        if not replica.line:
            self._owner.pool_changed()

    def _failed_try(self, replica: Replica, label: str, error: RayError, sent: float) -> TryFailed:
        """How a try failed. If the replica died, that is noted first."""
        if isinstance(error, RayActorError):
            self._lost(replica, error)
            failure = Failure.NODE_LOST if self._is_node_loss(error) else Failure.DIED
            return TryFailed(failure, replica.name, error, alone=replica.suspects == (label,))
        cause = cause_of(error)
        if isinstance(cause, TryLater):
            return TryFailed(Failure.LATER, replica.name, cause, sent=sent)
        failure = Failure.UNFIXABLE if isinstance(cause, UNFIXABLE) else Failure.ERROR
        return TryFailed(failure, replica.name, cause)

    def next_try(self, work: Work, tries: Tries, failed: TryFailed) -> Tries:
        """The tries so far, `failed` included, if the batch is to be tried again (alone, if `Tries.alone` says so).

        Raises:
            BatchFailed: it is set aside.
            SeesawError: no retry helps; the run ends with this.
        """
        if isinstance(failed.error, TryLater):
            tries = replace(tries, waited=tries.waited + self._patience.turned_away(failed.error, failed.sent))
        in_a_row, stalled = self._health.failures_in_a_row, self._patience.stalled()
        then, tries = self._policy.after(tries, failed.failure, failed.alone, in_a_row, stalled)
        if then is Next.END_RUN:
            assert isinstance(failed.error, SeesawError)
            fault = self._patience.fault(failed.error)
            self._owner.end_run(fault)
            raise fault from None
        if failed.failure is Failure.ERROR:
            where = f"{work.stage} failed on {failed.replica} (try {tries.counted})"
            self._events.note(f"{work.label}: {where}: {short_message(failed.error)}")
        if then is Next.SET_ASIDE:
            raise self._set_aside(work, tries, failed.error)
        return tries

    def _set_aside(self, work: Work, tries: Tries, error: BaseException) -> BatchFailed:
        killed = isinstance(error, RayActorError)
        if self._health.batch_set_aside(work.subject, killed):
            in_a_row = self._health.failures_in_a_row
            self.fail(self._broken_by(f"{in_a_row} batches in a row killed their replicas", error))
        kind = "died" if killed else kind_of(error)
        return BatchFailed(short_message(error), stage=work.stage, error=kind, attempts=tries.counted)

    # -- the life of a replica ------------------------------------------------------------------------------------

    def start(self, node: str = "", gpus: tuple[int, ...] = ()) -> None:
        """Start one replica; it loads in the background, and work waits for it."""
        self._started += 1
        replica = Replica(f"{self.name}-{self._started}", node, gpus)
        self.replicas.append(replica)
        task = asyncio.create_task(self._load(replica))
        self._loading.add(task)
        task.add_done_callback(self._loaded)

    def end(self, replica: Replica) -> None:
        """Give a replica no further batch, and end it once its line is empty."""
        replica.drain()
        if not replica.line and replica.ready:
            self._remove(replica)
            ray.kill(replica.actor)

    def lose(self, replica: Replica, reason: str) -> None:
        """Kill a replica that does not answer; batches in its line learn of it as of any other death."""
        self._lost(replica, RayActorError(error_msg=reason))

    def _loaded(self, task: asyncio.Task[None]) -> None:
        """A bug in `_load` must end the run; otherwise the run would wait for this replica forever."""
        self._loading.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self._owner.pool_changed()

    async def _load(self, replica: Replica) -> None:
        """Start one replica and wait until it has loaded; its death here counts against the node."""
        try:
            replica.actor = self._make(replica.name, replica.node)
            about = await self._loaded_actor(replica)
        except RayActorError as error:
            self._lost(replica, error)
        except RayError as error:
            cause = cause_of(error)
            if isinstance(cause, SeesawError):
                self._cannot_load(replica, cause)
            else:  # perhaps a device that the process before still holds
                self._lost(replica, cause)
        else:
            now = time.monotonic()
            self.load_seconds, replica.last_progress = now - replica.last_progress, now
            replica.ready = True
            self._health.loaded(replica.node)
            pid, seconds = about["pid"], about["load_seconds"]
            self._events.replica(ReplicaReady(self.name, replica.name, pid, seconds, self.load_seconds))
            if replica.leaving:
                self.end(replica)
            for _ in range(self._in_flight):
                self._slots.put_nowait(replica)

    async def _loaded_actor(self, replica: Replica) -> Any:
        """What an actor says once it has loaded; again after a pause if the service behind its engine asks for one."""
        while True:
            sent = time.monotonic()
            try:
                return await replica.actor.load.remote()
            except RayError as error:
                cause = cause_of(error)
                if not isinstance(cause, TryLater):
                    raise
                self._patience.turned_away(cause, sent)
                if self._patience.stalled() > self._policy.patience:
                    raise self._patience.fault(cause) from None
            await self._patience.pause_is_over()
            replica.wait_outside()

    def _cannot_load(self, replica: Replica, fault: SeesawError) -> None:
        """The engine says why it cannot load there, so it is not tried there again."""
        replica.died()
        self._remove(replica)
        ray.kill(replica.actor)
        self._avoid(replica.node, fault)

    def _lost(self, replica: Replica, error: BaseException) -> None:
        """A replica is gone: report it once, and decide whether more may be started."""
        if not replica.alive:
            return
        replica.died()
        self._remove(replica)
        if replica.actor is not None:
            ray.kill(replica.actor)  # Ray also reports an actor as lost that it cannot reach; it must not live on
        self._owner.pool_changed()
        if self.stopping:
            return
        self._events.lost(replica.name, short_message(error), len(replica.suspects))
        if self._is_node_loss(error):
            self.losses[replica.node] = time.monotonic()
        elif not replica.ready:
            if self._health.died_while_loading(replica.node):
                deaths = f"{DEATHS_WHILE_LOADING} replicas in a row died while they loaded"
                self._avoid(replica.node, self._broken_by(deaths, error))
        elif len(replica.suspects) != 1:  # no one batch is to blame
            if self._health.died_unblamed(len(self.replicas)) or self.max_replicas is not None:
                self.max_replicas = len(self.replicas)
            if self.max_replicas == 0:
                deaths = f"{self._health.unblamed_deaths} replicas in a row died without finishing a batch"
                self.fail(self._broken_by(deaths, error))

    def _is_node_loss(self, error: BaseException) -> bool:
        """Whether a replica was lost with its node. On a cluster, one that cannot be reached may have been."""
        unreachable = isinstance(error, ActorUnavailableError) and self._owner.has_several_nodes()
        known = isinstance(error, ActorUnschedulableError) or "node has died" in str(error)
        return unreachable or known or own_node_died()

    def _remove(self, replica: Replica) -> None:
        if replica in self.replicas:
            self.replicas.remove(replica)
            self._work_of_departed += replica.work_done

    # -- what is broken, and the end ------------------------------------------------------------------------------

    def _avoid(self, node: str, fault: SeesawError) -> None:
        """Start no replica on this node again. The pool is broken if there are no others and no other nodes."""
        self.avoided_nodes.add(node)
        if self.replicas:
            self._events.note(f"going on with {len(self.replicas)} of {len(self.replicas) + 1} replicas: {fault}")
        elif self._owner.fits_elsewhere(self):
            self._events.note(f"going on on other nodes: {fault}")
        else:
            self.fail(fault)

    def _broken_by(self, reason: str, error: BaseException) -> SeesawError:
        """A model that crashes fails its own cells, and the others go on; without the VLM nothing goes on."""
        message = f"{self.name}: {reason}; the last: {short_message(error)}; see logs/ in the run directory"
        if self._vital:
            return EnvironmentFault(message)
        return BatchFailed(message, stage="load", error="died", attempts=self._started)

    def fail(self, error: BaseException) -> None:
        """Serve nothing any more, and raise this to whoever asks."""
        self._fault = self._fault or error
        self._patience.give_up()
        self._slots.put_nowait(None)
        if isinstance(error, SeesawError) and not isinstance(error, BatchFailed):
            self._owner.end_run(error)

    async def report_metrics(self) -> None:
        """Report what the engines of its replicas measured of themselves."""
        for replica in [r for r in self.replicas if r.ready]:
            try:
                figures = await asyncio.wait_for(replica.actor.metrics.remote(), timeout=METRICS_SECONDS)
            except (RayError, TimeoutError) as error:
                self._events.note(f"{replica.name} does not tell its metrics: {short_message(error)}")
            else:
                numbers = {k: v for k, v in dict(figures or {}).items() if isinstance(v, int | float)}
                self._events.metrics(replica.name, numbers)

    def stop(self) -> None:
        """Begin nothing more; what is in flight may finish."""
        self.stopping = True
        self._patience.give_up()
        self._slots.put_nowait(None)

    async def close(self) -> None:
        """End every replica's process."""
        self.stop()
        for task in list(self._loading):
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        for replica in self.replicas:
            if replica.actor is not None:
                ray.kill(replica.actor)
        self.replicas.clear()
