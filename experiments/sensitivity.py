"""The arithmetic of intersectional sensitivity (docs/method.md; the paper's equations 1 to 4 and algorithm 1).

Pure functions on arrays, one function per equation. k is the number of attributes of an axis, m the number of prompts
in a mixture, n the number of axes; leading dimensions "..." are kept. Shares and distances have no unit. NaN in gives
NaN out. No function uses BLAS, whose last bit depends on the processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seesaw.results.errors import ConfigError
from seesaw.results.tables.mitigation import weighted_sum

__all__ = [
    "METRICS",
    "ROUNDING",
    "VARIES",
    "Metric",
    "check_target",
    "correlation",
    "gamma",
    "intersectional_sensitivity",
    "mixture",
    "normaliser",
    "shares",
    "tau",
    "uniform",
    "w1",
    "w_bar",
]

Metric = Literal["nominal", "ordinal", "values"]
METRICS: tuple[Metric, ...] = get_args(Metric)

Floats = NDArray[np.float64]
VARIES = 1e-9  #: values whose range is at most this count as constant: they differ only in the last bits of sums
ROUNDING = 5e-7  #: rounding error of a number written with six decimals; a sum of k of them may be off by k times this


def uniform(k: int) -> Floats:
    """The paper's ideal distribution D*: k equal shares, (k,)."""
    return np.full(k, 1 / k)


def w1(p: ArrayLike, d: ArrayLike, metric: Metric = "nominal") -> Floats:
    """Wasserstein-1 distance W1(p, d) of shares p (..., k) from the target d (k,) -> (...) (the paper's equation 1).

    `nominal`: ground distance 0/1. `ordinal`: attributes at positions 0..k-1, distance |i - j|.
    `values`: the k shares are taken as samples of a number, as in older code, whichever attribute has which share.
    Raises ValueError for any other metric.
    """
    p, d = np.asarray(p, np.float64), np.asarray(d, np.float64)
    match metric:
        case "nominal":
            distance = np.abs(p - d).sum(-1) / 2
        case "ordinal":
            distance = np.abs(np.cumsum(p - d, axis=-1)[..., :-1]).sum(-1)
        case "values":
            distance = np.abs(np.sort(p, axis=-1) - np.sort(d, axis=-1)).mean(-1)
        case _:
            raise ValueError(f"unknown metric {metric!r}; known: {', '.join(METRICS)}")
    return np.asarray(distance, np.float64)


def normaliser(k: int, metric: Metric = "nominal") -> float:
    """The largest W1 that k shares can have from the uniform target; it depends on k and the metric alone.

    Raises ValueError for k < 2 and for an unknown metric.
    """
    if k < 2:
        raise ValueError(f"an axis has two attributes or more, not {k}")
    match metric:
        case "nominal":
            return (k - 1) / k
        case "ordinal":
            return (k - 1) / 2
        case "values":
            return 2 * (k - 1) / k**2
        case _:
            raise ValueError(f"unknown metric {metric!r}; known: {', '.join(METRICS)}")


def w_bar(p: ArrayLike, d: ArrayLike, metric: Metric = "nominal") -> Floats:
    """Normalised distance w-bar of shares p (..., k) from the target d (k,) -> (...) (the paper's equation 2).

    It is in [0, 1] for a uniform target. With a skewed target it can exceed 1; it is not clipped.
    """
    return w1(p, d, metric) / normaliser(np.shape(d)[-1], metric)


def shares(counts: ArrayLike) -> Floats:
    """Observed shares p of counts (..., k) -> (..., k), each row summing to 1; NaN where nothing was counted."""
    counts = np.asarray(counts, np.float64)
    total = counts.sum(-1, keepdims=True)
    observed: Floats = np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    return observed


def mixture(shares: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """The mixture of the distributions of m prompts: shares (..., m, k) -> (..., k) (the paper's equation 3).

    Intervening on axis x simulates a model in which the counterfactuals of x are all present: their mixture. Prompts
    have equal weights, or `weights` (m,), however many images each has. The result is NaN where any prompt is NaN, even
    one of weight 0.
    """
    shares = np.asarray(shares, np.float64)
    weights = uniform(shares.shape[-2]) if weights is None else np.asarray(weights, np.float64)
    mixed = (weights[:, None] * shares).sum(-2)
    undefined = np.isnan(shares).any((-2, -1))
    return np.asarray(np.where(undefined[..., None], np.nan, mixed), np.float64)


def intersectional_sensitivity(w_init: ArrayLike, w_after: ArrayLike) -> Floats:
    """IS[x, y] = w-bar(y, initial) - w-bar(y, intervening on x) (the paper's equation 4), of any shape.

    It is positive where mitigating x improves y.
    """
    return np.asarray(w_init, np.float64) - np.asarray(w_after, np.float64)


def tau(w: ArrayLike, priority: ArrayLike) -> Floats:
    """InterMit's overall bias <w, priority> (algorithm 1): w (..., n), priority (n,) -> (...).

    An axis that is not chosen has priority 0.
    """
    return weighted_sum(w, priority)


def gamma(s: ArrayLike, priority: ArrayLike) -> Floats:
    """InterMit's gain of mitigating each axis, gamma_i = <S'_i, priority> (algorithm 1): priority (n,) -> (...).

    S' (..., n) has the rows of S whose axes are not mitigated yet. An axis that is not chosen has priority 0.
    """
    return weighted_sum(s, priority)


def correlation(x: Floats, y: Floats) -> float:
    """Pearson correlation of x (n,) and y (n,); NaN if one of them is constant or empty."""
    if not len(x) or min(np.ptp(x), np.ptp(y)) <= VARIES:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum()))


def _rounding(shares: Floats) -> float:
    """The rounding error that each of these shares may have: just below half of the last decimal place written.

    Shares with two or more decimals may be rounded (0.333 three times). With one decimal, a sum other than 1 is taken
    as a mistake: nobody would write 0.5 and 0.4 as two rounded shares.
    """
    decimals = max(-int(Decimal(repr(float(share))).as_tuple().exponent) for share in shares)
    return max(0.4999 * 10.0**-decimals, ROUNDING) if decimals >= 2 else ROUNDING


def check_target(target: ArrayLike, attributes: Sequence[str], axis: str) -> Floats:
    """`target` as (k,) shares that sum to one. Raises ConfigError unless it is a distribution over `attributes`."""
    shares = np.asarray(target, np.float64)
    if shares.shape != (len(attributes),):
        raise ConfigError(
            f"the target of axis '{axis}' has {shares.size} shares for its {len(attributes)} attributes "
            f"({', '.join(attributes)})"
        )
    for attribute, share in zip(attributes, shares, strict=True):
        if not 0 <= share <= 1:
            raise ConfigError(
                f"the target of axis '{axis}' gives '{attribute}' {share:g}; a share must be between 0 and 1"
            )
    if abs(shares.sum() - 1) > _rounding(shares) * max(2, len(shares)):
        raise ConfigError(f"the target of axis '{axis}' sums to {shares.sum():g}; shares must sum to 1")
    # shares that sum to 1 stay bit-identical, so a target that is written and read again is the same target
    return shares if abs(shares.sum() - 1) < 1e-12 else np.asarray(shares / shares.sum(), np.float64)
