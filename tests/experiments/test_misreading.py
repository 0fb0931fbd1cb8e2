"""Figures corrected for misreading come nearer to the truth, say how sure they are, and use the right method."""

import numpy as np
import pandas as pd
import pytest

from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.answers import coded_answers
from seesaw.experiments.correction import correct
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.labelled import measured_accuracy
from seesaw.experiments.labelling import agreed_labels, images_to_label
from seesaw.experiments.misreading import (
    accuracy,
    confusion,
    confusion_counts,
    confusion_draws,
    corrected_shares,
    dependence,
)
from seesaw.experiments.prediction_powered import LEAST_LABELS, prediction_powered_shares
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import make_settings
from seesaw.experiments.tally import tally_answers

DATASET = load_dataset("occupation").select(subjects=["nurse", "police"], axes=["gender", "age", "clothing"])
SETTINGS = make_settings(DATASET)
CELL = ["model", "subject", "source_axis", "source_value"]


def matrix(k: int, error: float) -> np.ndarray:
    """Misreads the first attribute as the last one twice as often as any other is misread."""
    m = np.full((k, k), error / (k - 1) / 2)
    np.fill_diagonal(m, 1 - error / 2)
    m[0] = 0
    m[0, [0, -1]] = 1 - error, error
    return m


def answers(images: int, seed: int, misread) -> pd.DataFrame:
    """Answers about drawn images with their truth; `misread(axis, cell number)` is the matrix that they are read by."""
    rng, rows = np.random.default_rng(seed), []
    for subject in DATASET.subjects:
        for number, prompt in enumerate(prompts_of(DATASET, subject)):
            exact = WORLDS["alder"].shares(prompt.text)
            for axis in DATASET.axes:
                k = len(axis.attributes)
                truth = rng.choice(k, images, p=exact[axis.name])
                chances = misread(axis.name, number)[truth].cumsum(1)
                read = (rng.random(images)[:, None] > chances).sum(1).clip(max=k - 1)
                frame = pd.DataFrame({"image": np.arange(images), "axis": axis.name})
                frame["truth"] = np.array(axis.attributes)[truth]
                frame["answer"] = np.array(axis.attributes)[read]
                frame[CELL] = "alder", subject, prompt.source_axis, prompt.source_value
                rows.append(frame)
    table = pd.concat(rows, ignore_index=True)
    table["image_key"] = table[[*CELL, "image"]].astype(str).agg("/".join, axis=1)
    return table


def exact_entries() -> pd.DataFrame:
    rows = []
    for subject in DATASET.subjects:
        prompts = prompts_of(DATASET, subject)
        for target in DATASET.axes:
            share = {(p.source_axis, p.source_value): WORLDS["alder"].shares(p.text)[target.name] for p in prompts}
            before = SETTINGS.w_bar(target.name, share["", ""])
            for source in DATASET.axes:
                pooled = np.mean([share[source.name, value] for value in source.attributes], axis=0)
                rows.append(("alder", subject, source.name, target.name, before - SETTINGS.w_bar(target.name, pooled)))
    return pd.DataFrame(rows, columns=["model", "subject", "source_axis", "target_axis", "exact"])


def corrected(table: pd.DataFrame, labels: int):
    """The correction by the first `labels` images of the plan, and its entries beside the exact ones."""
    images = table.drop_duplicates("image_key")
    chosen = images_to_label(images, labels)
    labelled = table[table["image_key"].isin(chosen)].rename(columns={"answer": "read"})
    tally = tally_answers(coded_answers(table.astype({"image": str}), DATASET), DATASET)
    correction = correct(tally, labelled, SETTINGS)
    key = ["model", "subject", "source_axis", "target_axis"]
    return correction, correction.matrices.merge(exact_entries(), on=key, validate="1:1")


def plain_error(table: pd.DataFrame) -> float:
    from seesaw.experiments.analysis import Analysis

    tally = tally_answers(coded_answers(table.astype({"image": str}), DATASET), DATASET)
    both = Analysis(tally, SETTINGS).matrices.merge(exact_entries())
    return float(np.sqrt(((both["is"] - both["exact"]) ** 2).mean()))


def test_shares_that_were_read_through_a_known_matrix_are_recovered_exactly():
    shares = np.array([[0.6, 0.3, 0.1], [0.05, 0.05, 0.9]])
    m = matrix(3, 0.3)
    np.testing.assert_allclose(corrected_shares(shares @ m, m), shares, atol=1e-12)


def test_a_share_that_would_be_negative_is_0_and_the_others_sum_to_1():
    p = corrected_shares(np.array([[0.02, 0.98]]), np.array([[0.9, 0.1], [0.1, 0.9]]))
    np.testing.assert_array_equal(p, [[0, 1]])


