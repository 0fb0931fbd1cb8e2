"""Intervals hold the truth about as often as they say, and never claim what the images cannot carry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seesaw.experiments.counts import PromptCounts
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.estimation import estimate
from seesaw.experiments.sensitivity import mixture, uniform, w_bar
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.uncertainty import Uncertainty, bias_covariance, bias_uncertainty, sensitivity_uncertainty

DATASET = load_dataset("occupation")
#: an axis with two attributes, and one with six
AXIS = {2: "gender", 6: "ethnicity"}


def settings_of(k: int) -> AnalysisSettings:
    return make_settings(DATASET.select(axes=[AXIS[k]]))


def interval(init, after, weights=None) -> Uncertainty:
    """The interval of IS of one axis: counts (k,) at first, (m, k) after the intervention."""
    k = len(init)
    settings = settings_of(k)
    first = PromptCounts({AXIS[k]: np.array([init])}, np.ones(1))
    intervened = PromptCounts({AXIS[k]: np.array(after)}, uniform(len(after)) if weights is None else np.array(weights))
    found = sensitivity_uncertainty(estimate(first, {"x": intervened}, settings))
    return Uncertainty(*(each[0, 0] for each in (found.se, found.low, found.high, found.p)))


@pytest.mark.parametrize(
    ("p_init", "p_after"),
    [
        ([0.9, 0.1], [[1.0, 0.0], [0.1, 0.9]]),
        ([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]),
        ([0.75, 0.1, 0.05, 0.05, 0.03, 0.02], [[0.6, 0.1, 0.1, 0.1, 0.05, 0.05], [0.9, 0.1, 0, 0, 0, 0]]),
    ],
)
def test_a_95_percent_interval_holds_the_truth_about_19_times_in_20(
    p_init: list[float], p_after: list[list[float]]
) -> None:
    target = uniform(len(p_init))
    true = w_bar(p_init, target) - w_bar(mixture(p_after), target)
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        found = interval(rng.multinomial(48, p_init), [rng.multinomial(48, p) for p in p_after])
        held += int(found.low <= true <= found.high)
    assert held >= 180


def test_48_of_48_is_not_certain() -> None:
    found = interval([48, 0], [[48, 0], [48, 0]])
    assert found.low < 0 < found.high
    assert found.se > 0


def test_more_images_make_a_narrower_interval() -> None:
    few = interval([36, 12], [[40, 8], [10, 38]])
    many = interval([3600, 1200], [[4000, 800], [1000, 3800]])
    assert many.se < few.se / 8
    assert few.low < many.low < many.high < few.high


def test_the_same_counts_give_the_same_interval_and_it_holds_the_estimate() -> None:
    counts = [48, 0], [[24, 24], [0, 48]]
    first, second = interval(*counts), interval(*counts)
    assert repr(first) == repr(second)
    assert first.low <= 1 - 0.5 <= first.high


@pytest.mark.parametrize("counts", [([0, 0], [[1, 1], [1, 1]]), ([1, 1], [[1, 1], [0, 0]])])
def test_no_images_give_no_interval(counts: tuple[list[int], list[list[int]]]) -> None:
    found = interval(*counts)
    assert np.isnan([found.se, found.low, found.high]).all()


def test_weights_decide_what_an_intervention_is_made_of() -> None:
    assert interval([48, 0], [[0, 4800], [2400, 2400]], [0, 1]).low == pytest.approx(1, abs=0.15)


def test_exact_probabilities_have_no_error() -> None:
    settings = settings_of(2)
    exact = PromptCounts({"gender": np.array([[30.0, 18.0]])}, np.ones(1), exact=True)
    assert bias_uncertainty(exact, settings).se.tolist() == [0]
    found = estimate(exact, {"gender": exact}, settings)
    assert found.is_matched.tolist() == found.sensitivity.tolist()
    assert sensitivity_uncertainty(found).se.tolist() == [[0]]
    assert (bias_covariance(replace(exact, exact=False), settings) > 0).all()


def test_the_error_of_a_bias_is_the_spread_of_bias_over_images_drawn_again() -> None:
    """w of gender is |2p - 1|, so its standard error is twice that of p, here of two prompts that weigh 0.2 and 0.8."""
    weights, n, p = np.array([0.2, 0.8]), np.array([50, 300]), np.array([0.9, 0.7])
    counts = PromptCounts({"gender": np.stack([n * p, n * (1 - p)], 1)}, weights)
    expected = 2 * np.sqrt((weights**2 * p * (1 - p) / n).sum())
    assert bias_uncertainty(counts, settings_of(2)).se[0] == pytest.approx(expected, rel=0.1)
