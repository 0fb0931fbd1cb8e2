"""How a VLM misreads an axis, measured on images that people labelled, and shares corrected for it (docs/method.md).

Row t of a confusion matrix M says how often the VLM reads each attribute in images that show t. If M is the same for
every prompt, the shares q that the VLM reads are those that the images show times M, so p = q M^-1: the matrix method
of misclassification (Kuha and Skinner, "Categorical data analysis and misclassification", 1997). Pure functions on
arrays; k is the number of attributes of an axis, m the number of prompts, B the number of draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "PERMUTATIONS",
    "PRIOR_IMAGES",
    "Accuracy",
    "accuracy",
    "confusion",
    "confusion_counts",
    "confusion_draws",
    "corrected_shares",
    "dependence",
    "shares_of_counts",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PRIOR_IMAGES = 1.5  #: what the prior of each row of M is worth
_TOGETHER = 4_000_000  #: numbers in memory at once while readings are shuffled
_ZERO = 1e-9  #: a pivot below this counts as 0
PERMUTATIONS = 1999  #: of the test whether misreading depends on the prompt


@dataclass(frozen=True)
class Accuracy:
    """How often the VLM's answer is the label, with a 95 % interval (Jeffreys); NaN if no image is labelled."""

    labelled: int
    right: int
    share: float
    low: float
    high: float


def accuracy(right: int, labelled: int) -> Accuracy:
    """The accuracy on `labelled` images of which the VLM reads `right` as they are labelled."""
    if not labelled:
        return Accuracy(0, 0, np.nan, np.nan, np.nan)
    from scipy.stats import beta  # not needed without labels, and half a second to import

    low, high = beta.ppf([0.025, 0.975], right + 0.5, labelled - right + 0.5)
    low, high = (0.0 if right == 0 else float(low)), (1.0 if right == labelled else float(high))
    return Accuracy(labelled, right, right / labelled, low, high)


def confusion_counts(truth: Ints, read: Ints, k: int) -> Ints:
    """How many labelled images show t and are read as r, (k, k), from the positions of both attributes, (n,) each."""
    return np.bincount(truth * k + read, minlength=k * k).reshape(k, k).astype(np.int64)


def _with_prior(counts: ArrayLike) -> Floats:
    """`counts` (k, k) and the prior: each row `PRIOR_IMAGES` images that are read as all labelled ones are.

    That is, right as often as over all rows together, and otherwise as any other attribute. A row of which few images
    are labelled leans on the others so, rather than on no knowledge at all.
    """
    counts = np.asarray(counts, np.float64)
    k = len(counts)
    right = (np.trace(counts) + 1) / (counts.sum() + 1 + 1 / k)
    prior = np.full((k, k), (1 - right) / (k - 1))
    np.fill_diagonal(prior, right)
    return counts + PRIOR_IMAGES * prior


def confusion(counts: ArrayLike) -> Floats:
    """M (k, k) from the counts of labelled images (k, k); each row sums to 1."""
    images = _with_prior(counts)
    return np.asarray(images / images.sum(-1, keepdims=True), np.float64)


def confusion_draws(counts: ArrayLike, draws: int, rng: np.random.Generator) -> Floats:
    """Draws of M (B, k, k): each row from its Dirichlet posterior."""
    images = _with_prior(counts)
    return np.stack([rng.dirichlet(row, draws) for row in images], axis=1)


def corrected_shares(read: ArrayLike, matrix: ArrayLike) -> Floats:
    """p = clip(q M^-1), renormalised: shares as read, q (..., m, k), and M (..., k, k) -> (..., m, k).

    A matrix that cannot be inverted (two attributes that are read alike) gives NaN, as does NaN.
    """
    read, inverse = np.asarray(read, np.float64), _inverse(np.asarray(matrix, np.float64))
    shares = sum(read[..., :, j, None] * inverse[..., None, j, :] for j in range(inverse.shape[-1]))
    return shares_of_counts(np.clip(shares, 0, None))