def test_attributes_that_are_read_alike_leave_shares_undefined():
    assert np.isnan(corrected_shares(np.array([[0.5, 0.5]]), np.full((2, 2), 0.5))).all()


def test_a_row_without_labelled_images_leans_on_the_others():
    counts = np.array([[45, 5, 0], [5, 45, 0], [0, 0, 0]])
    m = confusion(counts)
    np.testing.assert_allclose(m.sum(1), 1)
    assert m[2, 2] == pytest.approx(0.9, abs=0.01)
    assert m[2, 0] == m[2, 1]


def test_draws_of_a_matrix_scatter_around_it_as_the_number_of_labels_says():
    few, many = (np.array([[9, 1], [2, 8]]) * times for times in (1, 100))
    rng = np.random.default_rng(0)
    spread = [confusion_draws(counts, 4000, rng).std(0)[0, 0] for counts in (few, many)]
    assert spread[0] == pytest.approx(np.sqrt(0.9 * 0.1 / 12.5), rel=0.1)
    assert spread[1] == pytest.approx(np.sqrt(0.9 * 0.1 / 1002), rel=0.1)


def test_the_interval_of_an_accuracy_holds_what_jeffreys_says():
    seen = accuracy(9, 10)
    assert (seen.share, round(seen.low, 3), round(seen.high, 3)) == (0.9, 0.619, 0.989)
    assert accuracy(10, 10).high == 1
    assert accuracy(0, 10).low == 0
    assert np.isnan(accuracy(0, 0).share)


def test_the_test_of_dependence_keeps_its_level_and_finds_what_is_there():
    rng = np.random.default_rng(5)
    p_values = []
    for _ in range(100):
        truth, group = rng.integers(0, 3, 90), rng.integers(0, 6, 90)
        read = np.where(rng.random(90) < 0.2, rng.integers(0, 3, 90), truth)
        p_values.append(dependence(truth, read, [group, group % 2], 3, rng))
    assert np.mean(np.array(p_values) < 0.05) <= 0.09  # 100 tests of level 0.05: 10 or more once in 36
    truth, group = rng.integers(0, 3, 150), rng.integers(0, 6, 150)
    read = np.where(rng.random(150) < 0.1 + 0.5 * (group == 1), (truth + 1) % 3, truth)
    assert dependence(truth, read, [group], 3, rng) < 0.01


def test_prediction_powered_shares_of_wholly_labelled_prompts_are_the_labels():
    labelled = np.array([[[6, 1], [2, 3]], [[0, 0], [0, LEAST_LABELS - 1]]])
    read = labelled.sum(1) / labelled.sum((1, 2), keepdims=True)[:, 0]
    shares = prediction_powered_shares(read, labelled)
    np.testing.assert_allclose(shares[0], [7 / 12, 5 / 12])
    assert np.isnan(shares[1]).all()  # too few labels


def test_where_misreading_is_the_same_everywhere_100_labels_halve_its_error_and_intervals_hold_the_truth():
    """Without sampling error to speak of, what is left is the misreading."""
    table = answers(1500, 1, lambda axis, _: matrix(3 if axis == "age" else 2, 0.25))
    correction, entries = corrected(table, 160)
    assert set(correction.misreading["method"]) == {"confusion matrix"}
    error = float(np.sqrt(((entries["is"] - entries["exact"]) ** 2).mean()))
    assert error < 0.5 * plain_error(table)
    inside = (entries["low"] <= entries["exact"]) & (entries["exact"] <= entries["high"])
    assert inside.mean() > 0.85


def test_intervals_of_corrected_entries_cover_the_truth_at_the_number_of_images_that_people_make():
    inside = []
    for seed in range(8):
        table = answers(100, seed, lambda axis, _: matrix(3 if axis == "age" else 2, 0.2))
        _, entries = corrected(table, 100)
        inside.append((entries["low"] <= entries["exact"]) & (entries["exact"] <= entries["high"]))
    assert 0.90 <= np.concatenate(inside).mean() <= 1


def worse_for_some(axis: str, cell: int) -> np.ndarray:
    k = 3 if axis == "age" else 2
    return matrix(k, 0.5 if cell % 3 == 0 else 0.05)


def test_where_misreading_depends_on_the_prompt_it_is_found_and_corrected_prompt_by_prompt():
    table = answers(1000, 2, worse_for_some)
    correction, entries = corrected(table, 16 * 60)
    assert set(correction.misreading["method"]) == {"prediction-powered"}
    assert any("depends on the prompt" in note for note in correction.notes)
    error = float(np.sqrt(((entries["is"] - entries["exact"]) ** 2).mean()))
    assert error < 0.6 * plain_error(table)
    inside = (entries["low"] <= entries["exact"]) & (entries["exact"] <= entries["high"])
    assert inside.mean() > 0.85


