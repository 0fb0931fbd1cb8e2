"""Observes prompt sets: what all prompts of a set show together, as one distribution for each axis.

InterMit judges a model, and each of its counterfactuals, by these distributions. Many problems share prompt sets, so
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

from seesaw.experiments.counts import PromptCounts, counts_of
from seesaw.experiments.estimation import bias
from seesaw.experiments.images import FRESH
from seesaw.experiments.lab import Lab, Observations, observe_each
from seesaw.experiments.mitigators import Mitigator, PromptSet
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.uncertainty import bias_covariance

__all__ = ["ObservedSet", "PromptSetObserver", "observed_set"]

_Key = tuple[str, PromptSet, bool]  #: model, set, whether in fresh images


@dataclass(frozen=True, eq=False)
class ObservedSet:
    """What the images of a set of m prompts show; the n axes are in the dataset's order.

    `failed` names the prompts with a failed cell, `empty` those that show no person in any image. If there are any of
    either, all figures are NaN. `images` (m,) is how many images of each prompt were looked at.
    """

    counts: PromptCounts
    settings: AnalysisSettings
    failed: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    images: tuple[int, ...] = ()

    @property
    def defined(self) -> bool:
        """Whether no prompt failed and each shows a person in some image."""
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
    def covariance(self) -> NDArray[np.float64]:
        """The covariance of the sampling errors of `w`, (n, n); 0 where probabilities are exact."""
        n = len(self.w)
        return bias_covariance(self.counts, self.settings) if self.defined else np.full((n, n), np.nan)

    @property
    def error(self) -> NDArray[np.float64]:
        """Standard errors of `w` from sampling, (n,)."""
        return np.asarray(np.sqrt(np.diagonal(self.covariance)))


def observed_set(
    settings: AnalysisSettings, weights: NDArray[np.float64], cells: Sequence[Observations]
) -> ObservedSet:
    """What m cells show together: their mixture by `weights` (m,), however many images each cell has."""
    return ObservedSet(
        counts_of(cells, settings, weights),
        settings,
        failed=tuple(f"{cell.prompt.text}: {cell.failures[0]}" for cell in cells if cell.failures),
        empty=tuple(cell.prompt.text for cell in cells if not cell.failures and _shows_nobody(cell)),
    )


def _shows_nobody(cell: Observations) -> bool:
    """Whether no image of the cell counts. Every image that shows a person answers every axis."""
    return cell.dropped >= cell.asked


class PromptSetObserver:
    """Observes prompt sets over a Lab, with a mitigator's settings, for any number of problems at once.

    If no image of a prompt shows a person, twice as many are asked for, up to as many as a counterfactual has. The
    reason: in a set of hundreds of prompts each has a single image, and one image without a person would leave the
    whole set undefined.
    """

    def __init__(self, lab: Lab, mitigator: Mitigator) -> None:
        self.mitigator = mitigator
        #: how many prompts were looked at, by (axes stated, images); a prompt counts once for each problem
        self.asked: Counter[tuple[int, int]] = Counter()
        self._lab = lab
        self._observed: dict[_Key, ObservedSet] = {}
        self._tasks: dict[_Key, asyncio.Task[ObservedSet]] = {}

    async def observe(self, model: str, sets: Sequence[PromptSet], fresh: bool = False) -> list[ObservedSet]:
        """What each of `sets` shows on `model`, in their order. Raises what the Lab raises, after all have ended.

        `fresh`: in images from number `seesaw.experiments.images.FRESH` on, as many as the set has otherwise.
        """
        tasks = {
            prompt_set: self._task((model, prompt_set, fresh))
            for prompt_set in sets
            if (model, prompt_set, fresh) not in self._observed
        }
        if tasks:
            # not gather: if this problem is cancelled, the observations that others wait for must go on
            await asyncio.wait(tasks.values())
        errors = [error for task in tasks.values() if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        return [
            tasks[prompt_set].result() if prompt_set in tasks else self._observed[model, prompt_set, fresh]
            for prompt_set in sets
        ]

    def count(self, model: str, sets: Sequence[PromptSet], fresh: bool = False) -> None:
        """Add to `asked` the prompts of `sets`, which a problem has looked at for the first time."""
        for prompt_set in sets:
            stated = (prompt.stated for prompt in prompt_set.prompts)
            self.asked.update(zip(stated, self.images(model, prompt_set, fresh), strict=True))

    def images(self, model: str, prompt_set: PromptSet, fresh: bool = False) -> tuple[int, ...]:
        """How many images of each of the m prompts were looked at, or will be if every prompt shows a person."""
        observed = self._observed.get((model, prompt_set, fresh))
        return observed.images if observed is not None else prompt_set.images

    def _task(self, key: _Key) -> asyncio.Task[ObservedSet]:
        """The task that observes a set. There is one, however many problems ask for the set at once."""
        if key not in self._tasks:
            self._tasks[key] = task = asyncio.create_task(self._observe(key))
            task.add_done_callback(lambda _: self._tasks.pop(key))
        return self._tasks[key]

    async def _observe(self, key: _Key) -> ObservedSet:
        model, prompt_set, fresh = key
        start = FRESH if fresh else 0
        requests = list(zip(prompt_set.prompts, prompt_set.images, strict=True))
        cells = await observe_each(self._lab, model, requests, start)
        most = self.mitigator.images.counterfactual
        while True:
            without_person = [
                i for i, cell in enumerate(cells) if not cell.failures and cell.asked < most and _shows_nobody(cell)
            ]
            if not without_person:
                observed = observed_set(self.mitigator.settings, prompt_set.weights, cells)
                observed = replace(observed, images=tuple(map(max, prompt_set.images, (cell.asked for cell in cells))))
                if not observed.failed:  # a set with a failed cell is observed again when it is next asked for
                    self._observed[key] = observed
                return observed
            more = [(cells[i].prompt, min(2 * cells[i].asked, most)) for i in without_person]
            for i, cell in zip(without_person, await observe_each(self._lab, model, more, start), strict=True):
                cells[i] = cell
