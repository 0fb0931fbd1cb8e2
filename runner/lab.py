"""The Lab of a real run: merge what is asked twice, reuse what the store holds, send the rest to the fleet.

Who waits for whom on the way of a batch, and what lets each go on::

    observe         starts a task for each cell, and waits for all of them
      |
    cell            waits for a place among its model's cells         <- another cell of the model has its images
      |             waits until all its batches have their images; then its place is free, so that no model's images
      |             have to wait for the VLM
      |             waits until all its batches have their answers    <- each batch, done or set aside
      |  one task for each batch, shared by all cells that ask for it
    batch           one of three ways:
      |- answers are in the store   waits for a place to read         <- another shard has been read
      |- images are in the store    waits for a place to ask          <- another batch has been asked
      |- neither                    waits for a place to make         <- another batch of the model has its images
      |                             then, with them, to ask
      |  fleet.generate, fleet.ask
    run_on_replica  the retry loop: lease, do, and what RetryPolicy says of a failure
      |
    pool.lease      waits for a slot of any replica                   <- a batch leaves a replica, a replica has loaded;
      |                                                                  the pool stops or is broken: it raises
      |             waits to join the replica's line                  <- the batch that must be alone there has left,
      |                                                                  or, to be alone, everybody has left
    replica         runs the first batch of its line; of a batch that is written, the next is made meanwhile
      |             waits while the store is full or away             <- it is back, or cluster.wait_seconds are over
    store

    steering        beside all of these; waits for a change           <- a batch was sent, a replica is idle, loaded or
                    of anything, at most a few seconds                   gone, a node has come
                    waits for Ray's head, at most 20 seconds          <- it answers, or the run is abandoned
                    then starts and ends replicas, which gives slots to those who wait

A stop (Ctrl-C, a fault that ends the run) frees everybody: those who wait for a slot get `Interrupted`, and what is at
a replica finishes and is kept.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from seesaw.experiments.lab import Answers, Observations, all_of
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.questionnaire import observations_of, read_replies
from seesaw.results.errors import BatchFailed, ConfigError, StoreError, nearest
from seesaw.results.store.identity import batch_size
from seesaw.results.store.shards import check_vlm
from seesaw.results.store.store import Store
from seesaw.runner.cluster.connect import named
from seesaw.runner.config import ModelConfig
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment, ResolvedModel
from seesaw.runner.fleet.fleet import Fleet
from seesaw.runner.plan import Batch, batches_of

__all__ = ["FleetLab"]

MIN_IN_FLIGHT = 128  #: cells of a model, and batches of it, even if few replicas are there: nodes that join find work
PROBLEMS_SHOWN = 10  #: of a folder of the store, by name; others are counted
READS_IN_FLIGHT = 16  #: shards of answers that are read at once
UNREADABLE = ("StoreError", "FileNotFoundError")  #: errors of asking that say that the images are not what they were


@dataclass(frozen=True)
class _BatchInFlight:
    answers: asyncio.Task[Answers]
    images_ready: asyncio.Event  #: set once its images are made, and when its task ends


class FleetLab:
    """`Lab` over a store and a fleet. Everything in flight is bounded, and a batch is in flight once.

    The store's shards are listed once, when the Lab is made; after that the Lab knows what it commits itself. At worst,
    another driver on the same store costs double work: commits adopt what is there already.
    """

    def __init__(self, experiment: Experiment, store: Store, fleet: Fleet, events: Events) -> None:
        self._experiment, self._store, self._fleet, self._events = experiment, store, fleet, events
        self._models: dict[str, ResolvedModel[ModelConfig]] = {model.name: model for model in experiment.models}
        self._image_shards: set[str] = set()  #: that the store has
        self._answer_shards = self._usable_shards(experiment.vlm.folder)  #: that the store has
        for model in experiment.models:
            self._image_shards |= self._usable_shards(model.folder)
        self._quarantined = store.quarantined()  #: what was moved aside before this run, or has been noted since
        self._set_aside: dict[str, BatchFailed] = {}  #: by name of the answers; not tried again in this run
        self._failed_cells: set[tuple[str, str]] = set()
        self._withheld: dict[tuple[str, str], Observations] = {}
        self._in_flight: dict[str, _BatchInFlight] = {}  #: by name of the answers
        width = max(2 * fleet.width, MIN_IN_FLIGHT)
        self._cell_places = {name: asyncio.Semaphore(width) for name in self._models}
        self._make_places = {name: asyncio.Semaphore(width) for name in self._models}
        self._ask_places = asyncio.Semaphore(width)
        self._read_places = asyncio.Semaphore(READS_IN_FLIGHT)

    async def observe(self, model: str, prompts: Sequence[Prompt], images: int, start: int = 0) -> list[Observations]:
        """As `Lab.observe`.

        Raises:
            ConfigError: a model that is not this experiment's.
            Interrupted: the fleet was told to stop; what was in flight has been finished and kept.
            EnvironmentFault: a model or the VLM cannot be served at all.
        """
        if model not in self._models:
            raise ConfigError(f"no model '{model}' in this experiment{nearest(model, self._models)}")
        batches = sum(math.ceil(images / batch_size(prompt.stated)) for prompt in prompts)
        self._events.asked(len(prompts), batches)
        cells = [self._observe_cell(self._models[model], prompt, images, start) for prompt in prompts]
        return await all_of(cells)

    async def _observe_cell(
        self, model: ResolvedModel[ModelConfig], prompt: Prompt, images: int, start: int
    ) -> Observations:
        batches = batches_of(self._experiment, model, prompt, images, start)
        for batch in batches:
            self._update_backlog(batch)
        async with self._cell_places[model.name]:
            in_flight = [self._join_or_start(batch) for batch in batches]
            for each in in_flight:
                await each.images_ready.wait()
        answers = (asyncio.shield(each.answers) for each in in_flight)  # others may wait for them, too
        results = await asyncio.gather(*answers, return_exceptions=True)
        for batch in batches:
            self._update_backlog(batch)  # a batch that another model of the same identity has made is left nowhere
        parts, failures = [], []
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, BatchFailed):
                failures.append(f"{batch.label}: {result}")
            elif isinstance(result, BaseException):
                raise result
            else:
                parts.append(result)
        key = model.name, prompt.text
        self._events.cell(failed=bool(failures) and key not in self._failed_cells)
        if failures:
            self._failed_cells.add(key)
        cell = observations_of(self._experiment.dataset, prompt, parts, images, failures, start)
        before = self._withheld.get(key)
        if cell.answers and any(cell.answers.withheld) and (before is None or before.asked < cell.asked):
            self._withheld[key] = cell
        return cell

    def withheld(self) -> dict[str, list[Observations]]:
        """Cells by model, each once, that have images which were made and not asked."""
        by_model: dict[str, list[Observations]] = {}
        for (model, _), cell in sorted(self._withheld.items()):
            by_model.setdefault(model, []).append(cell)
        return by_model

    async def note_losses(self) -> None:
        """Note what others did to the store meanwhile: shards that are gone, and things that were moved aside."""
        gone, quarantined = await self._fleet.wait_for_store(self._losses)
        if gone:
            self._events.note(
                f"{len(gone)} shards were removed from the store during this run, {named(sorted(gone))} among them; "
                "the tables count them, and the same command makes them again"
            )
        if moved := quarantined - self._quarantined:
            self._events.note(f"{len(moved)} things that were no sound shards were moved aside: {named(sorted(moved))}")

    def _losses(self) -> tuple[set[str], set[str]]:
        """The names of shards that this Lab has seen and that are gone, and of all that was ever moved aside."""
        experiment, seen = self._experiment, self._image_shards | self._answer_shards
        folders = {experiment.vlm.folder, *(model.folder for model in experiment.models)}
        return {name for folder in folders for name in self._store.gone(folder, seen)}, self._store.quarantined()

    def _update_backlog(self, batch: Batch) -> None:
        """Tell the fleet what a batch still needs, as far as is known."""
        if batch.answers in self._answer_shards or batch.answers in self._set_aside:
            self._fleet.update_backlog(batch, None)
        else:
            self._fleet.update_backlog(batch, "answers" if batch.images in self._image_shards else "images")

    def _join_or_start(self, batch: Batch) -> _BatchInFlight:
        """The one task of a batch, however many cells ask for it at once."""
        if batch.answers in self._in_flight:
            self._events.reused(images=len(batch.index))
            return self._in_flight[batch.answers]
        images_ready = asyncio.Event()
        task = asyncio.create_task(self._answers_to(batch, images_ready))
        self._in_flight[batch.answers] = _BatchInFlight(task, images_ready)

        def landed(task: asyncio.Task[Answers]) -> None:
            if not task.cancelled():
                task.exception()  # retrieved here, since whoever asked may have been stopped
            images_ready.set()
            del self._in_flight[batch.answers]

        task.add_done_callback(landed)
        return self._in_flight[batch.answers]

    async def _answers_to(self, batch: Batch, images_ready: asyncio.Event) -> Answers:
        """The answers to a batch: those that the store has, or new ones. Raises BatchFailed if it is set aside."""
        if batch.answers in self._set_aside:
            self._events.reused(images=0)
            raise self._set_aside[batch.answers]
        if batch.answers in self._answer_shards:
            stored = await self._stored_answers(batch)
            if stored is not None:
                self._events.reused(images=len(batch.index))
                return stored
        try:
            replies = await self._make_and_ask(batch, images_ready)
            answers = self._read(batch, replies)
        except BatchFailed as error:
            self._give_up(batch, error)
            raise
        except StoreError as error:  # the store has a shard of this name that does not answer the questionnaire
            failed = BatchFailed(str(error), stage="read", error="StoreError", attempts=1)
            self._give_up(batch, failed)
            raise failed from error
        self._answer_shards.add(batch.answers)
        self._update_backlog(batch)
        self._events.answers(pc.sum(pc.not_equal(replies["question"], "")).as_py() or 0)
        return answers

    def _give_up(self, batch: Batch, error: BatchFailed) -> None:
        self._set_aside[batch.answers] = error
        self._update_backlog(batch)
        self._events.failed(batch, error)

    async def _make_and_ask(self, batch: Batch, images_ready: asyncio.Event) -> pa.Table:
        """Make the images of a batch if the store lacks them, and ask them; the answers as stored."""
        if batch.images in self._image_shards:
            images_ready.set()
            try:
                async with self._ask_places:
                    replies = await self._fleet.ask(batch, None)
            except BatchFailed as error:
                if error.error not in UNREADABLE:
                    raise
                self._image_shards.discard(batch.images)
                self._update_backlog(batch)
                self._events.note(f"{error}; {await self._quarantine(batch.images)} and made again")
            else:
                self._events.images(held=len(batch.index))
                return replies
        async with self._make_places[batch.model]:
            images = await self._fleet.generate(batch)
        self._image_shards.add(batch.images)
        self._update_backlog(batch)
        images_ready.set()
        self._events.images(made=len(batch.index))
        async with self._ask_places:
            return await self._fleet.ask(batch, images)

    async def _stored_answers(self, batch: Batch) -> Answers | None:
        """The answers that the store has; None if they are gone, or cannot be trusted and were moved aside."""
        async with self._read_places:
            try:
                replies = await self._fleet.wait_for_store(lambda: self._store.read(batch.answers))
                check_vlm(batch.answers, replies, [self._experiment.vlm.name])
                return self._read(batch, replies)
            except FileNotFoundError:
                self._events.note(f"{batch.answers} vanished from the store; it is asked again")
            except StoreError as error:
                self._events.note(f"{error}; {await self._quarantine(batch.answers)} and asked again")
        self._answer_shards.discard(batch.answers)
        self._update_backlog(batch)
        return None

    async def _quarantine(self, shard: str) -> str:
        """Move a shard aside that cannot be trusted; says where it is now."""

        def move() -> str:
            try:
                moved = self._store.quarantine(shard)
                self._quarantined.add(moved)
                return f"moved to {moved}"
            except FileNotFoundError:
                return "gone"

        return await self._fleet.wait_for_store(move)

    def _read(self, batch: Batch, replies: pa.Table) -> Answers:
        dataset, vlm = self._experiment.dataset, self._experiment.vlm.name
        return read_replies(dataset, replies, batch.image_keys, batch.index, batch.seeds, vlm)

    def _usable_shards(self, folder: str) -> set[str]:
        """Names of a folder's shards. One that is cut short is moved aside, and whatever else lies there is noted."""
        names, problems = self._store.look(folder)
        others = [problem for problem in problems if problem.kind != "damaged"]
        for problem in others[:PROBLEMS_SHOWN]:
            self._events.note(f"{problem.name} ({problem.kind}): {problem.message}")
        if others[PROBLEMS_SHOWN:]:
            self._events.note(f"{len(others) - PROBLEMS_SHOWN:,} more things in {folder} are no shards")
        damaged = [problem.name for problem in problems if problem.kind == "damaged"]
        for name in damaged:
            moved = self._store.quarantine(name)
            if len(damaged) <= PROBLEMS_SHOWN:
                self._events.note(f"{name} is cut short; moved to {moved}")
        if len(damaged) > PROBLEMS_SHOWN:
            self._events.note(f"{len(damaged):,} shards in {folder} are cut short, and were moved to damaged/")
        return names
