"""The Lab of a real run: merge what is asked twice, reuse what the store holds, send the rest to the fleet."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from experiments.lab import Answers, Observations, all_of
from experiments.prompts import Prompt
from experiments.questionnaire import observations_of, read_replies
from results.errors import BatchFailed, ConfigError, StoreError, nearest
from results.identity import batch_size
from results.store import Store
from runner.config import ModelConfig
from runner.events import Events
from runner.experiment import Experiment, Served
from runner.fleet import Fleet
from runner.plan import Batch, batches_of

__all__ = ["FleetLab"]


class FleetLab:
    """`Lab` over a store and a fleet. Everything in flight is bounded, and a batch is in flight once.

    The store's shards are listed once, when the Lab is made; after that the Lab knows of what it commits itself.
    Another driver on the same store costs double work at worst: commits adopt what is there already.
    """

    def __init__(self, experiment: Experiment, store: Store, fleet: Fleet, events: Events) -> None:
        self._experiment, self._store, self._fleet, self._events = experiment, store, fleet, events
        self._models: dict[str, Served[ModelConfig]] = {model.name: model for model in experiment.models}
        self._images: set[str] = set()
        self._answers = self._sound(experiment.vlm.folder)
        for model in experiment.models:
            self._images |= self._sound(model.folder)
        self._failed: dict[str, BatchFailed] = {}  #: what was set aside in this run is not tried again in it
        self._failed_cells: set[tuple[str, str]] = set()
        self._withheld: dict[tuple[str, str], Observations] = {}
        self._flight: dict[str, asyncio.Task[Answers]] = {}
        width = fleet.width
        self._cells = {name: asyncio.Semaphore(2 * width + 2) for name in self._models}
        self._batches = asyncio.Semaphore(4 * width)
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

    async def _cell(self, model: Served[ModelConfig], prompt: Prompt, images: int) -> Observations:
        async with self._cells[model.name]:
            batches = batches_of(self._experiment, model, prompt, images)
            results = await asyncio.gather(*(self._shared(b) for b in batches), return_exceptions=True)
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

    async def _shared(self, batch: Batch) -> Answers:
        """One task a batch, however many ask for it at once."""
        if batch.answers in self._failed:
            self._events.reused(images=0)
            raise self._failed[batch.answers]
        task = self._flight.get(batch.answers)
        if task is not None:
            self._events.reused(images=len(batch.index))
        else:
            task = asyncio.create_task(self._batch(batch))
            self._flight[batch.answers] = task
            task.add_done_callback(lambda _: self._flight.pop(batch.answers, None))
        return await asyncio.shield(task)

    async def _batch(self, batch: Batch) -> Answers:
        if batch.answers in self._answers:
            held = await self._held(batch)
            if held is not None:
                self._events.reused(images=len(batch.index))
                return held
        async with self._batches:
            try:
                replies = await self._replies(batch)
                read = self._read(batch, replies)
            except BatchFailed as error:
                self._set_aside(batch, error)
                raise
            except StoreError as error:  # answers that are there, and are none
                failed = BatchFailed(str(error), stage="read", error="StoreError", attempts=1)
                self._set_aside(batch, failed)
                raise failed from error
            self._answers.add(batch.answers)
            self._events.answers(pc.sum(pc.not_equal(replies["question"], "")).as_py() or 0)
            return read

    def _set_aside(self, batch: Batch, error: BatchFailed) -> None:
        self._failed[batch.answers] = error
        self._events.failed(batch, error)

    async def _replies(self, batch: Batch) -> pa.Table:
        """Make what the store lacks of a batch's images, and ask them."""
        if batch.images in self._images:
            self._events.images(held=len(batch.index))
            try:
                return await self._fleet.ask(batch, None)
            except BatchFailed as error:
                if error.error not in ("StoreError", "FileNotFoundError"):
                    raise
                self._images.discard(batch.images)
                self._events.note(f"{error}; {self._moved(batch.images)} and made again")
        images = await self._fleet.generate(batch)
        self._images.add(batch.images)
        self._events.images(made=len(batch.index))
        return await self._fleet.ask(batch, images)

    def _moved(self, shard: str) -> str:
        try:
            return f"moved to {self._store.quarantine(shard)}"
        except FileNotFoundError:
            return "gone"

    async def _held(self, batch: Batch) -> Answers | None:
        """The answers that the store holds; None (and the shard moved aside) if they cannot be trusted."""
        async with self._reads:
            try:
                return self._read(batch, await asyncio.to_thread(self._store.read, batch.answers))
            except FileNotFoundError:
                self._events.note(f"{batch.answers} vanished from the store; it is asked again")
            except StoreError as error:
                self._events.note(f"{error}; moved to {self._store.quarantine(batch.answers)} and asked again")
        self._answers.discard(batch.answers)
        return None

    def _read(self, batch: Batch, replies: pa.Table) -> Answers:
        dataset, vlm = self._experiment.dataset, self._experiment.vlm.name
        return read_replies(dataset, replies, batch.image_keys, batch.index, batch.seeds, vlm)

    def _sound(self, folder: str) -> set[str]:
        """Shards of a folder; what is cut short is moved aside, and whatever else lies there is reported."""
        for problem in self._store.problems(folder):
            if problem.kind == "damaged":
                self._events.note(f"{problem.name} is cut short; moved to {self._store.quarantine(problem.name)}")
            else:
                self._events.note(f"{problem.name} ({problem.kind}): {problem.message}")
        return self._store.names(folder)
