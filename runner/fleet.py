"""The fleet: replicas of models and of the VLM in Ray actors, and who does which batch when one of them dies.

A pool serves one model (or the VLM) with a fixed number of replicas from the config. A batch waits for a free slot of
any replica. A replica that dies is replaced; the batch that it held is tried again elsewhere, a bounded number of
times, and then set aside as `BatchFailed`. A pool whose replicas die on end, as they load or whatever they do,
is broken, and says why: a cluster does not crash in a loop for days.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.engines import VQAQuestion
from actors.tti import ImageBatch, TTIActor
from actors.vqa import AnswerBatch, Questionnaire, VQAActor
from results.errors import BatchFailed, EnvironmentFault, Interrupted, SeesawError
from results.secrets import without_secrets
from runner.config import ModelConfig, VLMConfig
from runner.events import Events
from runner.experiment import Experiment
from runner.plan import Batch

__all__ = ["Fleet", "Pool"]

Result = TypeVar("Result")
BARREN = 5  #: batches in a row that fail for good before the next are tried once only: calls may cost money
WRITING = "writing"  #: the thread of a TTI actor that encodes and commits while the next batch is made
STILLBORN = 3  #: replicas in a row that may die while they load


@dataclass(eq=False)
class Replica:
    """`line` has the batches that are at the replica, the one that runs first, until all of it is done and written."""

    name: str
    actor: Any
    alive: bool = True
    ready: bool = False
    line: list[str] = field(default_factory=list)
    suspects: tuple[str, ...] = ()  #: the line when it died: any of them may have done it
    _kept_for: str = ""
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    async def enter(self, label: str, alone: bool) -> bool:
        """Join the line; `alone`: once it is empty, and nobody joins until `leave`. False if the replica died."""
        while self.alive and self._kept_for not in ("", label):
            await self._change.wait()
        if alone:
            self._kept_for = label
        while alone and self.alive and self.line:
            await self._change.wait()
        if self.alive:
            self.line.append(label)
        return self.alive

    def leave(self, label: str) -> None:
        if label in self.line:
            self.line.remove(label)
        if self._kept_for == label:
            self._kept_for = ""
        self._changed()

    def died(self) -> None:
        self.alive, self.suspects = False, tuple(self.line)
        self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


class Pool:
    """`size` replicas of one actor. `make(name)` starts one; its `load` must return before it gets work.

    Who is in line at a replica that dies may have killed it. One alone is charged with it; several are not, and each is
    tried again alone, so that a batch is set aside for nothing but its own doing.

    Replicas that die on end break a pool. A `vital` one (the VLM's) ends the run with that; any other fails what it is
    given from then on. `fatal` is told at once of what no retry mends: a wrong setting, a machine that cannot do it.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], Any],
        size: int,
        in_flight: int,
        attempts: int,
        events: Events,
        vital: bool = True,
        fatal: Callable[[SeesawError], None] = lambda _: None,
    ) -> None:
        self._fatal = fatal
        self.name, self._make, self._size, self._in_flight, self._attempts = name, make, size, in_flight, attempts
        self._events, self._vital = events, vital
        self._slots: asyncio.Queue[Replica | None] = asyncio.Queue()  # None wakes whoever waits in a broken pool
        self._replicas: set[Replica] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._made = self._stillborn = self._fruitless = 0  # the last two: deaths since anything went right
        self._barren = 0  # batches in a row that were set aside
        self._broken: BaseException | None = None
        self.started = self.stopping = False

    def start(self) -> None:
        """Start the replicas; they load in the background, and work waits for them."""
        self.started = True
        for _ in range(self._size):
            self._spawn()

    async def call(self, label: str, stage: str, submit: Callable[[Replica, bool], Awaitable[Result]]) -> Result:
        """Run `submit(replica, first)` on a free replica; `first` is False once a try has failed.

        Raises:
            BatchFailed: after `attempts` deaths or errors.
            Interrupted: the pool was told to stop before this began.
            SeesawError: the pool cannot serve at all.
        """
        last: BaseException | None = None
        tries, suspect = 0, False
        while tries < (1 if self._barren >= BARREN else self._attempts):
            replica = await self._slot()
            try:
                if not await replica.enter(label, alone=suspect) or self.stopping:
                    continue
                tries += 1
                result = await submit(replica, last is None)
            except RayActorError as error:
                last = error
                self._lost(replica, error)
                suspect = True
                tries -= replica.suspects != (label,)
            except RayError as error:
                last = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
                if isinstance(last, SeesawError) and last.exit_code in (2, 4):
                    self._fatal(last)
                    raise last from None
                self._events.note(f"{label}: {stage} failed on {replica.name} (try {tries}): {_brief(last)}")
            else:
                self._fruitless = self._barren = 0
                return result
            finally:
                replica.leave(label)
                if replica.alive:
                    self._slots.put_nowait(replica)
        assert last is not None
        kind = "died" if isinstance(last, RayActorError) else type(last).__name__
        self._barren += 1
        raise BatchFailed(_brief(last), stage=stage, error=kind, attempts=tries)

    async def _slot(self) -> Replica:
        while True:
            if self.stopping:
                raise Interrupted("stopped on request; the same command goes on where this one was")
            replica = await self._slots.get()
            if replica is None:
                self._slots.put_nowait(None)
                if isinstance(self._broken, BatchFailed):
                    raise BatchFailed(str(self._broken), stage="load", error="died", attempts=self._broken.attempts)
                if self._broken is not None:
                    raise self._broken
                raise Interrupted("stopped on request; the same command goes on where this one was")
            if replica.alive and not self.stopping:
                return replica

    def _spawn(self) -> None:
        self._made += 1
        replica = Replica(f"{self.name}-{self._made}", None)
        task = asyncio.create_task(self._load(replica))
        self._starting.add(task)
        task.add_done_callback(self._loaded)

    def _loaded(self, task: asyncio.Task[None]) -> None:
        """A replica's start that ended in an error of ours must end the run, not leave it waiting for a replica."""
        self._starting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    async def _load(self, replica: Replica) -> None:
        """Start one replica and wait until it has loaded; its death here counts as fruitless."""
        self._replicas.add(replica)
        try:
            replica.actor = self._make(replica.name)
            about = await replica.actor.load.remote()
        except RayActorError as error:
            self._lost(replica, error)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
            if not isinstance(cause, SeesawError):  # a device that its last process still holds, perhaps
                self._lost(replica, cause)
                return
            replica.died()
            self._replicas.discard(replica)
            ray.kill(replica.actor)
            self._do_without(cause)
        else:
            replica.ready, self._stillborn = True, 0
            self._events.replica(self.name, replica.name, about)
            for _ in range(self._in_flight):
                self._slots.put_nowait(replica)

    def _lost(self, replica: Replica, error: BaseException) -> None:
        """A replica is gone: note it once, and start another unless none ever gets anywhere."""
        if not replica.alive:
            return
        replica.died()
        self._replicas.discard(replica)
        if replica.actor is not None:
            ray.kill(replica.actor)  # Ray also reports an actor as lost that it cannot reach; it must not live on
        if self.stopping:
            return
        self._events.lost(replica.name, _brief(error))
        self._fruitless += 1
        self._stillborn += not replica.ready
        most = 2 * self._attempts + self._size * self._in_flight  # whoever was in line may die once more, alone
        if self._stillborn >= STILLBORN or self._fruitless >= most:
            deaths = f"{STILLBORN} replicas in a row died while they loaded"
            if self._stillborn < STILLBORN:
                deaths = f"{self._fruitless} replicas in a row died without finishing a batch"
            message = f"{self.name}: {deaths}; the last: {_brief(error)}; see logs/ in the run directory"
            if self._vital:
                self._do_without(EnvironmentFault(message))
            else:  # one model that crashes fails its own cells, and the others go on
                self._do_without(BatchFailed(message, stage="load", error="died", attempts=self._made))
        else:
            self._spawn()

    def _do_without(self, fault: SeesawError) -> None:
        """No replica takes this one's place: go on with those that are left, and end the run if there are none."""
        if self._replicas:
            self._events.note(f"going on with {len(self._replicas)} of {self._size} replicas: {fault}")
        else:
            self._break(fault)

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._slots.put_nowait(None)
        if isinstance(error, SeesawError) and not isinstance(error, BatchFailed):
            self._fatal(error)

    async def metrics(self) -> None:
        """Tell what the engines of living replicas measured of themselves."""
        for replica in [r for r in self._replicas if r.ready]:
            try:
                figures = await asyncio.wait_for(replica.actor.metrics.remote(), timeout=10)
            except (RayError, TimeoutError) as error:
                self._events.note(f"{replica.name} does not tell its metrics: {_brief(error)}")
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
        for replica in self._replicas:
            if replica.actor is not None:
                ray.kill(replica.actor)
        self._replicas.clear()


