"""How certain a bias or a sensitivity is, given the images behind it (docs/method.md).

All errors and intervals come from draws of `experiments.resampling`, which go through the arithmetic of
`experiments.sensitivity`. The same answers always give the same result, whatever else is in a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.counts import PromptCounts
from seesaw.experiments.estimation import Estimate, bias
from seesaw.experiments.matched import seeds_shared
from seesaw.experiments.normal import two_sided
from seesaw.experiments.resampling import DRAWS, drawn_shares, numbers_of, prior_mass
from seesaw.experiments.settings import AnalysisSettings

__all__ = [
    "LEVEL",
    "Uncertainty",
    "Z",
    "bias_covariance",
    "bias_uncertainty",
    "sensitivity_draws",
    "sensitivity_uncertainty",
    "tau_error",
    "uncertainty_of",
]

Floats = NDArray[np.float64]

LEVEL = 0.95  #: the probability with which an interval contains the true value
Z = 1.96  #: half the width of that interval, in standard errors of a normal distribution


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Standard errors and bounds of values, and the probability `p` of values as far from 0 if all were truly 0.

    All have the shape of the values; they are NaN where a value is undefined.
    """

    se: Floats
    low: Floats
    high: Floats
    p: Floats


def sensitivity_uncertainty(estimated: Estimate) -> Uncertainty:
    """The uncertainty of `estimated.is_matched`, (r, n) each; 0 if probabilities are exact."""
    if estimated.initial.exact and all(counts.exact for counts in estimated.interventions.values()):
        value = estimated.is_matched
        return Uncertainty(0 * value, value, value, np.where(value == 0, 1.0, 0 * value))
    return uncertainty_of(sensitivity_draws(estimated), estimated.is_matched)


def sensitivity_draws(estimated: Estimate, name: str = "") -> Floats:
    """Draws of the plug-in IS, (r, n, DRAWS); NaN where it is undefined.

    Draws of estimates with different names (of subjects) are related by shared seeds alone, so that they may be added.
    """
    initial, interventions, settings = estimated.initial, estimated.interventions, estimated.settings
    number = numbers_of(initial, *interventions.values())
    shared = seeds_shared(initial, interventions)
    draws = np.full((*estimated.sensitivity.shape, DRAWS), np.nan)
    for i, (name, counts) in enumerate(interventions.items()):
        defined = [j for j, value in enumerate(estimated.sensitivity[i]) if not np.isnan(value)]
        axes = [estimated.targets[j] for j in defined]
        masses = {axis: prior_mass(initial.images(axis), counts.images(axis)) for axis in axes}
        before, after = (drawn_shares(each, masses, number, side, name) for side, each in enumerate((initial, counts)))
        pull = dict(zip(estimated.targets, estimated.matched.pull[i].tolist(), strict=True))
        sharing = shared[name]
        if sharing is not None:
            pulled = {axis: mass for axis, mass in masses.items() if pull[axis] > 0}
            for axis, drawn in drawn_shares(sharing, pulled, number, name=name).items():
                before[axis] += pull[axis] * (drawn - before[axis])
        for j, axis in zip(defined, axes, strict=True):
            draws[i, j] = settings.w_bar(axis, before[axis].T) - settings.w_bar(axis, after[axis].T)
    return draws


def uncertainty_of(draws: Floats, value: Floats) -> Uncertainty:
    """The uncertainty of `value` (...), from draws (..., DRAWS) of estimates that may lean.

    An interval is the hull of two: the quantiles of the draws, and of the draws moved so that their mean is `value`.
    `p` is from the normal distribution of `value` in standard errors, or, where the interval reaches farther towards 0
    than 1.96 of them, in what it reaches by. So p is below 0.05 only where the interval leaves out 0.
    """
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
    shift, se = value - draws.mean(-1), draws.std(-1)
    low = np.minimum(np.minimum(low, low + shift), value)
    high = np.maximum(np.maximum(high, high + shift), value)
    to_zero = np.where(value > 0, value - low, high - value) / Z
    spread = np.maximum(se, to_zero)
    z = np.divide(value, spread, out=np.where(value == 0, 0.0, np.inf + 0 * value), where=spread > 0)
    return Uncertainty(se, low, high, np.where(np.isnan(value), np.nan, two_sided(z)))


def bias_uncertainty(counts: PromptCounts, settings: AnalysisSettings) -> Uncertainty:
    """The uncertainty of w-bar of every axis, (n,) each; there is no `p`, since a bias of 0 is not what is tested.

    Intervals are the hull of the quantiles of the draws and of the draws moved by twice what they lean, since the
    observed w leans as well. They begin at 0 where noise around the target alone can give such a w.
    """
    w = bias(counts, settings)
    if counts.exact:
        return Uncertainty(0 * w, w, w, np.full(w.shape, np.nan))
    draws, noise = _bias_draws(counts, settings)
    found = uncertainty_of(draws, np.maximum(2 * w - draws.mean(-1), 0))
    from_target = w <= np.quantile(noise, (1 + LEVEL) / 2, axis=-1)
    low = np.where(from_target, 0 * w, np.maximum(found.low, 0))
    return Uncertainty(found.se, np.minimum(low, w), np.maximum(found.high, w), np.full(w.shape, np.nan))


def bias_covariance(counts: PromptCounts, settings: AnalysisSettings) -> Floats:
    """The covariance of the sampling errors of w-bar of every pair of axes, (n, n); 0 if counts are exact.

    All axes are read from the same images, so their errors are related.
    """
    n = len(counts.by_axis)
    if counts.exact:
        return np.zeros((n, n))
    draws, _ = _bias_draws(counts, settings)
    off = draws - draws.mean(-1, keepdims=True)
    return np.asarray((off[:, None] * off[None, :]).mean(-1))


def tau_error(covariance: Floats, priority: Floats) -> float:
    """The standard error of tau, from the covariance of w (n, n) and the priorities (n,)."""
    return float(np.sqrt(max(0.0, (priority[:, None] * covariance * priority[None, :]).sum())))


def _bias_draws(counts: PromptCounts, settings: AnalysisSettings) -> tuple[Floats, Floats]:
    """Draws of w-bar of every axis, (n, DRAWS), and what they would be if all axes were on target."""
    axes = list(counts.by_axis)
    draws, noise = np.full((2, len(axes), DRAWS), np.nan)
    masses = {axis: prior_mass(counts.images(axis)) for axis in axes if not np.isnan(counts.shares(axis)).any()}
    for axis, drawn in drawn_shares(counts, masses, numbers_of(counts)).items():
        j, off = axes.index(axis), drawn - drawn.mean(-1, keepdims=True)
        draws[j] = settings.w_bar(axis, drawn.T)
        noise[j] = settings.w_bar(axis, settings.targets[axis] + off.T)
    return draws, noise
