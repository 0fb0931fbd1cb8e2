"""A pool: the replicas of one model, and who does which batch when one of them dies, hangs or has to go.

How many replicas there are and where is not decided here (`runner.scheduling.policy`, through `runner.fleet.fleet`). A batch waits for a
free slot of any replica. The batch that a replica held when it died is tried again elsewhere, a bounded number of
times, and then set aside as `BatchFailed`. A pool whose replicas die on end, as they load or whatever they do, is
broken, and says why: a cluster does not crash in a loop for days.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayError, RayTaskError

from seesaw.results.errors import BatchFailed, EnvironmentFault, Interrupted, SeesawError
from seesaw.results.printable import printable
from seesaw.results.secrets import without_secrets
from seesaw.runner.display.event_types import ReplicaReady
from seesaw.runner.display.events import Events
from seesaw.runner.fleet.replica import Replica

__all__ = ["ReplicaPool", "brief"]

Result = TypeVar("Result")
BARREN = 5  #: batches in a row that fail for good before the next are tried once only: calls may cost money
STILLBORN = 3  #: replicas in a row that may die on a node while they load
LOST = 3  #: times `attempts` that a batch may be lost with a node before that counts as a try


class ReplicaPool:
    """Replicas of one actor. `make(name, node)` starts one; its `load` must return before it gets work.

    Who is in line at a replica that dies may have killed it. One alone is charged with it; several are not, and each is
    tried again alone, so that a batch is set aside for nothing but its own doing. Nobody is charged with a node's end.

    Replicas that die on end break a pool. A `vital` one (the VLM's) ends the run with that; any other fails what it is
    given from then on. `fatal` is told at once of what no retry mends: a wrong setting, a machine that cannot do it.
    `changed` is told whenever the policy may see things differently; `elsewhere` says whether a node that the pool does
    not shun has a place for it, `several` whether there are nodes beside the one that it is on.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str, str], Any],
        in_flight: int,
        attempts: int,
        events: Events,
        vital: bool = True,
        fatal: Callable[[SeesawError], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
        elsewhere: Callable[[], bool] = lambda: False,
        several: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fatal, self._changed, self._elsewhere, self._several = fatal, changed, elsewhere, several
        self.name, self._make, self._in_flight, self._attempts = name, make, in_flight, attempts
        self._events, self._vital = events, vital
        self._slots: asyncio.Queue[Replica | None] = asyncio.Queue()  # None wakes whoever waits in a broken pool
        self.replicas: list[Replica] = []
        self.shuns: set[str] = set()  #: nodes on which it cannot load
        self.left: dict[str, float] = {}  #: by node, when a replica was lost with it, or to it
        self.waiting = 0  #: callers that wait for a replica
        self.most: int | None = None  #: replicas, once so many died of nobody's doing that no more are started
        self.load_seconds: float | None = None  #: of the last replica that loaded, its process' start included
        self._starting: set[asyncio.Task[None]] = set()
        self._made = 0
        self._stillborn: Counter[str] = Counter()  # by node, deaths while loading since one loaded there
        self._fruitless = 0  # deaths with which no batch can be charged since anything went right
        self._barren = 0  # batches in a row that were set aside
        self._deadly: set[str] = set()  # whose batches killed their replicas since anything went right
        self._busy, self._done = 0.0, 0  # of replicas that are gone
        self._warm_busy, self._warm_done = 0.0, 0  # the same without first batches
        self._broken: BaseException | None = None
        self.stopping = False

    @property
    def broken(self) -> bool:
        return self._broken is not None

    @property
    def running(self) -> int:
        """Batches that are at replicas."""
        return sum(len(replica.line) for replica in self.replicas)

    @property
    def busy(self) -> float:
        """Seconds that its replicas had a batch, all together."""
        return self._busy + sum(replica.busy for replica in self.replicas)

    @property
    def done(self) -> int:
        """Batches that its replicas did."""
        return self._done + sum(replica.done for replica in self.replicas)

    @property
    def seconds(self) -> float | None:
        """What a batch takes a replica that has done its first, as measured; None before the second."""
        busy = self._warm_busy + sum(replica.busy - replica.warming for replica in self.replicas if replica.done)
        done = self._warm_done + sum(replica.done - 1 for replica in self.replicas if replica.done)
        return busy / done if done else None

    def start(self, node: str = "", gpus: tuple[int, ...] = ()) -> None:
        """Start one replica; it loads in the background, and work waits for it."""
        self._made += 1
        replica = Replica(f"{self.name}-{self._made}", node, gpus)
        self.replicas.append(replica)
        task = asyncio.create_task(self._load(replica))
        self._starting.add(task)
        task.add_done_callback(self._loaded)

    def end(self, replica: Replica) -> None:
        """Give a replica nothing more, and end it once it has done what it has begun."""
        replica.leaving = True
        replica.tell()
        if not replica.line and replica.ready:
            self._forget(replica)
            ray.kill(replica.actor)

    async def call(
        self, label: str, stage: str, submit: Callable[[Replica, bool], Awaitable[Result]], subject: str = ""
    ) -> Result:
        """Run `submit(replica, first)` on a free replica; `first` is False once a try has failed.

        What kills its replica is set aside; where batches of two subjects do, in a row, it is the model's doing.

        Raises:
            BatchFailed: after `attempts` deaths or errors, or many times as many lost nodes.
            Interrupted: the pool was told to stop before this began.
            SeesawError: the pool cannot serve at all.
        """
        last: BaseException | None = None
        tries, nodes, suspect = 0, 0, False
        while tries < (1 if self._barren >= BARREN else self._attempts):
            replica = await self._slot()
            done = False
            try:
                if not await replica.enter(label, alone=suspect) or self.stopping:
                    continue
                tries += 1
                result = await submit(replica, last is None)
            except RayActorError as error:
                last = error
                self._lost(replica, error)
                if self._node_left(error) and nodes < LOST * self._attempts:
                    nodes += 1
                    tries -= 1
                else:
                    suspect = True
                    tries -= replica.suspects != (label,)
            except RayError as error:
                last = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
                if isinstance(last, SeesawError) and last.exit_code in (2, 4):
                    self._fatal(last)
                    raise last from None
                self._events.note(f"{label}: {stage} failed on {replica.name} (try {tries}): {brief(last)}")
            else:
                self._fruitless = self._barren = 0
                self._deadly.clear()
                done = True
                return result
            finally:
                replica.leave(label, done)
                if replica.alive and replica.leaving:
                    if not replica.line:
                        self.end(replica)
                elif replica.alive:
                    self._slots.put_nowait(replica)
                if not replica.line:
                    self._changed()
        assert last is not None
        kind = "died" if isinstance(last, RayActorError) else type(last).__name__
        self._barren += 1
        if kind == "died":
            self._deadly.add(subject)
        failed = BatchFailed(brief(last), stage=stage, error=kind, attempts=tries)
        if len(self._deadly) > 1 and self._barren >= BARREN:
            self._give_up(f"{self._barren} batches in a row killed their replicas", last)
        raise failed

    async def _slot(self) -> Replica:
        while True:
            if self.stopping:
                raise Interrupted("stopped on request; the same command goes on where this one was")
            self.waiting += 1
            try:
                replica = await self._slots.get()
            finally:
                self.waiting -= 1
            if replica is None:
                self._slots.put_nowait(None)
                if isinstance(self._broken, BatchFailed):
                    raise BatchFailed(str(self._broken), stage="load", error="died", attempts=self._broken.attempts)
                if self._broken is not None:
                    raise self._broken
                raise Interrupted("stopped on request; the same command goes on where this one was")
            if replica.alive and not replica.leaving and not self.stopping:
                return replica

    def _loaded(self, task: asyncio.Task[None]) -> None:
        """A replica's start that ended in an error of ours must end the run, not leave it waiting for a replica."""
        self._starting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self._changed()

    async def _load(self, replica: Replica) -> None:
        """Start one replica and wait until it has loaded; its death here counts against the node."""
        try:
            replica.actor = self._make(replica.name, replica.node)
            about = await replica.actor.load.remote()
        except RayActorError as error:
            self._lost(replica, error)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
            if not isinstance(cause, SeesawError):  # a device that its last process still holds, perhaps
                self._lost(replica, cause)
                return
            replica.died()
            self._forget(replica)
            ray.kill(replica.actor)
            self.shuns.add(replica.node)
            self._do_without(cause)
        else:
            now = time.monotonic()
            self.load_seconds, replica.moved = now - replica.moved, now
            replica.ready = True
            del self._stillborn[replica.node]
            pid, seconds = about["pid"], about["load_seconds"]
            self._events.replica(ReplicaReady(self.name, replica.name, pid, seconds, self.load_seconds))
            if replica.leaving:
                self.end(replica)
            for _ in range(self._in_flight):
                self._slots.put_nowait(replica)

    def lose(self, replica: Replica, reason: str) -> None:
        """Kill a replica that does not answer; who is in line learns of it as of any other death."""
        self._lost(replica, RayActorError(error_msg=reason))

    def _lost(self, replica: Replica, error: BaseException) -> None:
        """A replica is gone: note it once, and do without unless the next may get somewhere."""
        if not replica.alive:
            return
        replica.died()
        self._forget(replica)
        if replica.actor is not None:
            ray.kill(replica.actor)  # Ray also reports an actor as lost that it cannot reach; it must not live on
        self._changed()
        if self.stopping:
            return
        self._events.lost(replica.name, brief(error), len(replica.suspects))
        if self._node_left(error):
            self.left[replica.node] = time.monotonic()
        elif not replica.ready:
            self._stillborn[replica.node] += 1
            if self._stillborn[replica.node] >= STILLBORN:
                self.shuns.add(replica.node)
                deaths = f"{STILLBORN} replicas in a row died while they loaded"
                self._do_without(self._fault(deaths, error))
        elif len(replica.suspects) != 1:
            self._fruitless += 1
            most = 2 * self._attempts + (len(self.replicas) + 1) * self._in_flight  # they may die again, alone
            if self._fruitless >= most or self.most is not None:
                self.most = len(self.replicas)
                if not self.replicas:
                    self._give_up(f"{self._fruitless} replicas in a row died without finishing a batch", error)

    def _give_up(self, why: str, error: BaseException) -> None:
        self.fail(self._fault(why, error))

    def _fault(self, why: str, error: BaseException) -> SeesawError:
        """One model that crashes fails its own cells, and the others go on; without a VLM nothing does."""
        message = f"{self.name}: {why}; the last: {brief(error)}; see logs/ in the run directory"
        if self._vital:
            return EnvironmentFault(message)
        return BatchFailed(message, stage="load", error="died", attempts=self._made)

    def _node_left(self, error: BaseException) -> bool:
        """Whether a replica died with its node: nobody's doing. One that cannot be reached may have, on a cluster."""
        unreachable = isinstance(error, ActorUnavailableError) and self._several()
        return unreachable or isinstance(error, ActorUnschedulableError) or "node has died" in str(error)

    def _forget(self, replica: Replica) -> None:
        if replica in self.replicas:
            self.replicas.remove(replica)
            self._busy += replica.busy
            self._done += replica.done
            if replica.done:
                self._warm_busy += replica.busy - replica.warming
                self._warm_done += replica.done - 1

    def _do_without(self, fault: SeesawError) -> None:
        """Go on with the replicas that are left, or on other nodes; the pool is broken if there are neither."""
        if self.replicas:
            self._events.note(f"going on with {len(self.replicas)} of {len(self.replicas) + 1} replicas: {fault}")
        elif self._elsewhere():
            self._events.note(f"going on on other nodes: {fault}")
        else:
            self.fail(fault)

    def fail(self, error: BaseException) -> None:
        """Serve nothing any more, and say why to whoever asks."""
        self._broken = self._broken or error
        self._slots.put_nowait(None)
        if isinstance(error, SeesawError) and not isinstance(error, BatchFailed):
            self._fatal(error)

    async def metrics(self) -> None:
        """Tell what the engines of living replicas measured of themselves."""
        for replica in [r for r in self.replicas if r.ready]:
            try:
                figures = await asyncio.wait_for(replica.actor.metrics.remote(), timeout=10)
            except (RayError, TimeoutError) as error:
                self._events.note(f"{replica.name} does not tell its metrics: {brief(error)}")
            else:
                numbers = {k: v for k, v in dict(figures or {}).items() if isinstance(v, (int, float))}
                self._events.metrics(replica.name, numbers)

    def stop(self) -> None:
        """Begin nothing more; what is in flight may finish."""
        self.stopping = True
        self._slots.put_nowait(None)

    async def close(self) -> None:
        """End every replica's process."""
        self.stop()
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for replica in self.replicas:
            if replica.actor is not None:
                ray.kill(replica.actor)
        self.replicas.clear()


def brief(error: BaseException | None) -> str:
    """The first line of an error without secrets and escape codes, at most 300 letters."""
    lines = [line.strip() for line in without_secrets(str(error)).splitlines() if line.strip()]
    return printable(lines[0] if lines else type(error).__name__)[:300]
