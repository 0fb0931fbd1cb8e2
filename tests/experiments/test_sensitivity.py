"""The arithmetic agrees with scipy and POT, with the paper's figures, and with itself."""

from __future__ import annotations

import numpy as np
import ot
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance

from seesaw.experiments.sensitivity import (
    METRICS,
    Metric,
    check_target,
    gamma,
    intersectional_sensitivity,
    mixture,
    normaliser,
    tau,
    uniform,
    w1,
    w_bar,
)
from seesaw.results.errors import ConfigError

Floats = NDArray[np.float64]


def distribution(k: int) -> st.SearchStrategy[Floats]:
    weights = arrays(np.float64, k, elements=st.floats(0, 1))
    return weights.filter(lambda w: bool(w.sum() > 1e-3)).map(lambda w: w / w.sum())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Floats, Floats]:
    k = draw(st.integers(2, 8))
    return draw(distribution(k)), draw(distribution(k))


@given(pairs())
def test_nominal_is_the_earth_movers_distance_over_0_1_ground_distances(pair: tuple[Floats, Floats]) -> None:
    p, d = pair
    assert w1(p, d, "nominal") == pytest.approx(ot.emd2(p, d, 1.0 - np.eye(len(p))), abs=1e-9)


@given(pairs())
def test_ordinal_is_the_earth_movers_distance_along_positions(pair: tuple[Floats, Floats]) -> None:
    p, d = pair
    at = np.arange(len(p))
    assert w1(p, d, "ordinal") == pytest.approx(wasserstein_distance(at, at, p, d), abs=1e-9)
    assert w1(p, d, "ordinal") == pytest.approx(ot.emd2(p, d, np.abs(at[:, None] - at) * 1.0), abs=1e-9)


@given(pairs())
def test_values_is_scipys_distance_of_the_shares_as_samples(pair: tuple[Floats, Floats]) -> None:
    p, d = pair
    assert w1(p, d, "values") == pytest.approx(wasserstein_distance(p, d), abs=1e-9)


@given(pairs(), st.sampled_from(METRICS))
def test_w_bar_from_uniform_lies_between_0_and_1(pair: tuple[Floats, Floats], metric: Metric) -> None:
    p, _ = pair
    assert -1e-9 <= w_bar(p, uniform(len(p)), metric) <= 1 + 1e-9


@given(pairs())
def test_nominal_and_values_agree_on_a_uniform_target(pair: tuple[Floats, Floats]) -> None:
    p, _ = pair
    d = uniform(len(p))
    assert w_bar(p, d, "nominal") == pytest.approx(w_bar(p, d, "values"), abs=1e-9)


@given(pairs(), st.randoms(use_true_random=False))
def test_nominal_does_not_depend_on_the_order_of_attributes(pair: tuple[Floats, Floats], random: object) -> None:
    p, d = pair
    order = list(range(len(p)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert w_bar(p[order], d[order]) == pytest.approx(w_bar(p, d), abs=1e-9)


@given(pairs(), st.sampled_from(METRICS))
def test_is_lies_between_minus_1_and_1_on_a_uniform_target(pair: tuple[Floats, Floats], metric: Metric) -> None:
    p, q = pair
    d = uniform(len(p))
    assert abs(intersectional_sensitivity(w_bar(p, d, metric), w_bar(q, d, metric))) <= 1 + 1e-9


@pytest.mark.parametrize("metric", ["nominal", "values"])
@pytest.mark.parametrize("k", range(2, 9))
def test_one_attribute_alone_scores_1(metric: Metric, k: int) -> None:
    assert w_bar(np.eye(k), uniform(k), metric) == pytest.approx(np.ones(k))


def test_ordinal_scores_1_at_the_ends_and_less_in_the_middle() -> None:
    assert w_bar(np.eye(3), uniform(3), "ordinal") == pytest.approx([1, 2 / 3, 1])


def test_normalisers_are_the_designs() -> None:
    assert [normaliser(4, metric) for metric in METRICS] == [3 / 4, 3 / 2, 6 / 16]
    with pytest.raises(ValueError, match="two attributes or more, not 1"):
        normaliser(1)


def test_the_papers_figures_for_clothing_come_out() -> None:
    """48 of 48 formal at first, 54 of 96 after the intervention, 47 of 48 in the real images."""
    init, after = np.array([48, 0]) / 48, np.array([54, 42]) / 96
    real = np.array([47, 1]) / 48
    for metric in ("nominal", "ordinal"):
        towards = intersectional_sensitivity(w_bar(init, uniform(2), metric), w_bar(after, uniform(2), metric))
        away = intersectional_sensitivity(w_bar(init, real, metric), w_bar(after, real, metric))
        assert towards == pytest.approx(0.875)
        assert away == pytest.approx(-0.7917, abs=5e-5)


def test_a_skewed_target_can_take_w_bar_past_1() -> None:
    assert w_bar([0, 1], [47 / 48, 1 / 48]) == pytest.approx(47 / 24)


def test_distances_carry_leading_axes_along() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), (4, 5))
    d = np.array([0.2, 0.3, 0.5])
    for metric in METRICS:
        whole = w_bar(p, d, metric)
        assert whole.shape == (4, 5)
        assert whole[2, 3] == pytest.approx(w_bar(p[2, 3], d, metric))


