"""Two VLMs that read the same images: how far they agree, and how often each is right, without any label.

Counts are numbers of images by reading of the first and of the second VLM, (..., k, k); k is the number of attributes
of an axis, G the number of prompts. Pure functions on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Accuracies", "Kappa", "cohens_kappa", "hui_walter"]

Floats = NDArray[np.float64]

_Z = 1.96
_STEPS = 2000  #: of the EM algorithm, at most
_CLOSE = 1e-6  #: a change of all parameters below which it has converged
_START = 0.8  #: the accuracy that it starts from: above one half, so that attributes keep their names
_PRIOR = 0.5  #: images of each kind that are added to what a VLM reads, so that a parameter is never 0 for good


@dataclass(frozen=True)
class Kappa:
    """How far two VLMs agree: share of images read alike, Cohen's kappa and its 95 % interval; NaN without images."""

    images: int
    agree: float
    kappa: float
    low: float
    high: float


def cohens_kappa(counts: ArrayLike) -> Kappa:
    """Cohen's kappa of counts (k, k): agreement beyond what the two VLMs' shares alone would make.

    The interval is from the large-sample variance of Fleiss, Cohen and Everitt, "Large sample standard errors of kappa
    and weighted kappa" (1969), equation 13. NaN where both read one attribute alone, so that chance explains all.
    """
    counts = np.asarray(counts, np.float64)
    n = counts.sum()
    if not n:
        return Kappa(0, np.nan, np.nan, np.nan, np.nan)
    p = counts / n
    first, second, same = p.sum(1), p.sum(0), np.diag(p)
    agree, chance = float(same.sum()), float((first * second).sum())
    if chance >= 1 - 1e-12:
        return Kappa(int(n), agree, np.nan, np.nan, np.nan)
    kappa = (agree - chance) / (1 - chance)
    on = (same * (1 - (first + second) * (1 - kappa)) ** 2).sum()
    off = p * (second[:, None] + first[None, :]) ** 2
    spread = on + (1 - kappa) ** 2 * (off.sum() - np.diag(off).sum()) - (kappa - chance * (1 - kappa)) ** 2
    margin = _Z * float(np.sqrt(max(spread, 0.0) / n)) / (1 - chance)
    return Kappa(int(n), agree, kappa, max(kappa - margin, -1.0), min(kappa + margin, 1.0))


@dataclass(frozen=True, eq=False)
class Accuracies:
    """What Hui and Walter's model says of two VLMs.

    `matrices` (2, k, k): row t of each is how often the VLM reads each attribute in images that show t. `shares` (G, k)
    are those that the images show. `accuracy` (2,) is the share of images that each VLM reads right.
    """

    matrices: Floats
    shares: Floats
    accuracy: Floats
    converged: bool


def hui_walter(counts: ArrayLike) -> Accuracies:
    """Confusion matrices of two VLMs from counts (G, k, k) of G prompts, by the EM algorithm.

    Source: Hui and Walter, "Estimating the error rates of diagnostic tests" (1980); Dawid and Skene (1979) for the EM.
    It assumes that the two misread *independently* of each other, given what an image shows, and every prompt alike,
    and that the prompts differ in what they show. If both misread the same images, they agree for that reason, and are
    taken for better than they are.
    """
    images: Floats = np.asarray(counts, np.float64)
    images = images[images.sum((1, 2)) > 0]
    k = images.shape[-1]
    matrices = np.full((2, k, k), (1 - _START) / (k - 1))
    matrices[:, np.arange(k), np.arange(k)] = _START
    read = (images.sum(1) + images.sum(2)) / 2 + 1 / k
    shares = read / read.sum(1, keepdims=True)
    for _ in range(_STEPS):
        before = np.concatenate([matrices.ravel(), shares.ravel()])
        # by prompt, truth and both readings: how likely, and so how many of the images with these readings show it
        joint = shares[:, :, None, None] * (matrices[0][:, :, None] * matrices[1][:, None, :])[None]
        shown = images[:, None] * joint / np.maximum(joint.sum(1, keepdims=True), 1e-300)
        shares = shown.sum((2, 3)) + 1e-12
        shares = shares / shares.sum(1, keepdims=True)
        summed = shown.sum(0)
        matrices = np.stack([summed.sum(2), summed.sum(1)]) + _PRIOR / k
        matrices = matrices / matrices.sum(2, keepdims=True)
        if np.abs(np.concatenate([matrices.ravel(), shares.ravel()]) - before).max(initial=0.0) < _CLOSE:
            break
    else:
        return Accuracies(matrices, shares, _accuracy(summed), converged=False)
    return Accuracies(matrices, shares, _accuracy(summed), converged=True)


def _accuracy(shown: Floats) -> Floats:
    """The share of images that each VLM reads right, from images by truth and both readings, (k, k, k)."""
    total = max(shown.sum(), 1e-300)
    return np.array([np.trace(shown.sum(2)) / total, np.trace(shown.sum(1)) / total])