def _inverse(matrix: Floats) -> Floats:
    """The inverses of matrices (..., k, k), NaN where a pivot is 0. Gauss-Jordan, since BLAS' last bits may differ."""
    k = matrix.shape[-1]
    left = np.concatenate([matrix, np.broadcast_to(np.eye(k), matrix.shape)], -1)
    for j in range(k):
        pivot = left[..., j, j, None]
        row = left[..., j, :] / np.where(np.abs(pivot) < _ZERO, np.nan, pivot)
        left = left - left[..., :, j, None] * row[..., None, :]
        left[..., j, :] = row
    return np.asarray(left[..., k:], np.float64)


def shares_of_counts(values: Floats) -> Floats:
    """Non-negative `values` (..., k) divided by their sum; NaN where that is 0."""
    total = values.sum(-1, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.full(values.shape, np.nan), where=total > 0), np.float64)


def dependence(
    truth: Ints,
    read: Ints,
    groupings: Sequence[Ints],
    k: int,
    rng: np.random.Generator,
    permutations: int = PERMUTATIONS,
) -> float:
    """p-value of "which prompt an image is of says nothing about how its truth is misread", n labelled images.

    `groupings` (n,) each number the images by one property of their prompts: its model, its subject, what it states.
    For each, the statistic is Pearson's, summed over the truths: sum (observed - expected)^2 / expected over groups and
    readings of images of the same truth. Its distribution comes from permuting the groups among images of the same
    truth, so it is exact however few images there are (Good, "Permutation tests", 2000). The smallest p-value times
    their number (Bonferroni) is returned, at most 1; 1 where no grouping has two groups.
    """
    distinct = [codes for codes in groupings if len(codes) and np.ptp(codes)]
    if not distinct or (truth == read).all():
        return 1.0
    order = np.argsort(truth, kind="stable")
    truth, read = truth[order], read[order]
    tables = [_Grouped.of(truth, read, codes[order], k) for codes in distinct]
    observed = [table.statistic(read[None])[0] for table in tables]
    exceeded = np.ones(len(tables))
    together = max(1, _TOGETHER // (k * len(truth)))
    for start in range(0, PERMUTATIONS, together):
        random = rng.random((min(together, PERMUTATIONS - start), len(truth)))
        # readings move among images of the same truth and groups stay: one shuffle serves all groupings
        moved = read[np.argsort(truth + random, axis=1)]
        exceeded += [(t.statistic(moved) >= at * (1 - 1e-9)).sum() for t, at in zip(tables, observed, strict=True)]
    return float(min(1.0, len(tables) * exceeded.min() / (PERMUTATIONS + 1)))


@dataclass(frozen=True, eq=False)
class _Grouped:
    """Images by pairs of truth and group, u of them that occur: `pair` (n,), and the readings to expect, (u, k)."""

    pair: Ints
    expected: Floats

    @classmethod
    def of(cls, truth: Ints, read: Ints, group: Ints, k: int) -> _Grouped:
        pairs, pair = np.unique(truth * (group.max() + 1) + group, return_inverse=True)
        of_truth = pairs // (group.max() + 1)
        readings = confusion_counts(truth, read, k)
        share = readings / np.maximum(readings.sum(1, keepdims=True), 1)
        return cls(pair.astype(np.int64), np.bincount(pair)[:, None] * share[of_truth])

    def statistic(self, read: Ints) -> Floats:
        """Pearson's statistic, but for a constant, of every shuffle of the readings, (s, n) -> (s,)."""
        u, k = self.expected.shape
        cells = (np.arange(len(read))[:, None] * u + self.pair) * k + read
        table = np.bincount(cells.ravel(), minlength=len(read) * u * k).reshape(len(read), u, k)
        rate = np.divide(1.0, self.expected, out=np.zeros((u, k)), where=self.expected > 0)
        return np.asarray((np.square(table) * rate).sum((1, 2)), np.float64)
