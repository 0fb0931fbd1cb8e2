"""Observing prompt sets: what all prompts of a set show together, as one distribution for each axis.

InterMit judges a model, and each of its counterfactuals, by such a distribution. Many problems share prompt sets, so
each set is observed once, however many problems ask for it and whenever they do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.estimation import PromptCounts, bias, counts_of
from seesaw.experiments.lab import Lab, Observations, all_of
from seesaw.experiments.mitigators import Mitigator, PromptSet
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.uncertainty import bias_errors

__all__ = ["ObservedSet", "PromptSetObserver", "observed_set"]


@dataclass(frozen=True, eq=False)
class ObservedSet:
    """What the images of a prompt set show, n axes in the dataset's order.

    `failed` names the prompts with a failed cell, `empty` those that show no person in any image; where there are any,
    all figures are NaN. `images` (m,) is how many images of each prompt were looked at.
    """

    counts: PromptCounts
    settings: AnalysisSettings
    failed: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    images: tuple[int, ...] = ()

    @property
    def defined(self) -> bool:
        return not (self.failed or self.empty)

    @property
    def why_undefined(self) -> str:
        """The reason in words, for a set that is not `defined`."""
        if self.failed:
            return f"{len(self.failed)} prompts failed, the first: {self.failed[0]}"
        return f"no image shows a person: {self.empty[0]}"

    @cached_property
    def w(self) -> NDArray[np.float64]:
        """Bias of every axis, (n,)."""
        return bias(self.counts, self.settings)

    @cached_property
    def error(self) -> NDArray[np.float64]:
        """Standard errors of `w` from sampling, (n,); 0 where probabilities are exact."""
        return bias_errors(self.counts, self.settings) if self.defined else np.full_like(self.w, np.nan)


def observed_set(
    settings: AnalysisSettings, weights: NDArray[np.float64], cells: Sequence[Observations]
) -> ObservedSet:
    """What m cells show together, mixed by `weights` (m,), however many images each has."""
    return ObservedSet(
        counts_of(cells, settings, weights),
        settings,
        failed=tuple(f"{cell.prompt.text}: {cell.failures[0]}" for cell in cells if cell.failures),
        empty=tuple(cell.prompt.text for cell in cells if not cell.failures and _shows_nobody(cell)),
    )


def _shows_nobody(cell: Observations) -> bool:
    """Whether no image counts: every image with a person answers every axis."""
    return cell.dropped >= cell.asked


class PromptSetObserver:
    """Observes prompt sets over a Lab, with a mitigator's settings, for any number of problems at once.

    If no image of a prompt shows a person, twice as many are asked for, up to N: in a set of hundreds of prompts each
    has a single image, and one image without a person would leave the whole set undefined. Raises what the Lab raises.
    """

    def __init__(self, lab: Lab, mitigator: Mitigator) -> None:
        self.mitigator = mitigator
        #: (axes stated, images) of every prompt that was looked at, counted once for each problem that looked at it
        self.asked: Counter[tuple[int, int]] = Counter()
        self._lab = lab
        self._observed: dict[tuple[str, PromptSet], ObservedSet] = {}
        self._tasks: dict[tuple[str, PromptSet], asyncio.Task[ObservedSet]] = {}

    async def observe(self, model: str, sets: Sequence[PromptSet]) -> list[ObservedSet]:
        """What each of `sets` shows on `model`, in their order, once every observation has ended."""
        new = {each: self._task(model, each) for each in sets if (model, each) not in self._observed}
        if new:
            # not gather: if this problem is cancelled, the observations that others wait for must go on
            await asyncio.wait(new.values())
        errors = [error for task in new.values() if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        return [new[each].result() if each in new else self._observed[model, each] for each in sets]

    def count(self, model: str, sets: Sequence[PromptSet]) -> None:
        """Add to `asked` the prompts of `sets`, which a problem has looked at for the first time."""
        for each in sets:
            self.asked.update(zip((prompt.stated for prompt in each.prompts), self.images(model, each), strict=True))

    def images(self, model: str, prompts: PromptSet) -> tuple[int, ...]:
        """Images of each of the m prompts that were looked at, or that will be if every prompt shows a person."""
        observed = self._observed.get((model, prompts))
        return observed.images if observed is not None else prompts.images

    def _task(self, model: str, prompts: PromptSet) -> asyncio.Task[ObservedSet]:
        """The task that observes a set: one, however many problems ask for it at once."""
        key = model, prompts
        if key not in self._tasks:
            self._tasks[key] = task = asyncio.create_task(self._observe(model, prompts))
            task.add_done_callback(lambda _: self._tasks.pop(key))
        return self._tasks[key]

    async def _observe(self, model: str, prompts: PromptSet) -> ObservedSet:
        cells = await self._cells(model, list(zip(prompts.prompts, prompts.images, strict=True)))
        while True:
            nobody = [
                i
                for i, cell in enumerate(cells)
                if not cell.failures and cell.asked < self.mitigator.images and _shows_nobody(cell)
            ]
            if not nobody:
                observed = observed_set(self.mitigator.settings, prompts.weights, cells)
                observed = replace(observed, images=tuple(map(max, prompts.images, (cell.asked for cell in cells))))
                if not observed.failed:  # a failed cell is asked again by the next who needs it
                    self._observed[model, prompts] = observed
                return observed
            more = [(cells[i].prompt, min(2 * cells[i].asked, self.mitigator.images)) for i in nobody]
            for i, cell in zip(nobody, await self._cells(model, more), strict=True):
                cells[i] = cell

    async def _cells(self, model: str, wanted: Sequence[tuple[Prompt, int]]) -> list[Observations]:
        """Cells of `wanted` (prompt, images), in order, with one call of the Lab for each number of images."""
        sizes = sorted({images for _, images in wanted})
        asked = [[i for i, (_, images) in enumerate(wanted) if images == size] for size in sizes]
        observed = await all_of(
            self._lab.observe(model, [wanted[i][0] for i in where], size)
            for where, size in zip(asked, sizes, strict=True)
        )
        by_place = {
            i: cell for where, cells in zip(asked, observed, strict=True) for i, cell in zip(where, cells, strict=True)
        }
        return [by_place[i] for i in range(len(wanted))]
