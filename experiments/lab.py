"""The one thing that the science asks of the world: observe prompts on a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.prompts import Prompt

__all__ = ["Answers", "Lab", "Observations", "all_of"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class Answers:
    """What VQA read from the images of one cell, image by image.

    Shapes: n images. `person` bool (n,); `index` int (n,), the image's number in its cell; `seed` int (n,);
    `image_key` n hex strings; `value[axis]` int (n,), the attribute's position or -1 where nothing counts
    (no person); `probability[axis]` float (n,), NaN where there is no answer; `person_probability` (n,).
    """

    index: NDArray[np.int64]
    seed: NDArray[np.int64]
    image_key: tuple[str, ...]
    person: NDArray[np.bool_]
    person_probability: NDArray[np.float64]
    value: Mapping[str, NDArray[np.signedinteger]]
    probability: Mapping[str, NDArray[np.float64]]
    vlm: str = ""
    ambiguous: tuple[int, ...] = ()  #: n numbers of composite axes (disability) with more than one yes
    withheld: tuple[
        str, ...
    ] = ()  #: n reasons, "" for an image that was asked, else blank or flagged: no person either


@dataclass(frozen=True)
class Observations:
    """What is known of one cell: `counts[axis]` float (k,), images with a person by attribute, in attribute order.

    Counts are whole numbers from images; a Lab over exact probabilities gives n*p. `asked` is the number of images
    looked at and `dropped` those of them without a person. A cell that could not be observed whole carries
    `failures` (one message a batch), and its counts must not be used for a matrix.
    """

    prompt: Prompt
    counts: Mapping[str, NDArray[np.float64]]
    asked: int
    dropped: int
    answers: Answers | None = None
    failures: tuple[str, ...] = field(default=())


class Lab(Protocol):
    """Whoever can say what images of these prompts show: Ray actors over a store, or exact probabilities."""

    async def observe(self, model: str, prompts: Sequence[Prompt], images: int) -> list[Observations]:
        """Observe `images` images of every prompt on `model`, in the order of `prompts`.

        A cell with failed batches comes back with `failures`; nothing is raised for it.
        """
        ...


async def all_of(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of `work`, in its order, once all of it has ended. Raises the first error among them, in order."""
    results: list[Result] = []
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
