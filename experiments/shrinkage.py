"""What the strongest of many entries are likely to be: shrunken values and wider intervals (docs/method.md).

The largest of many estimates are large by luck too. Shrinkage takes that back in the mean. Intervals are widened, so
that those of the entries that were picked contain the true value as often as they say.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.normal import density
from seesaw.experiments.significance import FALSE_DISCOVERIES
from seesaw.experiments.uncertainty import Z

__all__ = ["picked_width", "shrunken"]

Floats = NDArray[np.float64]

_SPREADS = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])  # of true values around 0, in the mixture
_STEPS = 200  # of the fit; later ones change values by less than is shown


def shrunken(values: Floats, errors: Floats) -> Floats:
    """The mean of each true value, given `values` (n,) with standard `errors` (n,) of one model -> (n,).

    True values are drawn from a mixture of normal distributions around 0, of several spreads, and the mixture is
    fitted to all n values by expectation and maximisation. Source: Stephens 2017, "False discovery rates: a new deal".
    """
    if not len(values):
        return values
    errors = np.maximum(errors, 1e-6)[:, None]
    spread = np.sqrt(errors**2 + _SPREADS**2)
    likelihood = density(values[:, None] / spread) / spread
    share = np.full(len(_SPREADS), 1 / len(_SPREADS))
    for _ in range(_STEPS):
        share = _belonging(likelihood, share).mean(0)
    return np.asarray((_belonging(likelihood, share) * (_SPREADS**2 / spread**2)).sum(1) * values)


def _belonging(likelihood: Floats, share: Floats) -> Floats:
    """How probably each value comes from each part of the mixture, (n, parts)."""
    weighed = likelihood * share
    total = weighed.sum(1, keepdims=True)
    return np.asarray(np.where(total > 0, weighed / np.where(total > 0, total, 1), share))


def picked_width(picked: int, tests: int) -> float:
    """How much wider a 95 % interval is if its entry is one of `picked` out of so many `tests`; 1 if all are picked.

    Source: Benjamini and Yekutieli 2005, false coverage rate: intervals of level 1 - picked / tests x 5 %.
    """
    if not 0 < picked < tests:
        return 1.0
    return NormalDist().inv_cdf(1 - FALSE_DISCOVERIES * picked / tests / 2) / Z