def test_prompts_without_labels_are_told_and_not_corrected_where_misreading_depends_on_the_prompt():
    table = answers(400, 2, worse_for_some)
    images = table.drop_duplicates("image_key")
    chosen = images_to_label(images[images["source_axis"] != "age"], 12 * 60)
    labelled = table[table["image_key"].isin(chosen)].rename(columns={"answer": "read"})
    tally = tally_answers(coded_answers(table.astype({"image": str}), DATASET), DATASET)
    entries = correct(tally, labelled, SETTINGS).matrices
    lacking = entries["source_axis"] == "age"
    assert (entries[lacking]["method"] == "labels missing").all()
    assert entries[lacking]["is"].isna().all()
    assert (entries[~lacking]["method"] == "prediction-powered").all()
    assert entries[~lacking]["is"].notna().all()


def test_an_axis_without_labels_is_left_out_and_named():
    table = answers(20, 0, lambda axis, _: np.eye(3 if axis == "age" else 2))
    labelled = table[(table["axis"] == "gender") & (table["image"] < 5)].rename(columns={"answer": "read"})
    tally = tally_answers(coded_answers(table.astype({"image": str}), DATASET), DATASET)
    correction = correct(tally, labelled, SETTINGS)
    assert set(correction.matrices["target_axis"]) == set(correction.bias["axis"]) == {"gender"}
    assert correction.notes[-1] == "no image has a label for age, clothing, so nothing is corrected there"


def test_accuracy_is_told_for_every_group_of_labelled_images():
    """Clothing is misread of women alone."""
    table = pd.DataFrame(
        [
            (f"{i}", axis, truth, read)
            for i in range(40)
            for axis, truth, read in (
                ("gender", "female" if i % 2 else "male", "female" if i % 2 else "male"),
                ("clothing", "formal", "informal" if i % 4 == 1 else "formal"),
            )
        ],
        columns=["image_key", "axis", "truth", "read"],
    )
    table[CELL] = "alder", "nurse", "", ""
    rates, matrices = measured_accuracy(table, DATASET.axes, "a VLM")
    of = rates.set_index(["axis", "group_axis", "group"])
    assert of.loc["clothing", "", ""][["labelled", "right"]].tolist() == [40, 30]
    assert of.loc["clothing", "gender", "female"][["labelled", "right"]].tolist() == [20, 10]
    assert of.loc["clothing", "gender", "male"][["labelled", "right"]].tolist() == [20, 20]
    assert of.loc["clothing", "clothing", "informal"]["labelled"] == 0
    counted = matrices.set_index(["axis", "truth", "read"])["count"]
    assert counted["clothing", "formal", "informal"] == 10
    assert counted["gender", "male", "male"] == 20


def test_counts_of_a_matrix_have_the_truth_in_rows():
    np.testing.assert_array_equal(confusion_counts(np.array([0, 0, 1]), np.array([1, 1, 0]), 2), [[0, 2], [1, 0]])


def test_a_plan_spreads_over_the_prompts_and_a_longer_one_begins_with_a_shorter():
    table = answers(30, 0, lambda axis, _: np.eye(3 if axis == "age" else 2)).drop_duplicates("image_key")
    short, long = images_to_label(table, 16), images_to_label(table.sample(frac=1, random_state=1), 64)
    assert long[:16] == short  # whatever the order of the table
    labelled = table[table["image_key"].isin(long)]
    assert set(labelled.groupby(CELL).size()) == {4}  # 16 prompts
    assert set(table[table["image_key"].isin(short)].groupby(["source_axis", "source_value"]).size()) == {2}
    assert len(set(labelled["image"])) > 15  # random within each prompt, not its first images


def test_the_label_of_most_labellers_counts_and_their_last_word():
    rows = [
        ("a", "gender", "male", "x", 1), ("a", "gender", "female", "y", 1), ("a", "gender", "female", "z", 1),
        ("b", "gender", "male", "x", 1), ("b", "gender", "female", "y", 1),
        ("c", "gender", "male", "x", 1), ("c", "gender", "female", "x", 2),
        ("d", "gender", "unclear", "x", 1),
    ]  # fmt: skip
    agreed = agreed_labels(pd.DataFrame(rows, columns=["image_key", "axis", "label", "labeller", "imported"]))
    assert dict(zip(agreed["image_key"], agreed["truth"], strict=True)) == {"a": "female", "c": "female"}
