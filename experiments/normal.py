"""The normal distribution, to seven digits, with the same bits on every processor.

numpy's and the C library's `exp` choose their instructions by processor, and with them the last bit of a result. Here
there are sums, products and square roots alone, which IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["density", "mean_distance", "two_sided"]

Floats = NDArray[np.float64]

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.42860682030941723212e-6
#: coefficients of the approximation of erfc, from the constant upwards (Press et al., Numerical Recipes, "erfcc")
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)  # fmt: skip


def density(z: ArrayLike) -> Floats:
    """The standard normal density at `z` (...) -> (...)."""
    z = np.asarray(z, np.float64)
    return np.asarray(_exp(-z * z / 2) / np.sqrt(2 * np.pi))


def two_sided(z: ArrayLike) -> Floats:
    """The probability that a standard normal number is at least as far from 0 as `z` (...) -> (...)."""
    x = np.abs(np.asarray(z, np.float64)) / np.sqrt(2.0)
    t = 1 / (1 + x / 2)
    # the approximation is 1.0000001 at 0
    return np.asarray(np.minimum(t * _exp(_polynomial(_ERFC, t) - x * x), 1.0))


def mean_distance(d: ArrayLike, v: ArrayLike) -> Floats:
    """The mean of |d + e|, with e normal, of mean 0 and variance `v` >= 0: two arrays (...) -> (...).

    It is sqrt(2 v / pi) exp(-d^2 / 2v) + |d| (1 - 2 Phi(-|d| / sqrt v)), and |d| for v = 0.
    """
    d, spread = np.abs(np.asarray(d, np.float64)), np.sqrt(np.asarray(v, np.float64))
    z = np.divide(d, spread, out=np.zeros(np.broadcast(d, spread).shape), where=spread > 0)
    near = spread * np.sqrt(2 / np.pi) * _exp(-z * z / 2) + d * (1 - two_sided(z))
    return np.asarray(np.where(spread > 0, near, d + 0 * spread), np.float64)


def _exp(x: Floats) -> Floats:
    """e^x for x <= 0, to about 1e-15 of its value; 0 below -700."""
    x = np.maximum(x, -700.0)
    n = np.rint(x * _LOG2E)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    series = np.ones_like(r)
    for i in range(13, 0, -1):
        series = 1 + series * r / i
    undefined = np.isnan(n)
    return np.asarray(np.ldexp(series, np.where(undefined, 0, n).astype(np.int32)))


def _polynomial(coefficients: tuple[float, ...], t: Floats) -> Floats:
    value = np.zeros_like(t)
    for coefficient in reversed(coefficients):
        value = value * t + coefficient
    return value
