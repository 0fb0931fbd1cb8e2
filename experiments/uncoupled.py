"""What images would show if no axis had an effect on another: the null of the studies of single mitigations.

The answers about an axis y are exchanged at random among all images whose prompt does not state y: those of the initial
prompt, and those of the prompts that state another axis. So what a prompt states does nothing to y any more, while the
numbers of images, and which images two figures share, stay as they are. A figure of such answers is due to the design
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.counts import ImageCodes, PromptCounts
from seesaw.experiments.prompts import Prompt

__all__ = ["StatedSet", "without_couplings"]


@dataclass(frozen=True, eq=False)
class StatedSet:
    """What the images of m prompts show, and the axis that the prompts state ("" for the initial prompt)."""

    axis: str
    prompts: tuple[Prompt, ...]
    counts: PromptCounts


def without_couplings(sets: Sequence[StatedSet], rng: np.random.Generator) -> list[PromptCounts]:
    """The counts of `sets`, in their order, after a random exchange of the answers about each axis.

    An image that is in several sets (same prompt, same number) shows the same in all of them. Raises ValueError for
    counts without codes, such as those of exact probabilities, which have no images to exchange.
    """
    codes = [_codes(each.counts) for each in sets]
    number = np.unique(np.concatenate([each.number for each in codes]))
    prompts = list(dict.fromkeys(prompt for each in sets for prompt in each.prompts))
    places = [
        np.ix_(np.array([prompts.index(prompt) for prompt in each.prompts]), np.searchsorted(number, own.number))
        for each, own in zip(sets, codes, strict=True)
    ]
    states = {prompt: each.axis for each in sets for prompt in each.prompts}
    exchanged: list[dict[str, NDArray[np.signedinteger]]] = [{} for _ in sets]
    for axis in sets[0].counts.by_axis:
        shown = np.full((len(prompts), len(number)), -1)
        for own, place in zip(codes, places, strict=True):
            shown[place] = np.maximum(shown[place], own.by_axis[axis])
        free = (shown >= 0) & np.array([states[prompt] != axis for prompt in prompts])[:, None]
        shown[free] = rng.permutation(shown[free])
        for found, own, place in zip(exchanged, codes, places, strict=True):
            found[axis] = np.where(own.by_axis[axis] >= 0, shown[place], -1)
    return [
        _counted(each.counts, ImageCodes(own.number, found))
        for each, own, found in zip(sets, codes, exchanged, strict=True)
    ]


def _codes(counts: PromptCounts) -> ImageCodes:
    if counts.codes is None:
        raise ValueError("answers can be exchanged only where they are known image by image")
    return counts.codes


def _counted(counts: PromptCounts, codes: ImageCodes) -> PromptCounts:
    """`counts` with other answers of the same images."""
    by_axis = {
        axis: np.stack([(codes.by_axis[axis] == attribute).sum(-1) for attribute in range(observed.shape[-1])], -1)
        for axis, observed in counts.by_axis.items()
    }
    return PromptCounts(by_axis, counts.weights, codes=codes)
