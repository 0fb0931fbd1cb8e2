"""The fleet: replicas of the models and of the VLM in Ray actors, and the path of a batch to one of them.

`Fleet.generate` and `Fleet.ask` are that path. Both go through `run_on_replica`, the retry loop: lease a replica, let
it do the batch, and if that fails do what `RetryPolicy` says. Meanwhile `Steering` decides which replicas there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import ray

from seesaw.actors.tti import ImageBatch
from seesaw.actors.vqa import AnswerBatch
from seesaw.results.errors import HeadLost, SeesawError
from seesaw.runner.cluster.preflight import Ready
from seesaw.runner.config import ModelConfig, VLMConfig
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.fleet.backlog import Backlog, Need
from seesaw.runner.fleet.pool import ReplicaPool
from seesaw.runner.fleet.replica import Replica
from seesaw.runner.fleet.retry import Tries
from seesaw.runner.fleet.start import WRITING, starter
from seesaw.runner.fleet.steering import Steering
from seesaw.runner.fleet.store_outage import StoreOutage
from seesaw.runner.fleet.work import TryFailed, Work
from seesaw.runner.plan import Batch

__all__ = ["Fleet", "ImagesInFlight", "run_on_replica"]

Result = TypeVar("Result")
MAX_REPLICAS_COUNTED = 512  #: of one model, when it is worked out how many batches may be in flight
OBJECT_STORE_SHARE = 0.3  #: of Ray's object store that images may fill until they are asked; others are read again


@dataclass(frozen=True)
class ImagesInFlight:
    """Encoded images that stay in Ray's object store, where they were made, until they are asked."""

    ref: Any  #: Ray's reference to them
    size: int  #: bytes


async def run_on_replica(pool: ReplicaPool, work: Work, do: Callable[[Replica, Tries], Awaitable[Result]]) -> Result:
    """The result of `do` on a replica of `pool`, tried again as often as `RetryPolicy` allows. The retry loop.

    Raises:
        BatchFailed: it was set aside, or the pool is broken.
        Interrupted: the pool was told to stop before this began.
        SeesawError: no retry helps, or the pool cannot serve at all.
    """
    tries = Tries()
    while True:
        try:
            async with pool.lease(work, alone=tries.alone) as replica:
                return await do(replica, tries)
        except TryFailed as failed:
            failure = failed
        tries = pool.next_try(work, tries, failure)