class Fleet:
    """One pool a model and one for the VLM."""

    def __init__(self, experiment: Experiment, logs: Path, events: Events) -> None:
        self._experiment, self._logs, self._events = experiment, str(logs.absolute()), events
        self.fault: SeesawError | None = None  #: what ended the run for all, if anything did
        cluster = experiment.cluster
        asked = experiment.questionnaire
        self._questionnaire = Questionnaire(
            VQAQuestion(asked.person.text, asked.person.choices) if asked.person else None,
            tuple(VQAQuestion(q.text, q.choices) for q in asked.questions),
        )

        def pool(spec: ModelConfig | VLMConfig, make: Callable[[str], Any]) -> Pool:
            size, vital = cluster.replicas.get(spec.name, 1), isinstance(spec, VLMConfig)
            return Pool(spec.name, make, size, cluster.in_flight, cluster.attempts, events, vital, self._end)

        self._pools = {model.name: pool(model.spec, self._tti(model.spec)) for model in experiment.models}
        self._vqa = pool(experiment.vlm.spec, self._vlm(experiment.vlm.spec))
        replicas = sum(cluster.replicas.get(name, 1) for name in [*self._pools, experiment.vlm.name])
        self.width = replicas * cluster.in_flight  #: batches that can be at replicas at once

    def _tti(self, spec: ModelConfig) -> Callable[[str], Any]:
        actor = _remote(TTIActor, spec)
        store = self._experiment.store
        return lambda name: actor.remote(name, spec.engine, spec.settings, store, spec.threads, self._log(name))

    def _vlm(self, spec: VLMConfig) -> Callable[[str], Any]:
        actor = _remote(VQAActor, spec)
        store = self._experiment.store
        return lambda name: actor.remote(
            name, spec.engine, spec.settings, self._questionnaire, store, spec.threads, self._log(name)
        )

    def _log(self, name: str) -> str:
        return f"{self._logs}/{name.replace('/', '-')}.log"

    def _need(self, pool: Pool) -> Pool:
        """Start a pool when the first batch needs it: a model whose images are all there is never loaded."""
        if not pool.started:
            pool.start()
        return pool

    async def generate(self, batch: Batch) -> Any:
        """Make a batch of images; a reference to their encoded bytes, which stay where they were made."""
        task = ImageBatch(
            batch.images, batch.model, batch.prompt.text, batch.prompt.adapter, batch.seeds, batch.image_keys
        )
        self._need(self._vqa)  # it loads while the first images are made

        async def submit(replica: Replica, first: bool) -> Any:
            await replica.actor.generate.remote(task)
            commit = replica.actor.commit.options(num_returns=2, concurrency_group=WRITING)
            blanks, images = commit.remote(task)
            self._events.blank(batch, await blanks)
            return images

        return await self._need(self._pools[batch.model]).call(batch.label, "generate", submit)

    async def ask(self, batch: Batch, images: Any | None) -> pa.Table:
        """Ask a batch of images (None, or lost on the way: the store's) and commit the answers; returns them."""
        task = AnswerBatch(batch.answers, batch.images, self._experiment.vlm.name, batch.image_keys)

        async def submit(replica: Replica, first: bool) -> pa.Table:
            return await replica.actor.answer.remote(task, images if first else None)

        return await self._need(self._vqa).call(batch.label, "ask", submit)

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
        for pool in (*self._pools.values(), self._vqa):
            pool.stop()

    async def close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in (*self._pools.values(), self._vqa)))


def _remote(cls: type, spec: ModelConfig | VLMConfig) -> Any:
    """The class as a Ray actor with what its YAML asks for. Ray must not restart it: the pool does, and counts."""
    options: dict[str, Any] = {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "max_restarts": 0, "max_task_retries": 0}
    if cls is TTIActor:
        options["concurrency_groups"] = {WRITING: 1}
    return ray.remote(**options)(cls)


def _brief(error: BaseException | None) -> str:
    printable = "".join(
        c if c.isprintable() or c == "\n" else " " for c in without_secrets(str(error))
    )  # no escape codes of others
    lines = [line.strip() for line in printable.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
