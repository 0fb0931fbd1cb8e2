"""The protocol `Lab`: the science needs nothing else from outside than observations of prompts on a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.prompts import Prompt

__all__ = ["Answers", "Lab", "Observations", "all_of", "observe_each"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class Answers:
    """What VQA read from the n images of one cell, image by image.

    `index` int (n,) is the image's number in its cell; `seed` int (n,); `image_key` n hex strings. `person` bool (n,)
    tells whether the image shows a person; `person_probability` float (n,). `value[axis]` int (n,) is the attribute's
    position, -1 for an image without a person, which counts nowhere. `probability[axis]` float (n,) is NaN where there
    is no answer. `ambiguous`, n numbers: composite axes (disability) for which VQA answered several questions with yes.
    `withheld`, n reasons: "" for an image that VQA was asked about, otherwise blank or flagged; such an image counts as
    one without a person.
    """

    index: NDArray[np.int64]
    seed: NDArray[np.int64]
    image_key: tuple[str, ...]
    person: NDArray[np.bool_]
    person_probability: NDArray[np.float64]
    value: Mapping[str, NDArray[np.signedinteger]]
    probability: Mapping[str, NDArray[np.float64]]
    vlm: str = ""
    ambiguous: tuple[int, ...] = ()
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observations:
    """What was observed of one cell.

    `counts[axis]` float (k,) is the number of images with a person that show each attribute, in attribute order. From
    images these are whole numbers; a Lab over exact probabilities gives n*p. `asked` is the number of images looked at;
    `dropped` of them show no person. If batches failed, `failures` has a message for each of them, and the counts must
    not be used for a matrix.
    """

    prompt: Prompt
    counts: Mapping[str, NDArray[np.float64]]
    asked: int
    dropped: int
    answers: Answers | None = None
    failures: tuple[str, ...] = field(default=())


class Lab(Protocol):
    """Tells what images of given prompts show: Ray actors over a store do this, or exact probabilities."""

    async def observe(self, model: str, prompts: Sequence[Prompt], images: int, start: int = 0) -> list[Observations]:
        """Observe `images` images of every prompt on `model`; returns a cell for each prompt, in the same order.

        The images are those with the numbers `start`, `start` + 1 and so on. Whatever judges a decision asks for images
        from `seesaw.experiments.images.FRESH` on, which no decision has seen.
        A cell with failed batches is returned with `failures`; no error is raised for it.
        """
        ...


async def observe_each(
    lab: Lab, model: str, requests: Sequence[tuple[Prompt, int]], start: int = 0
) -> list[Observations]:
    """A cell for each of `requests` (prompt, images), in their order; one call of the Lab for each number of images."""
    numbers = {"start": start} if start else {}  # so that a Lab without fresh images can be swept
    sizes = sorted({images for _, images in requests})
    by_size = [[i for i, (_, images) in enumerate(requests) if images == size] for size in sizes]
    observed = await all_of(
        lab.observe(model, [requests[i][0] for i in positions], size, **numbers)
        for positions, size in zip(by_size, sizes, strict=True)
    )
    by_position = {
        i: cell
        for positions, cells in zip(by_size, observed, strict=True)
        for i, cell in zip(positions, cells, strict=True)
    }
    return [by_position[i] for i in range(len(requests))]


async def all_of(awaitables: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of `awaitables`, in their order. Waits until all have ended, then raises the first error, if any."""
    results: list[Result] = []
    for result in await asyncio.gather(*awaitables, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
