"""How sure an intersectional sensitivity is, given the number of images behind it.

The distance is passed in as a function of shares, since the arithmetic of sensitivity lives a room above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "is_interval", "null_draws"]

Floats = NDArray[np.float64]
Distance = Callable[[Floats], Floats]  #: w-bar of shares (..., k) from a target that it knows -> (...)


@dataclass(frozen=True)
class Interval:
    """Standard error and bounds of one IS value; all NaN where the value is undefined."""

    se: float
    low: float
    high: float


def is_interval(
    counts_init: ArrayLike,
    counts_after: ArrayLike,
    distance: Distance,
    weights: ArrayLike,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """The interval that holds the true IS with probability `level`, from counts of images.

    `counts_init` (k,), `counts_after` (m, k) over the m counterfactuals that are pooled by `weights` (m,). Shares are
    drawn from their Dirichlet posterior, with a prior worth one image spread over the k attributes: a plain bootstrap
    would call 48 images of 48 certain. In simulations with 48 images a prompt, 95 % intervals held the truth 92 to 100
    times in 100.
    The same counts always give the same interval, whatever else is in the table.
    """
    init, after = np.asarray(counts_init, np.float64), np.asarray(counts_after, np.float64)
    if init.sum() == 0 or (after.sum(-1) == 0).any():
        return Interval(np.nan, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    prior = 1 / init.size
    p_init = rng.dirichlet(init + prior, draws)
    p_after = np.stack([rng.dirichlet(counts + prior, draws) for counts in after])
    values = distance(p_init) - distance(_pooled(p_after, weights))
    observed = distance(init / init.sum()) - distance(_pooled(after / after.sum(-1, keepdims=True), weights))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    # Where the observed value is the largest possible, all draws can lie to one side of it.
    return Interval(float(values.std()), float(min(low, observed)), float(max(high, observed)))


def null_draws(
    p_init: ArrayLike,
    p_after: ArrayLike,
    images: int | Sequence[int],
    distance: Distance,
    weights: ArrayLike,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> Floats:
    """IS as measured on samples of images, (draws,), when the true shares are known: what sampling alone does to it.

    `p_init` (k,), `p_after` (m, k); `images` is the number of valid images of each prompt, or 1 + m numbers, the
    initial prompt first.
    """
    init, after = np.asarray(p_init, np.float64), np.asarray(p_after, np.float64)
    n_init, *n_after = [images] * (1 + len(after)) if isinstance(images, int) else images
    rng = np.random.default_rng(seed)
    drawn_init = rng.multinomial(n_init, init, draws) / n_init
    drawn_after = np.stack([rng.multinomial(n, p, draws) / n for n, p in zip(n_after, after, strict=True)])
    return distance(drawn_init) - distance(_pooled(drawn_after, weights))


def _pooled(shares: Floats, weights: ArrayLike) -> Floats:
    """Shares (m, ..., k) averaged over m by `weights` (m,) -> (..., k)."""
    return np.asarray(np.tensordot(np.asarray(weights, np.float64), shares, axes=1), np.float64)
