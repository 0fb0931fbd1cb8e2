"""The estimate that is shown does not lean, whatever the numbers of images; its errors are those of shared seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from seesaw.experiments.counts import ImageCodes, PromptCounts
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.estimation import Estimate, estimate
from seesaw.experiments.normal import mean_distance, two_sided
from seesaw.experiments.sensitivity import uniform
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.uncertainty import (
    bias_covariance,
    bias_uncertainty,
    sensitivity_draws,
    sensitivity_uncertainty,
    tau_error,
)

DATASET = load_dataset("occupation")
AXIS = {2: "gender", 3: "age", 6: "ethnicity"}
SKEWED = {2: [0.8, 0.2], 3: [0.6, 0.3, 0.1], 6: [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]}


def settings_of(k: int, metric: str = "nominal", target: list[float] | None = None) -> AnalysisSettings:
    targets = None if target is None else {AXIS[k]: target}
    return make_settings(DATASET.select(axes=[AXIS[k]]), metric, targets)


def counts_of(axis: str, k: int, codes: np.ndarray, paired: bool = True) -> PromptCounts:
    """The counts of prompts whose images show `codes` (m, s)."""
    counts = (codes[..., None] == np.arange(k)).sum(1)
    images = ImageCodes(np.arange(codes.shape[1]), {axis: codes.astype(np.int8)})
    return PromptCounts({axis: counts}, uniform(len(codes)), codes=images if paired else None)


def null(k: int, p: list[float], first: int, after: int, settings: AnalysisSettings, rng, paired: bool = True):
    """An estimate in which nothing changes: all prompts show shares `p`."""
    axis = AXIS[k]
    initial, rest = (rng.choice(k, size, p=p) for size in ((1, first), (k, after)))
    sides = [counts_of(axis, k, codes, paired) for codes in (initial, rest)]
    return estimate(sides[0], {axis: sides[1]}, settings)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("first", "after"), [(48, 48), (192, 48), (16, 16), (480, 48)])
@pytest.mark.parametrize(
    ("k", "metric", "target"),
    [
        (2, "nominal", None), (6, "nominal", None), (3, "ordinal", None), (6, "ordinal", None), (6, "values", None),
        (3, "nominal", SKEWED[3]), (3, "ordinal", SKEWED[3]),
    ],
)  # fmt: skip
def test_where_nothing_changes_on_a_fair_axis_the_estimate_is_0_in_the_mean(k, metric, target, first, after, paired):
    settings, rng = settings_of(k, metric, target), np.random.default_rng(3)
    p = uniform(k).tolist() if target is None else target
    found = [null(k, p, first, after, settings, rng, paired) for _ in range(300)]
    shown = np.array([each.is_matched[0, 0] for each in found])
    lean = 0.010 if after > 16 else 0.025  # 16 images tell little of variances
    assert abs(shown.mean()) < lean + 2 * shown.std() / np.sqrt(300)
    if first == after:  # the plug-in value leans, since the intervention has k times the images
        assert np.mean([each.sensitivity[0, 0] for each in found]) > 0.25 / np.sqrt(first * k)


def test_sorted_shares_of_a_skewed_target_do_not_lean_much() -> None:
    """`values` takes the order as it was observed, so its noise is matched less well than that of other metrics."""
    settings, rng = settings_of(3, "values", SKEWED[3]), np.random.default_rng(3)
    found = [null(3, SKEWED[3], 48, 48, settings, rng) for _ in range(300)]
    shown, plug_in = (np.mean([getattr(each, name) for each in found]) for name in ("is_matched", "sensitivity"))
    assert abs(shown) < 0.015 < plug_in


def test_far_from_the_target_both_estimates_agree() -> None:
    settings, rng = settings_of(2), np.random.default_rng(0)
    codes = rng.choice(2, (1, 400), p=[0.9, 0.1]), rng.choice(2, (2, 400), p=[0.7, 0.3])
    found = estimate(*(counts_of("gender", 2, codes[0]), {"gender": counts_of("gender", 2, codes[1])}), settings)
    assert found.is_matched == pytest.approx(found.sensitivity, abs=1e-6)


def correlated(first: int, after: int, share: float, rng: np.random.Generator) -> Estimate:
    """Images of one number show the same in every prompt with probability `share`, else what chance says."""
    common = rng.integers(0, 2, max(first, after))
    initial, rest = (
        np.where(rng.random((m, n)) < share, common[:n], rng.integers(0, 2, (m, n)))
        for m, n in ((1, first), (2, after))
    )
    return estimate(counts_of("gender", 2, initial), {"gender": counts_of("gender", 2, rest)}, settings_of(2))


def test_prompts_that_share_their_seeds_share_their_errors() -> None:
    """The error of a difference of related sides is smaller: at 0.9, by more than a third."""
    rng = np.random.default_rng(5)
    alone, shared = (
        np.mean([sensitivity_uncertainty(correlated(48, 48, share, rng)).se for _ in range(20)]) for share in (0.0, 0.9)
    )
    assert shared < 0.65 * alone


def test_initial_images_of_shared_seeds_count_for_more_the_more_seeds_decide() -> None:
    rng = np.random.default_rng(5)
    pull = [np.mean([correlated(192, 48, share, rng).matched.pull for _ in range(40)]) for share in (0.0, 0.5, 0.95)]
    assert pull[0] < 0.2 < pull[1] < 0.8 < pull[2]
    assert correlated(48, 48, 0.9, rng).matched.pull.tolist() == [[0]]


def test_a_counterfactual_without_images_leaves_other_entries_alone() -> None:
    rng = np.random.default_rng(5)
    initial, after = counts_of("gender", 2, rng.integers(0, 2, (1, 96))), rng.integers(0, 2, (2, 48))
    empty = np.where([[True], [False]], -1, after)
    sides = {name: counts_of("gender", 2, codes) for name, codes in (("x", after), ("y", empty))}
    found = estimate(initial, sides, settings_of(2))
    assert np.isnan(found.is_matched).tolist() == [[False], [True]]
    spread = sensitivity_uncertainty(found)
    assert np.isnan(spread.se).tolist() == np.isnan(spread.p).tolist() == [[False], [True]]


def test_draws_of_equal_shares_and_unequal_numbers_of_images_lean_to_no_side() -> None:
    """480 images and 2 x 48 that show 90 % alike: a prior of one image for each prompt would move draws by 0.015."""
    initial, after = np.zeros((1, 480), int), np.zeros((2, 48), int)
    initial[0, ::10], after[:, ::10] = 1, 1
    after[:, 40] = [0, 1]  # 9 of 96
    sides = [counts_of("gender", 2, codes, paired=False) for codes in (initial, after)]
    found = estimate(sides[0], {"gender": sides[1]}, settings_of(2))
    assert abs(sensitivity_draws(found).mean() - found.sensitivity[0, 0]) < 0.006
    spread = sensitivity_uncertainty(found)
    assert spread.low[0, 0] < -0.05 < 0.05 < spread.high[0, 0]


def test_axes_that_are_read_from_the_same_images_share_their_errors_in_tau() -> None:
    """Two axes that always say the same have errors that add; with opposite priorities nothing is left."""
    codes = np.random.default_rng(0).choice(2, (1, 48), p=[0.8, 0.2])
    names = ("gender", "environment")
    counts = PromptCounts(
        {name: (codes[..., None] == np.arange(2)).sum(1) for name in names},
        np.ones(1),
        codes=ImageCodes(np.arange(48), dict.fromkeys(names, codes.astype(np.int8))),
    )
    settings = make_settings(DATASET.select(axes=list(names)))
    covariance = bias_covariance(counts, settings)
    errors = np.sqrt(np.diagonal(covariance))
    assert tau_error(covariance, np.array([0.5, 0.5])) == pytest.approx(errors.mean(), rel=0.05)
    assert tau_error(covariance, np.array([0.5, -0.5])) < 0.2 * errors.mean()


def test_intervals_of_a_bias_contain_it_also_where_it_is_0() -> None:
    rng, settings = np.random.default_rng(1), settings_of(3)
    for p, w in (([1 / 3] * 3, 0.0), ([0.8, 0.15, 0.05], 0.7)):
        found = [bias_uncertainty(counts_of("age", 3, rng.choice(3, (1, 48), p=p)), settings) for _ in range(150)]
        held = np.mean([each.low[0] <= w + 1e-9 and w <= each.high[0] for each in found])
        assert held > 0.9


def test_the_normal_distribution_is_that_of_scipy_to_seven_digits() -> None:
    z, v = np.linspace(0, 20, 201), np.array([[1e-6], [1e-3], [0.2]])
    assert two_sided(z) == pytest.approx(2 * norm.sf(z), rel=2e-7)
    d = np.linspace(-1, 1, 101)
    exact = np.sqrt(2 * v / np.pi) * np.exp(-d * d / 2 / v) + abs(d) * (1 - 2 * norm.cdf(-abs(d) / np.sqrt(v)))
    assert mean_distance(d, v) == pytest.approx(exact, abs=1e-7)
    assert mean_distance([0.3, -0.3], 0).tolist() == [0.3, 0.3]
