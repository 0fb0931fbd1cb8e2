"""What prompt sets show: the shares of all their prompts pooled into one distribution an axis.

InterMit judges a model, and each of its counterfactuals, by such a distribution. Many problems share prompt sets, so
each set is observed once, however many problems ask for it and whenever they do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis
from seesaw.experiments.lab import Lab, Observations, all_of
from seesaw.experiments.mitigators import Mitigator, PromptSet
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.sensitivity import pool, w_bar
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["Pooled", "PromptSetObserver", "pooled"]

_DRAWS = 400  # a standard error from 400 draws is good to 4 % of itself


@dataclass(frozen=True)
class Pooled:
    """The distribution of a prompt set, n axes in the dataset's order.

    `shares[axis]` (k,); `w` (n,) their distances from the targets and `error` (n,) the standard errors of w from
    sampling, 0 where probabilities are exact. Where a prompt's cell failed (`failed` names it) or shows no person in
    any image (`empty`), all numbers are NaN.
    """

    shares: Mapping[str, NDArray[np.float64]]
    w: NDArray[np.float64]
    error: NDArray[np.float64]
    failed: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    images: tuple[int, ...] = ()  #: looked at of each of the m prompts

    @property
    def defined(self) -> bool:
        return not (self.failed or self.empty)


def pooled(settings: AnalysisSettings, weights: NDArray[np.float64], cells: Sequence[Observations]) -> Pooled:
    """Pool m cells by `weights` (m,), whatever number of images each has (DESIGN section 5)."""
    axes = settings.dataset.axes
    failed = tuple(f"{cell.prompt.text}: {cell.failures[0]}" for cell in cells if cell.failures)
    empty = tuple(cell.prompt.text for cell in cells if not cell.failures and _shows_nobody(cell))
    if failed or empty:
        nothing = np.full(len(axes), np.nan)
        return Pooled(
            {axis.name: np.full(len(axis.attributes), np.nan) for axis in axes}, nothing, nothing, failed, empty
        )
    counts = {axis.name: np.stack([cell.counts[axis.name] for cell in cells]) for axis in axes}  # (m, k) each
    shares = {name: pool(each / each.sum(-1, keepdims=True), weights) for name, each in counts.items()}
    exact = all(cell.answers is None for cell in cells)  # no images are behind exact probabilities
    return Pooled(
        shares,
        w=np.array([_distance(settings, axis, shares[axis.name]) for axis in axes]),
        error=np.array(
            [0.0 if exact else _error(settings, axis, shares[axis.name], weights, counts[axis.name]) for axis in axes]
        ),
    )


def _distance(settings: AnalysisSettings, axis: Axis, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    return w_bar(shares, settings.targets[axis.name], settings.metric[axis.name])


def _shows_nobody(cell: Observations) -> bool:
    """Whether no image counts: every image with a person answers every axis."""
    return cell.dropped >= cell.asked


def _error(
    settings: AnalysisSettings,
    axis: Axis,
    shares: NDArray[np.float64],
    weights: NDArray[np.float64],
    counts: NDArray[np.float64],
) -> float:
    """Standard error of w of one axis, from `counts` (m, k) of images.

    Every cell's shares have the covariance of their Dirichlet posterior, with a prior worth one image, as in
    `results.statistics.is_interval`: 48 images of 48 are not certain. The pooled shares are drawn as a normal with
    the weighted covariances added up, since w has kinks where a share meets its target.
    """
    n = counts.sum(-1)
    mean = (counts + 1 / counts.shape[-1]) / (n + 1)[:, None]
    scale = weights**2 / (n + 2)
    covariance = np.diag(scale @ mean) - np.einsum("m,mi,mj->ij", scale, mean, mean)
    draws = np.random.default_rng(0).multivariate_normal(shares, covariance, _DRAWS, method="eigh")
    return float(_distance(settings, axis, draws).std())


class PromptSetObserver:
    """Prompt sets observed over a Lab, with a mitigator's settings; any number of problems at once.

    A prompt none of whose images shows a person is asked for twice as many, up to N: in a set of hundreds of prompts
    each has a single image, and one without a person would leave the whole undefined. Raises what the Lab raises.
    """

    def __init__(self, lab: Lab, mitigator: Mitigator) -> None:
        self.mitigator = mitigator
        #: (axes that it states, images) of the prompts looked at, once for every problem that did
        self.asked: Counter[tuple[int, int]] = Counter()
        self._lab = lab
        self._known: dict[tuple[str, PromptSet], Pooled] = {}
        self._flight: dict[tuple[str, PromptSet], asyncio.Task[Pooled]] = {}

    async def observe(self, model: str, sets: Sequence[PromptSet]) -> list[Pooled]:
        """What each of `sets` shows on `model`, in their order, once all that they need has ended."""
        new = {each: self._task(model, each) for each in sets if (model, each) not in self._known}
        if new:
            await asyncio.wait(new.values())  # not gather: who is cancelled does not cancel what others wait for
        errors = [
            error for task in new.values() if (error := task.exception()) is not None
        ]  # all looked at, one raised
        if errors:
            raise errors[0]
        return [new[each].result() if each in new else self._known[model, each] for each in sets]

    def count(self, model: str, sets: Sequence[PromptSet]) -> None:
        """Add to `asked` what a problem has looked at for the first time."""
        for each in sets:
            self.asked.update(zip((prompt.stated for prompt in each.prompts), self.images(model, each), strict=True))

    def images(self, model: str, prompts: PromptSet) -> tuple[int, ...]:
        """Images of each of the m prompts that were looked at, or will be if none lacks a person."""
        known = self._known.get((model, prompts))
        return known.images if known is not None else prompts.images

    def _task(self, model: str, prompts: PromptSet) -> asyncio.Task[Pooled]:
        """One task a set, however many ask for it at once."""
        key = model, prompts
        if key not in self._flight:
            self._flight[key] = task = asyncio.create_task(self._pooled(model, prompts))
            task.add_done_callback(lambda _: self._flight.pop(key))
        return self._flight[key]

    async def _pooled(self, model: str, prompts: PromptSet) -> Pooled:
        cells = await self._cells(model, list(zip(prompts.prompts, prompts.images, strict=True)))
        while True:
            again = [
                i
                for i, cell in enumerate(cells)
                if not cell.failures and cell.asked < self.mitigator.images and _shows_nobody(cell)
            ]
            if not again:
                found = pooled(self.mitigator.settings, prompts.weights, cells)
                found = replace(found, images=tuple(map(max, prompts.images, (cell.asked for cell in cells))))
                if not found.failed:  # what failed may succeed when it is asked again
                    self._known[model, prompts] = found
                return found
            more = [(cells[i].prompt, min(2 * cells[i].asked, self.mitigator.images)) for i in again]
            for i, cell in zip(again, await self._cells(model, more), strict=True):
                cells[i] = cell

    async def _cells(self, model: str, wanted: Sequence[tuple[Prompt, int]]) -> list[Observations]:
        """Cells of `wanted` (prompt, images), in order: one observe for every number of images."""
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
