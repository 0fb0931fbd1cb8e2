"""One verdict for many tests: few matrices in which nothing interacts have a call; the strongest are not overrated."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import false_discovery_control, norm

from seesaw.experiments.analysis import analyze
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import make_settings
from seesaw.experiments.shrinkage import picked_width, shrunken
from seesaw.experiments.significance import matrix_q, q_values

DATASET = load_dataset("occupation").select(axes=["gender", "age", "ethnicity", "clothing"])
SUBJECTS = tuple(f"subject {i:03}" for i in range(120))


def answers(dataset: Dataset, subjects, images: tuple[int, int], share: float, seed: int) -> pd.DataFrame:
    """A table in which nothing interacts: every axis has its own shares, whatever a prompt states.

    With probability `share`, an image shows what every image of its number shows, of every prompt and subject.
    """
    rng, parts = np.random.default_rng(seed), []
    prompts = prompts_of(dataset, dataset.subjects[0])
    of = [(i, n) for i, prompt in enumerate(prompts) for n in range(images[1] if prompt.source_axis else images[0])]
    prompt, number = np.array(of).T
    source_axis, source_value = (
        np.array([getattr(each, name) for each in prompts], object)[prompt] for name in ("source_axis", "source_value")
    )
    common = {axis.name: rng.random(images[0]) for axis in dataset.axes}
    for subject, axis in itertools.product(subjects, dataset.axes):
        p = np.cumsum(rng.dirichlet(np.full(len(axis.attributes), 1.5)))
        u = np.where(rng.random(len(of)) < share, common[axis.name][number], rng.random(len(of)))
        drawn = np.minimum(np.searchsorted(p, u), len(axis.attributes) - 1)
        cells = {"model": "m", "subject": subject, "source_axis": source_axis, "source_value": source_value}
        answer = np.array(axis.attributes, object)[drawn]
        parts.append(pd.DataFrame({**cells, "image": number, "axis": axis.name, "answer": answer}))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module", params=[((48, 48), 0.0), ((192, 48), 0.0), ((192, 48), 0.5)], ids=str)
def nothing(request):
    images, share = request.param
    return analyze(answers(DATASET, SUBJECTS, images, share, seed=2), make_settings(DATASET))


def test_few_matrices_in_which_nothing_interacts_have_a_significant_entry(nothing) -> None:
    table = nothing.uncertainty
    between = table[table["source_axis"] != table["target_axis"]]
    called = between.groupby("subject")["significant"].any()
    assert len(called) == len(SUBJECTS)
    assert called.mean() <= 0.06 + 2 * np.sqrt(0.06 * 0.94 / len(SUBJECTS))
    uncorrected = between.assign(any=(between["low"] > 0) | (between["high"] < 0)).groupby("subject")["any"].any()
    assert uncorrected.mean() > 0.15  # what the correction is for


def test_intervals_hold_0_where_nothing_interacts_and_an_entry_that_is_called_has_one_without(nothing) -> None:
    table = nothing.uncertainty
    assert 0.93 <= ((table["low"] <= 0) & (table["high"] >= 0)).mean() <= 0.99
    called = table[table["significant"]]
    assert ((called["low"] > 0) | (called["high"] < 0)).all()
    assert (table["p"] <= table["q"] + 1e-12).all()


def test_means_over_subjects_are_0_within_their_errors_where_nothing_interacts(nothing) -> None:
    means = nothing.means
    assert sorted(means["unit"].unique()) == ["images", "subjects"]
    between = means[means["source_axis"] != means["target_axis"]]
    assert (between["is_matched"].abs() < 3.5 * between["se"]).all()
    assert ((between["low"] <= 0) & (between["high"] >= 0)).mean() >= 0.85
    assert between["significant"].mean() <= 0.1


def test_the_mean_of_subjects_that_share_all_errors_is_as_uncertain_as_one_of_them() -> None:
    one = answers(DATASET, ["a"], (48, 48), 0.0, seed=1)
    same = pd.concat([one, one.assign(subject="b"), one.assign(subject="c"), one.assign(subject="d")])
    apart = answers(DATASET, ["a", "b", "c", "d"], (48, 48), 0.0, seed=1)
    ratio = {}
    for name, table in (("same", same), ("apart", apart)):
        found = analyze(table, make_settings(DATASET))
        se = found.means.set_index("unit").loc["images", "se"].mean()
        ratio[name] = se / found.uncertainty["se"].mean()
    assert ratio["same"] > 0.85
    assert ratio["apart"] == pytest.approx(0.5, abs=0.06)


def test_images_whose_names_do_not_recur_are_taken_as_independent() -> None:
    table = answers(DATASET, ["a"], (48, 48), 0.9, seed=1)
    unique = table["image"].astype(str) + table["source_axis"] + table["source_value"]
    names = {"numbers": table, "paths": table.assign(image="x/" + table["image"].astype(str) + ".png")}
    found = {name: analyze(each, make_settings(DATASET)).uncertainty["se"].mean() for name, each in names.items()}
    alone = analyze(table.assign(image=unique), make_settings(DATASET)).uncertainty["se"].mean()
    assert found["numbers"] == pytest.approx(found["paths"], rel=0.1)
    assert found["numbers"] < 0.75 * alone


def test_q_is_that_of_benjamini_and_hochberg_and_undefined_tests_are_none() -> None:
    p = np.random.default_rng(0).uniform(size=40) ** 3
    assert q_values(p) == pytest.approx(false_discovery_control(p))
    gaps = np.insert(p, [0, 7], np.nan)
    assert q_values(gaps)[~np.isnan(gaps)] == pytest.approx(q_values(p))


def test_effects_of_axes_on_themselves_do_not_make_others_significant() -> None:
    p = np.full((5, 5), 0.03)
    np.fill_diagonal(p, 1e-9)
    q = matrix_q(p, np.eye(5, dtype=bool))
    assert (q[~np.eye(5, dtype=bool)] == 0.03).all()
    assert np.diagonal(q) == pytest.approx(1e-9)


def true_and_measured(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    true = np.where(rng.random(1500) < 0.7, 0.02, 0.12) * rng.standard_normal(1500)
    error = rng.uniform(0.03, 0.1, 1500)
    return true, true + error * rng.standard_normal(1500), error


def test_shrunken_values_are_nearer_the_truth_above_all_those_of_the_strongest() -> None:
    true, measured, error = true_and_measured(np.random.default_rng(4))
    likely = shrunken(measured, error)
    assert np.sqrt(((likely - true) ** 2).mean()) < 0.75 * np.sqrt(((measured - true) ** 2).mean())
    strongest = np.argsort(measured)[:12]
    assert measured[strongest].mean() < true[strongest].mean() - 0.03
    assert abs(likely[strongest].mean() - true[strongest].mean()) < 0.03
    assert shrunken(np.empty(0), np.empty(0)).tolist() == []


def test_widened_intervals_of_entries_that_were_picked_contain_the_truth() -> None:
    rng, held, narrow = np.random.default_rng(6), [], []
    for _ in range(30):
        true, measured, error = true_and_measured(rng)
        picked = q_values(2 * norm.sf(abs(measured / error))) <= 0.05
        off = abs(measured - true)[picked] / error[picked]
        held += (off <= 1.96 * picked_width(picked.sum(), len(picked))).tolist()
        narrow += (off <= 1.96).tolist()
    assert np.mean(held) >= 0.94
    assert np.mean(narrow) < 0.93
    assert picked_width(10, 10) == picked_width(0, 10) == 1