class Fleet:
    """One pool a model and one for the VLM, on the nodes that are `ready`. `more` work may come, as in a mitigation.

    `abandon` is called when what is in flight cannot be waited for, since Ray's head is lost.
    """

    def __init__(
        self,
        experiment: Experiment,
        logs: Path,
        events: Events,
        ready: Ready,
        more: bool = False,
        abandon: Callable[[], object] = lambda: None,
    ) -> None:
        self._experiment, self._events, self._abandon = experiment, events, abandon
        self.fault: SeesawError | None = None  #: what ended the run, if anything did
        self.stopping = False
        cluster = experiment.cluster
        self._backlog = Backlog(model.name for model in experiment.models)
        specs: list[ModelConfig | VLMConfig] = [*(model.spec for model in experiment.models), experiment.vlm.spec]
        self._pools = {
            spec.name: ReplicaPool(
                spec.name, starter(experiment, spec, logs), cluster, events, self, vital=isinstance(spec, VLMConfig)
            )
            for spec in specs
        }
        self._vlm_pool = self._pools[experiment.vlm.name]
        self._store_outage = StoreOutage(cluster.wait_seconds, events, self.end_run, lambda: self.stopping)
        self._steering = Steering(experiment, logs, events, ready, self._pools, self._backlog, self, more)
        replicas = sum(min(count, MAX_REPLICAS_COUNTED) for count in self._steering.places_of_each())
        self.width = max(replicas, 1) * cluster.in_flight  #: batches that can be at replicas at once
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        nodes = max(len(self._steering.nodes.now), 1)
        self._free_bytes = OBJECT_STORE_SHARE * total.get("object_store_memory", 0.0) / nodes

    # -- the path of a batch, top to bottom -----------------------------------------------------------------------

    async def generate(self, batch: Batch) -> ImagesInFlight | None:
        """Make and commit a batch of images. None if there is no room to keep them in memory until they are asked.

        Raises what `run_on_replica` raises.
        """
        self._steering.wake()
        work = Work(batch.label, "generate", batch.prompt.subject)
        return await run_on_replica(self._pools[batch.model], work, partial(self._generate_on, batch))

    async def _generate_on(self, batch: Batch, replica: Replica, tries: Tries) -> ImagesInFlight | None:
        task = ImageBatch(
            batch.images, batch.model, batch.prompt.text, batch.prompt.adapter, batch.seeds, batch.image_keys
        )
        await replica.actor.generate.remote(task)
        commit = partial(_commit, replica, task)
        ref, blanks, size = await self._store_outage.retry_while_unavailable(commit, replica.wait_outside)
        self._events.blank(batch, blanks)
        if size > self._free_bytes:
            return None
        self._free_bytes -= size
        return ImagesInFlight(ref, size)

    async def ask(self, batch: Batch, images: ImagesInFlight | None) -> pa.Table:
        """Ask a batch of images and commit the answers, which are returned. None: the images are read from the store.

        Raises what `run_on_replica` raises.
        """
        self._steering.wake()
        work = Work(batch.label, "ask", batch.prompt.subject)
        try:
            return await run_on_replica(self._vlm_pool, work, partial(self._ask_on, batch, images))
        finally:
            if images:
                self._free_bytes += images.size

    async def _ask_on(self, batch: Batch, images: ImagesInFlight | None, replica: Replica, tries: Tries) -> pa.Table:
        task = AnswerBatch(batch.answers, batch.images, self._experiment.vlm.name, batch.image_keys)
        lost = tries.failed > 0  # perhaps on the way: from then on the store's are read
        ref = images.ref if images and not lost else None
        return await self._store_outage.retry_while_unavailable(
            partial(replica.actor.answer.remote, task, ref), replica.wait_outside
        )

    # -- what else the Lab and the run call -----------------------------------------------------------------------

    def update_backlog(self, batch: Batch, need: Need | None) -> None:
        """`batch` still needs its images or its answers; None: nothing more."""
        self._backlog.update(batch, need)

    async def wait_for_store(self, call: Callable[[], Result]) -> Result:
        """The result of `call` in a thread, called again for as long as the store is unavailable.

        Raises:
            Interrupted: the run was told to stop meanwhile, or the store was away for too long.
        """
        return await self._store_outage.retry_while_unavailable(lambda: asyncio.to_thread(call))

    async def report_metrics(self) -> None:
        await self._vlm_pool.report_metrics()

    def stop(self) -> None:
        """Begin nothing more; what is in flight may finish."""
        self.stopping = True
        for pool in self._pools.values():
            pool.stop()

    async def close(self) -> None:
        await self._steering.close()
        if not isinstance(self.fault, HeadLost):  # only the head could end the actors; without it they end themselves
            await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    # -- what pools and steering call: `PoolOwner` and `RunOwner` -------------------------------------------------

    def pool_changed(self) -> None:
        self._steering.note_change()

    def fits_elsewhere(self, pool: ReplicaPool) -> bool:
        return self._steering.fits_somewhere(pool)

    def has_several_nodes(self) -> bool:
        return len(self._steering.nodes.now) > 1

    def end_run(self, fault: SeesawError) -> None:
        """Begin nothing more: a person has to act, and should hear of it now rather than in days."""
        if self.fault is None:
            self.fault = fault
            self._events.note(f"stopping, what is in flight is finished and kept: {fault}")
            self.stop()

    def abandon(self, fault: HeadLost) -> None:
        self.end_run(fault)
        self._abandon()


async def _commit(replica: Replica, task: ImageBatch) -> tuple[Any, int, int]:
    """Commit what `generate` made: a reference to the encoded images, how many are blank, and the bytes of all."""
    commit = replica.actor.commit.options(num_returns=2, concurrency_group=WRITING)
    counts, ref = commit.remote(task)
    blanks, size = await counts
    return ref, blanks, size
