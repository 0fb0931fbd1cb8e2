"""Draws of what the same prompts would have shown with other seeds: a Bayesian bootstrap by seed (docs/method.md).

Images of different prompts share their seeds, so a draw weighs seeds and not single images: seed i has the weight
g_i ~ Exp(1) in every prompt (Rubin 1981). A prior keeps attributes possible that no image shows; without it, 48 images
of 48 would count as certain. Every draw is a function of the counts of the prompts that it is about and of the numbers
of their images, so a figure does not depend on what else is in a table.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.counts import PromptCounts

__all__ = ["DRAWS", "drawn_by_prompt", "drawn_shares", "numbers_of", "prior_mass"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 1000  #: draws behind a figure; with another seed, an interval would differ by about 2 % of its width
_SEED = 0
_TOGETHER = 64  #: prompts whose draws are in memory at once


def numbers_of(*counts: PromptCounts) -> Ints:
    """All image numbers of `counts`, (s,), increasing."""
    known = [each.codes.number for each in counts if each.codes is not None]
    return np.unique(np.concatenate([*known, np.empty(0, np.int64)]))


def prior_mass(*images: float) -> float:
    """The prior's images per image, for a comparison of sides with so many images each: one image of the fewest."""
    return 1 / max(1.0, min(images))


def drawn_shares(
    counts: PromptCounts, masses: Mapping[str, float], number: Ints, side: int = 0, name: str = ""
) -> dict[str, Floats]:
    """Draws of the shares of the mixture of m prompts, (k, DRAWS) by axis, for the axes of `masses`.

    `masses` has the prior's mass per image by axis: that of a prompt of n images is n x mass images, spread over the k
    attributes. So shares of few and of many images lean alike. `number` (s,) has the image numbers of all that the
    draws are compared with. `side` tells the prompts before (0) and after (1) an intervention apart, and `name` those
    of different subjects: what they do not owe to shared seeds is drawn independently.
    """
    mixed = {axis: np.zeros((counts.by_axis[axis].shape[-1], DRAWS)) for axis in masses}
    for axis, prompt, weights in _drawn(counts, masses, number, side, name):
        weights *= counts.weights[prompt] / weights.sum(0)
        mixed[axis] += weights
    return mixed


def drawn_by_prompt(
    counts: PromptCounts, masses: Mapping[str, float], number: Ints, side: int = 0, name: str = ""
) -> dict[str, Floats]:
    """As `drawn_shares`, but of every prompt by itself: (m, k, DRAWS) by axis."""
    m = len(counts.weights)
    shares = {axis: np.empty((m, counts.by_axis[axis].shape[-1], DRAWS)) for axis in masses}
    for axis, prompt, weights in _drawn(counts, masses, number, side, name):
        shares[axis][prompt] = weights / weights.sum(0)
    return shares


def _drawn(
    counts: PromptCounts, masses: Mapping[str, float], number: Ints, side: int, name: str
) -> Iterator[tuple[str, int, Floats]]:
    """Axis, number of the prompt, and the weights of its attributes, (k, DRAWS), prompt by prompt."""
    subject = zlib.crc32(name.encode())
    for start in range(0, len(counts.weights) if masses else 0, _TOGETHER):
        prompts = slice(start, start + _TOGETHER)
        drawn = _weighted(counts, list(masses), number, prompts)
        for axis, mass in masses.items():
            observed = np.asarray(counts.by_axis[axis][prompts], np.float64)
            for i, (row, n) in enumerate(zip(observed, observed.sum(-1).tolist(), strict=True)):
                key, prior = (_SEED, side, start + i, zlib.crc32(axis.encode())), _rounded(mass * n) / len(row)
                if drawn is None:
                    rng = np.random.default_rng((*key, subject))
                    weights = rng.standard_gamma((row + prior)[:, None], (len(row), DRAWS))
                else:
                    weights = drawn[axis][i] + np.roll(_prior(key, len(row), prior), subject % DRAWS, axis=-1)
                yield axis, start + i, weights


def _weighted(counts: PromptCounts, axes: Sequence[str], number: Ints, prompts: slice) -> dict[str, Floats] | None:
    """By axis, the weights of the images that show each attribute, summed, (prompts, k, DRAWS); None without codes."""
    if counts.codes is None:
        return None
    at = np.searchsorted(number, counts.codes.number)
    rows, columns, shapes, size = [], [], [], 0
    for axis in axes:
        codes, k = counts.codes.by_axis[axis][prompts], counts.by_axis[axis].shape[-1]
        prompt, column = np.nonzero(codes >= 0)
        rows.append(size + prompt * k + codes[prompt, column])
        columns.append(at[column])
        shapes.append((size, len(codes), k))
        size += len(codes) * k
    where = np.concatenate(rows), np.concatenate(columns)
    from scipy.sparse import csr_array  # not needed by what plans, and a tenth of a second to import

    shows = csr_array((np.ones(len(where[0])), where), shape=(size, len(number)))
    sums = shows @ _seed_weights(len(number))  # a sparse product: no BLAS, whose last bits depend on the processor
    return {
        axis: sums[first : first + m * k].reshape(m, k, DRAWS) for axis, (first, m, k) in zip(axes, shapes, strict=True)
    }


@lru_cache(maxsize=8)
def _seed_weights(seeds: int) -> Floats:
    """The weight of each seed in each draw, (seeds, DRAWS); the first rows are the same however many there are."""
    return np.random.default_rng(_SEED).standard_exponential((seeds, DRAWS))


@lru_cache(maxsize=1024)
def _prior(key: tuple[int, ...], k: int, shape: float) -> Floats:
    """The prior's weights of the k attributes of one axis of one prompt, (k, DRAWS): gamma variates of this shape."""
    return np.random.default_rng(key).standard_gamma(shape, (k, DRAWS))


def _rounded(mass: float) -> float:
    """`mass` to three per cent, so that prompts of about equal numbers of images share the draws of their prior."""
    mantissa, exponent = math.frexp(mass)
    return math.ldexp(round(mantissa * 16) / 16, exponent)
