"""Intervals hold the truth about as often as they say, and never claim what the images cannot carry."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from seesaw.experiments.sensitivity import pool, uniform, w_bar
from seesaw.results.statistics import is_interval, null_draws

HALF = uniform(2)
DISTANCE = partial(w_bar, d=HALF)


@pytest.mark.parametrize(
    ("p_init", "p_after"),
    [
        ([0.9, 0.1], [[1.0, 0.0], [0.1, 0.9]]),
        ([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]),
        ([0.8, 0.1, 0.05, 0.05], [[0.6, 0.2, 0.1, 0.1], [0.9, 0.1, 0, 0], [0.25, 0.25, 0.25, 0.25]]),
    ],
)
def test_a_95_percent_interval_holds_the_truth_about_19_times_in_20(
    p_init: list[float], p_after: list[list[float]]
) -> None:
    distance = partial(w_bar, d=uniform(len(p_init)))
    true = distance(np.array(p_init)) - distance(pool(p_after))
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        init, after = rng.multinomial(48, p_init), np.array([rng.multinomial(48, p) for p in p_after])
        interval = is_interval(init, after, distance, uniform(len(p_after)), draws=400)
        held += int(interval.low <= true <= interval.high)
    assert held >= 180


def test_48_of_48_is_not_certain() -> None:
    interval = is_interval([48, 0], [[48, 0], [48, 0]], DISTANCE, HALF)
    assert interval.low < 0 < interval.high
    assert interval.se > 0


def test_more_images_make_a_narrower_interval() -> None:
    few = is_interval([36, 12], [[40, 8], [10, 38]], DISTANCE, HALF)
    many = is_interval([3600, 1200], [[4000, 800], [1000, 3800]], DISTANCE, HALF)
    assert many.se < few.se / 8
    assert few.low < many.low < many.high < few.high


def test_the_same_counts_give_the_same_interval_and_it_holds_the_observed_value() -> None:
    counts = [48, 0], [[24, 24], [0, 48]]
    first, second = is_interval(*counts, DISTANCE, HALF), is_interval(*counts, DISTANCE, HALF)
    assert first == second
    assert first.low <= 1 - 0.5 <= first.high


@pytest.mark.parametrize("counts", [([0, 0], [[1, 1], [1, 1]]), ([1, 1], [[1, 1], [0, 0]])])
def test_no_images_give_no_interval(counts: tuple[list[int], list[list[int]]]) -> None:
    interval = is_interval(*counts, DISTANCE, HALF)
    assert np.isnan([interval.se, interval.low, interval.high]).all()


def test_weights_decide_what_is_pooled() -> None:
    alone = is_interval([48, 0], [[0, 4800], [2400, 2400]], DISTANCE, [0, 1])
    assert alone.low == pytest.approx(1, abs=0.15)


def test_null_draws_centre_on_the_true_value_with_many_images_and_spread_with_few() -> None:
    p_init, p_after = [0.9, 0.1], [[1.0, 0.0], [0.2, 0.8]]
    true = DISTANCE(np.array(p_init)) - DISTANCE(pool(p_after))
    many = null_draws(p_init, p_after, 100_000, DISTANCE, HALF)
    few = null_draws(p_init, p_after, [48, 48, 40], DISTANCE, HALF)
    assert many.shape == few.shape == (2000,)
    assert many == pytest.approx(float(true), abs=0.02)
    assert few.std() > 10 * many.std()
    np.testing.assert_array_equal(few, null_draws(p_init, p_after, [48, 48, 40], DISTANCE, HALF))