@pytest.mark.parametrize("metric", METRICS)
def test_nan_shares_give_a_nan_distance(metric: Metric) -> None:
    assert np.isnan(w_bar(np.full(3, np.nan), uniform(3), metric))
    assert np.isnan(intersectional_sensitivity(np.nan, 0.5))


@given(
    st.integers(2, 5).flatmap(lambda m: st.tuples(st.lists(distribution(4), min_size=m, max_size=m), distribution(m)))
)
def test_pooled_shares_are_the_weighted_mean_and_sum_to_1(case: tuple[list[Floats], Floats]) -> None:
    shares, weights = np.array(case[0]), case[1]
    assert mixture(shares) == pytest.approx(shares.mean(0))
    assert mixture(shares, weights) == pytest.approx(np.average(shares, axis=0, weights=weights))
    assert mixture(shares, weights).sum() == pytest.approx(1)


def test_one_undefined_counterfactual_leaves_the_pool_undefined_even_at_weight_0() -> None:
    shares = np.array([[0.5, 0.5], [np.nan, np.nan]])
    assert np.isnan(mixture(shares)).all()
    assert np.isnan(mixture(shares, [1, 0])).all()
    assert not np.isnan(mixture(np.stack([shares, np.ones((2, 2)) / 2]))[1]).any()


def test_tau_and_gamma_weigh_by_priority() -> None:
    assert tau([0.5, 1.0], [0.25, 0.75]) == pytest.approx(0.875)
    assert gamma([[0.5, 0.1], [0.2, 0.4]], [0.5, 0.5]) == pytest.approx([0.3, 0.3])
    assert np.isnan(tau([np.nan, 1.0], [0, 1]))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0.5, 0.4], "the target of axis 'gender' sums to 0.9; shares must sum to 1"),
        ([1.5, -0.5], "gives 'male' 1.5; a share must be between 0 and 1"),
        ([np.nan, 1], "gives 'male' nan"),
        ([1.0], "has 1 shares for its 2 attributes \\(male, female\\)"),
        ([[0.5, 0.5]], "has 2 shares"),
    ],
)
def test_a_target_that_is_no_distribution_is_refused(target: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_target(target, ("male", "female"), "gender")  # type: ignore[arg-type]


def test_a_target_rounded_to_six_decimals_is_taken_to_sum_to_1() -> None:
    assert check_target([0.333333] * 2 + [0.333334], "abc", "x").sum() == pytest.approx(1, abs=1e-15)


def test_an_unknown_metric_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="unknown metric 'cosine'"):
        w1([1, 0], [0.5, 0.5], "cosine")  # type: ignore[arg-type]


@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_a_target_that_is_checked_again_is_the_same_to_the_last_bit(k, seed):
    shares = np.random.default_rng(seed).dirichlet(np.ones(k)).round(6)
    shares[0] += 1 - shares.sum()
    assume(shares[0] >= 0)
    names = [str(i) for i in range(k)]
    once = check_target(shares, names, "axis")
    assert check_target(once.tolist(), names, "axis").tolist() == once.tolist()
    even = np.full(k, 1 / k)
    assert check_target(even, names, "axis").tolist() == even.tolist()
