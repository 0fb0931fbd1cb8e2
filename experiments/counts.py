"""What the images of some prompts show, in numbers: counted, and image by image where seeds are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.lab import Observations
from seesaw.experiments.sensitivity import mixture, shares
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["Codes", "ImageCodes", "PromptCounts", "code_type", "counts_of"]

Floats = NDArray[np.float64]
Codes = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class ImageCodes:
    """What every image of m prompts shows: `by_axis[axis]` (m, s) is the attribute's position, -1 if there is none.

    Column j is the image number `number[j]` of every prompt, (s,), increasing. Images of one number share their seed,
    whatever their prompts. So their errors may be related, and resampling draws a number and not a single image.
    """

    number: NDArray[np.int64]
    by_axis: Mapping[str, Codes]


@dataclass(frozen=True, eq=False)
class PromptCounts:
    """How many images of m prompts show each attribute, and the weight of each prompt in the mixture of all.

    `by_axis[axis]` (m, k) are the counts; `weights` (m,) sum to 1. `exact` means that a count is the number of images
    times a known probability, so nothing derived from it has a sampling error. `codes` has the same answers image by
    image; None if it is not known which images share their seed, so that all count as independent.
    """

    by_axis: Mapping[str, NDArray[Any]]
    weights: Floats
    exact: bool = False
    codes: ImageCodes | None = None

    def shares(self, axis: str) -> Floats:
        """The distribution of `axis` over the mixture of the prompts, (k,); NaN if a prompt has no valid image."""
        return mixture(shares(self.by_axis[axis]), self.weights)

    def images(self, axis: str) -> int:
        """How many images of all prompts answer `axis`."""
        return int(np.rint(self.by_axis[axis].sum()))

    def among(self, number: NDArray[np.int64]) -> PromptCounts | None:
        """The counts of the images with these numbers alone; None if that is all, or numbers are not known."""
        if self.codes is None:
            return None
        columns = np.flatnonzero(np.isin(self.codes.number, number, assume_unique=True))
        if len(columns) == len(self.codes.number):
            return None
        codes = {axis: by_prompt[:, columns] for axis, by_prompt in self.codes.by_axis.items()}
        by_axis = {
            axis: (by_prompt[..., None] == np.arange(self.by_axis[axis].shape[-1])).sum(1)
            for axis, by_prompt in codes.items()
        }
        return PromptCounts(by_axis, self.weights, codes=ImageCodes(self.codes.number[columns], codes))

    def errors(self, axis: str) -> Floats:
        """What every image number adds to the sampling error of `shares`, (s, k), to first order; columns sum to 0.

        Raises ValueError without codes.
        """
        if self.codes is None:
            raise ValueError("it is not known which images share their seed")
        codes = self.codes.by_axis[axis][..., None]
        p, n = shares(self.by_axis[axis]), self.by_axis[axis].sum(-1)
        share = np.where(n > 0, self.weights / np.maximum(n, 1), 0.0)[:, None, None]
        off = np.where(codes >= 0, (codes == np.arange(p.shape[-1])) - p[:, None, :], 0.0)
        return np.asarray((share * off).sum(0), np.float64)


def code_type(k: int) -> type[np.signedinteger[Any]]:
    """The smallest type of number for the positions of k attributes, and -1."""
    return np.int8 if k < 128 else np.int32


def counts_of(cells: Sequence[Observations], settings: AnalysisSettings, weights: Floats) -> PromptCounts:
    """The counts of m observed cells, with `weights` (m,), for every axis in the dataset's order.

    A cell with failures counts no images, so that everything that depends on it is NaN.
    """
    exact = all(cell.answers is None for cell in cells)
    by_axis = {
        axis.name: np.stack(
            [np.zeros(len(axis.attributes)) if cell.failures else cell.counts[axis.name] for cell in cells]
        )
        for axis in settings.dataset.axes
    }
    if not exact:  # counts are whole numbers; a mitigation keeps many of them, and int32 takes half the memory
        by_axis = {axis: counts.astype(np.int32) for axis, counts in by_axis.items()}
    return PromptCounts(by_axis, weights, exact, None if exact else _codes(cells, settings))


def _codes(cells: Sequence[Observations], settings: AnalysisSettings) -> ImageCodes | None:
    """The answers of `cells` image by image; None if a cell without failures has none."""
    answers = [None if cell.failures else cell.answers for cell in cells]
    if any(each is None and not cell.failures for each, cell in zip(answers, cells, strict=True)):
        return None
    number = np.unique(np.concatenate([each.index for each in answers if each is not None] or [np.empty(0, np.int64)]))
    by_axis: dict[str, Codes] = {}
    for axis in settings.dataset.axes:
        codes = np.full((len(cells), len(number)), -1, code_type(len(axis.attributes)))
        for row, each in zip(codes, answers, strict=True):
            if each is not None:
                row[np.searchsorted(number, each.index)] = each.value[axis.name]
        by_axis[axis.name] = codes
    return ImageCodes(number, by_axis)
