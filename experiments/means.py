"""Means of IS over the subjects of a model, and how certain they are (docs/method.md).

Two questions are answered. For *these subjects*, chance is in the images alone: `unit` is "images". For *subjects like
them*, of which these are a sample, chance is in the subjects too: `unit` is "subjects".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from seesaw.experiments.normal import two_sided
from seesaw.experiments.uncertainty import LEVEL, Uncertainty

__all__ = ["UNITS", "Sums", "mean_uncertainty"]

Floats = NDArray[np.float64]

UNITS = ("images", "subjects")  #: what is drawn again
_DIGITS = 9  # of what follows from Student's distribution, whose last bits depend on the processor


@dataclass(eq=False)
class Sums:
    """Sums over the subjects of one model, of every entry (r, n). Entries that are undefined are left out.

    `draws` (r, n, DRAWS) are of the plug-in IS. All subjects have the same seeds in a draw, so errors that they share
    stay in the sum.
    """

    count: NDArray[np.int64]
    plug_in: Floats
    value: Floats
    square: Floats
    variance: Floats
    draws: Floats

    @classmethod
    def of(cls, shape: tuple[int, int], draws: int) -> Sums:
        """Sums over no subject."""
        plug_in, value, square, variance = np.zeros((4, *shape))
        return cls(np.zeros(shape, np.int64), plug_in, value, square, variance, np.zeros((*shape, draws)))

    def add(self, plug_in: Floats, value: Floats, draws: Floats) -> None:
        """Add one subject."""
        defined = ~np.isnan(value)
        self.count += defined
        self.plug_in += np.where(defined, plug_in, 0)
        self.value += np.where(defined, value, 0)
        self.square += np.where(defined, value * value, 0)
        self.variance += np.where(defined, draws.var(-1), 0)
        self.draws += np.where(defined[..., None], draws, 0)


def mean_uncertainty(sums: Sums, unit: str) -> tuple[Floats, Uncertainty]:
    """The mean of every entry, (r, n), and its uncertainty, for one of UNITS.

    Means of no subject are NaN; so is the uncertainty of the unit "subjects" for fewer than two.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, draws = sums.value / sums.count, sums.draws / sums.count[..., None]
        off = draws - draws.mean(-1, keepdims=True)
        images = (off * off).mean(-1)
        if unit == "images":
            se, (low, high) = np.sqrt(images), np.quantile(off, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
            z = np.where(mean == 0, 0.0, mean / se)
            return mean, Uncertainty(se, mean + low, mean + high, np.where(np.isnan(z), np.nan, two_sided(z)))
        n = sums.count
        between = (sums.square - n * mean * mean) / (n - 1) / n
        shared = np.maximum(images - sums.variance / (n * n), 0)  # errors that all subjects have in common
        se = np.where(n > 1, np.sqrt(np.maximum(between, 0) + shared), np.nan)
        t = np.round(stdtrit(np.maximum(n - 1, 1), (1 + LEVEL) / 2), _DIGITS)
        p = np.round(2 * stdtr(np.maximum(n - 1, 1), -np.abs(mean / se)), _DIGITS)
        return mean, Uncertainty(se, mean - t * se, mean + t * se, p)
