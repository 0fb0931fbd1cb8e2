"""The Lab of a real run: merge what is asked twice, reuse what the store holds, send the rest to the fleet."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from seesaw.experiments.lab import Answers, Observations, all_of
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.questionnaire import observations_of, read_replies
from seesaw.results.errors import BatchFailed, ConfigError, StoreError, nearest
from seesaw.results.store.identity import batch_size
from seesaw.results.store.store import Store
from seesaw.runner.config import ModelConfig
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment, ResolvedModel
from seesaw.runner.fleet.fleet import Fleet
from seesaw.runner.plan import Batch, batches_of

__all__ = ["FleetLab"]

LEAST = 128  #: cells of a model, and batches of it, in flight: nodes that join find work


class FleetLab:
    """`Lab` over a store and a fleet. Everything in flight is bounded, and a batch is in flight once.

    The store's shards are listed once, when the Lab is made; after that the Lab knows of what it commits itself.
    Another driver on the same store costs double work at worst: commits adopt what is there already.
    """

    def __init__(self, experiment: Experiment, store: Store, fleet: Fleet, events: Events) -> None:
        self._experiment, self._store, self._fleet, self._events = experiment, store, fleet, events
        self._models: dict[str, ResolvedModel[ModelConfig]] = {model.name: model for model in experiment.models}
        self._images: set[str] = set()
        self._answers = self._sound(experiment.vlm.folder)
        for model in experiment.models:
            self._images |= self._sound(model.folder)
        self._failed: dict[str, BatchFailed] = {}  #: what was set aside in this run is not tried again in it
        self._failed_cells: set[tuple[str, str]] = set()
        self._withheld: dict[tuple[str, str], Observations] = {}
        self._flight: dict[str, tuple[asyncio.Task[Answers], asyncio.Event]] = {}
        width = max(2 * fleet.width, LEAST)
        self._cells = {name: asyncio.Semaphore(width) for name in self._models}
        self._makes = {name: asyncio.Semaphore(width) for name in self._models}
        self._asks = asyncio.Semaphore(width)
        self._reads = asyncio.Semaphore(16)

    async def observe(self, model: str, prompts: Sequence[Prompt], images: int) -> list[Observations]:
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
        cells = [self._cell(self._models[model], prompt, images) for prompt in prompts]
        return await all_of(cells)

    async def _cell(self, model: ResolvedModel[ModelConfig], prompt: Prompt, images: int) -> Observations:
        batches = batches_of(self._experiment, model, prompt, images)
        for batch in batches:
            self._left(batch)
        async with self._cells[model.name]:  # held until the images are made: models do not wait for the VLM
            flights = [self._shared(batch) for batch in batches]
            for _, made in flights:
                await made.wait()
        results = await asyncio.gather(*(asyncio.shield(task) for task, _ in flights), return_exceptions=True)
        for batch in batches:
            self._left(batch)  # where another model of the same identity has made it, too
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
        cell = observations_of(self._experiment.dataset, prompt, parts, images, failures)
        known = self._withheld.get(key)
        if cell.answers and any(cell.answers.withheld) and (known is None or known.asked < cell.asked):
            self._withheld[key] = cell
        return cell

    def withheld(self) -> dict[str, list[Observations]]:
        """Cells by model, each once, that have images which were made and not asked."""
        found: dict[str, list[Observations]] = {}
        for (model, _), cell in sorted(self._withheld.items()):
            found.setdefault(model, []).append(cell)
        return found

    def _left(self, batch: Batch) -> None:
        """Tell the fleet of a batch that is to be made or asked, as far as is known."""
        unmade, unasked = self._fleet.backlog.unmade[batch.model], self._fleet.backlog.unasked
        unmade.discard(batch.answers)
        unasked.discard(batch.answers)
        if batch.answers not in self._answers and batch.answers not in self._failed:
            (unasked if batch.images in self._images else unmade).add(batch.answers)

    def _shared(self, batch: Batch) -> tuple[asyncio.Task[Answers], asyncio.Event]:
        """One task a batch, however many ask for it at once, and what tells that its images are made."""
        flight = self._flight.get(batch.answers)
        if flight is not None:
            self._events.reused(images=len(batch.index))
            return flight
        made = asyncio.Event()
        task = asyncio.create_task(self._batch(batch, made))
        self._flight[batch.answers] = task, made

        def landed(task: asyncio.Task[Answers]) -> None:
            if not task.cancelled():
                task.exception()  # seen, for whoever asked may have been stopped
            made.set()
            del self._flight[batch.answers]

        task.add_done_callback(landed)
        return task, made

    async def _batch(self, batch: Batch, made: asyncio.Event) -> Answers:
        if batch.answers in self._failed:
            self._events.reused(images=0)
            raise self._failed[batch.answers]
        if batch.answers in self._answers:
            held = await self._held(batch)
            if held is not None:
                self._events.reused(images=len(batch.index))
                return held
        try:
            replies = await self._replies(batch, made)
            read = self._read(batch, replies)
        except BatchFailed as error:
            self._set_aside(batch, error)
            raise
        except StoreError as error:  # answers that are there, and are none
            failed = BatchFailed(str(error), stage="read", error="StoreError", attempts=1)
            self._set_aside(batch, failed)
            raise failed from error
        self._answers.add(batch.answers)
        self._left(batch)
        self._events.answers(pc.sum(pc.not_equal(replies["question"], "")).as_py() or 0)
        return read

    def _set_aside(self, batch: Batch, error: BatchFailed) -> None:
        self._failed[batch.answers] = error
        self._left(batch)
        self._events.failed(batch, error)

    async def _replies(self, batch: Batch, made: asyncio.Event) -> pa.Table:
        """Make what the store lacks of a batch's images, and ask them."""
        if batch.images in self._images:
            made.set()
            try:
                async with self._asks:
                    replies = await self._fleet.ask(batch, None)
            except BatchFailed as error:
                if error.error not in ("StoreError", "FileNotFoundError"):
                    raise
                self._images.discard(batch.images)
                self._left(batch)
                self._events.note(f"{error}; {await self._moved(batch.images)} and made again")
            else:
                self._events.images(held=len(batch.index))
                return replies
        async with self._makes[batch.model]:
            images = await self._fleet.generate(batch)
        self._images.add(batch.images)
        self._left(batch)
        made.set()
        self._events.images(made=len(batch.index))
        async with self._asks:
            return await self._fleet.ask(batch, images)

    async def _moved(self, shard: str) -> str:
        def move() -> str:
            try:
                return f"moved to {self._store.quarantine(shard)}"
            except FileNotFoundError:
                return "gone"

        return await self._fleet.outage.through(lambda: asyncio.to_thread(move))

    async def _held(self, batch: Batch) -> Answers | None:
        """The answers that the store holds; None (and the shard moved aside) if they cannot be trusted."""
        async with self._reads:
            try:
                held = await self._fleet.outage.through(lambda: asyncio.to_thread(self._store.read, batch.answers))
                return self._read(batch, held)
            except FileNotFoundError:
                self._events.note(f"{batch.answers} vanished from the store; it is asked again")
            except StoreError as error:
                self._events.note(f"{error}; {await self._moved(batch.answers)} and asked again")
        self._answers.discard(batch.answers)
        self._left(batch)
        return None

    def _read(self, batch: Batch, replies: pa.Table) -> Answers:
        dataset, vlm = self._experiment.dataset, self._experiment.vlm.name
        return read_replies(dataset, replies, batch.image_keys, batch.index, batch.seeds, vlm)

    def _sound(self, folder: str) -> set[str]:
        """Shards of a folder; what is cut short is moved aside, and whatever else lies there is reported."""
        names, problems = self._store.look(folder)
        for problem in problems:
            if problem.kind == "damaged":
                self._events.note(f"{problem.name} is cut short; moved to {self._store.quarantine(problem.name)}")
            else:
                self._events.note(f"{problem.name} ({problem.kind}): {problem.message}")
        return names
