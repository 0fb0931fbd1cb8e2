"""An answers table becomes the right numbers in the same bytes whatever its row order, or is refused with its row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seesaw.experiments.analysis import analyze, analyze_file
from seesaw.experiments.answers import answer_rows, coded_answers
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.lab import Answers, Observations
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.questionnaire import observations_of
from seesaw.experiments.sensitivity import shares
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.tally import tally_answers, tally_observations
from seesaw.results.errors import AnswersError, ConfigError
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.schemas import ANSWERS, DISTRIBUTIONS, MATRICES, UNCERTAINTY
from seesaw.results.tables.write import about_of, write_rows, write_table

DATASET = load_dataset("occupation")
SEVEN = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]


def cell(source: str, value: str, axis: str, answers: dict[str, int], subject: str = "nurse") -> list[tuple[str, ...]]:
    """Rows of one cell in which `answers[word]` images answer `axis` with `word`; "no" is an image without a person."""
    words = [word for word, count in answers.items() for _ in range(count)]
    rows: list[tuple[str, ...]] = []
    for image, word in enumerate(words):
        person = (("m", subject, source, value, str(image), "person", "no" if word == "no" else "yes"),)
        rows += person if word == "no" else (*person, ("m", subject, source, value, str(image), axis, word))
    return rows


def frame(*cells: list[tuple[str, ...]]) -> pd.DataFrame:
    return pd.DataFrame([row for rows in cells for row in rows], columns=SEVEN)


CLOTHING = frame(
    cell("", "", "clothing", {"formal": 48}),
    cell("clothing", "formal", "clothing", {"formal": 44, "informal": 4}),
    cell("clothing", "informal", "clothing", {"formal": 10, "informal": 38}),
)


def test_the_papers_figures_come_out_of_a_table() -> None:
    uniform = analyze(CLOTHING, make_settings(DATASET)).matrices.iloc[0]
    assert uniform["is"] == pytest.approx(0.875)
    assert (uniform["n_init"], uniform["n_after"]) == (48, 96)
    real = make_settings(DATASET, targets={"clothing": {"informal": 1 / 48, "formal": 47 / 48}})
    assert analyze(CLOTHING, real).matrices.iloc[0]["is"] == pytest.approx(-0.7917, abs=5e-5)


def test_counterfactuals_weigh_the_same_however_many_images_were_dropped() -> None:
    table = frame(
        cell("", "", "clothing", {"formal": 8}),
        cell("gender", "male", "clothing", {"formal": 1, "no": 7}),
        cell("gender", "female", "clothing", {"informal": 8}),
    )
    rows = analyze(table, make_settings(DATASET)).distributions.set_index(["source_value", "attribute"])
    assert rows.loc[("*", "formal"), ["count", "share", "n"]].tolist() == [1, 0.5, 9]
    weighted = make_settings(DATASET, targets={"gender": [0.25, 0.75]}, intervention="target")
    rows = analyze(table, weighted).distributions.set_index(["source_value", "attribute"])
    assert rows.loc[("*", "formal"), "share"] == 0.25


def test_distributions_have_a_row_for_every_cell_attribute_and_pool_in_canonical_order() -> None:
    rows = analyze(CLOTHING, make_settings(DATASET)).distributions
    assert list(rows.columns) == DISTRIBUTIONS.names
    assert list(zip(rows["source_axis"], rows["source_value"], rows["attribute"], rows["count"], strict=True)) == [
        ("", "", "formal", 48), ("", "", "informal", 0),
        ("clothing", "formal", "formal", 44), ("clothing", "formal", "informal", 4),
        ("clothing", "informal", "formal", 10), ("clothing", "informal", "informal", 38),
        ("clothing", "*", "formal", 54), ("clothing", "*", "informal", 42),
    ]  # fmt: skip


def test_a_counterfactual_without_a_valid_image_leaves_its_row_undefined_and_listed(tmp_path: Path) -> None:
    table = frame(
        cell("", "", "clothing", {"formal": 4}),
        cell("gender", "male", "clothing", {"formal": 4}),
        cell("gender", "female", "clothing", {"no": 4}),
        cell("environment", "indoor", "clothing", {"formal": 4}),
        cell("clothing", "formal", "clothing", {"formal": 4}),
        cell("clothing", "informal", "clothing", {"informal": 4}),
        cell("clothing", "formal", "clothing", {"formal": 4}, subject="chef"),
    )
    table.to_csv(tmp_path / "a.csv", index=False)
    summary = analyze_file(tmp_path / "a.csv", tmp_path / "out", make_settings(DATASET))
    rows = pd.read_csv(tmp_path / "out" / "matrices.csv").set_index(["subject", "source_axis"])["is"]
    assert rows["nurse", "clothing"] == pytest.approx(1)
    assert rows.drop(("nurse", "clothing")).isna().all()
    assert [(u.subject, u.source_axis, u.target_axis, u.reason) for u in summary.undefined] == [
        ("chef", "gender", "*", "initial prompt: no images; gender=male: no images; gender=female: no images"),
        ("chef", "environment", "*",
         "initial prompt: no images; environment=indoor: no images; environment=outdoor: no images"),
        ("chef", "clothing", "*", "initial prompt: no images; clothing=informal: no images"),
        ("nurse", "gender", "*", "gender=female: none of its 4 images counts (no person, or withheld)"),
        ("nurse", "environment", "*", "environment=outdoor: no images"),
    ]  # fmt: skip
    bounds = pd.read_csv(tmp_path / "out" / "uncertainty.csv")
    assert bounds["se"].isna().tolist() == rows.isna().tolist()


def test_an_image_that_skips_an_axis_counts_for_the_others_alone(tmp_path: Path) -> None:
    skipped = CLOTHING[~((CLOTHING["image"] == "0") & (CLOTHING["axis"] == "clothing"))]
    age = CLOTHING[CLOTHING["axis"] == "clothing"].assign(axis="age", answer="old")
    table = pd.concat([skipped, age[age["source_value"] != "formal"]])
    table.to_csv(tmp_path / "a.csv", index=False)
    summary = analyze_file(tmp_path / "a.csv", tmp_path / "out", make_settings(DATASET))
    assert summary.unanswered == {"clothing": 3, "age": 48}
    assert [(u.target_axis, u.reason) for u in summary.undefined] == [("age", "clothing=formal: no image answers age")]
    rows = analyze(table, make_settings(DATASET)).matrices.set_index("target_axis")
    assert rows.loc["clothing", ["n_init", "n_after"]].tolist() == [47, 94]
    assert np.isnan(rows.loc["age", "is"])


def full_table(seed: int = 0) -> pa.Table:
    """Answers of two models to every prompt of three subjects, 6 images each, by way of observations."""
    rng = np.random.default_rng(seed)
    dataset = DATASET.select(subjects=["chef", "nurse", "gardener"])
    n = 6
    tables = []
    for model in ("b", "a"):
        cells = []
        for prompt in (p for subject in dataset.subjects for p in prompts_of(dataset, subject)):
            person = rng.random(n) < 0.9
            values = {a.name: np.where(person, rng.integers(0, len(a.attributes), n), -1) for a in dataset.axes}
            probability = {a.name: np.where(person, rng.random(n), np.nan) for a in dataset.axes}
            keys = tuple(f"{i:064x}" for i in range(n))
            answers = Answers(np.arange(n), 100 + np.arange(n), keys, person, rng.random(n), values, probability, "vlm")
            cells.append(Observations(prompt, {}, n, int((~person).sum()), answers))
        tables.append(answer_rows(model, dataset, cells))
    return pa.concat_tables(tables)


def test_shuffled_rows_give_the_same_bytes(tmp_path: Path) -> None:
    table = full_table()
    order = np.random.default_rng(1).permutation(table.num_rows)
    write_table(tmp_path / "a.parquet", table)
    table.take(order).to_pandas()[SEVEN].to_csv(tmp_path / "b.csv", index=False)
    settings = make_settings(DATASET, metric={"age": "ordinal"})
    first = analyze_file(tmp_path / "a.parquet", tmp_path / "a", settings)
    second = analyze_file(tmp_path / "b.csv", tmp_path / "b", settings)
    assert first == second
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == [
        f"{t}.{s}" for t in ("bias", "distributions", "matrices", "means", "uncertainty") for s in ("csv", "parquet")
    ]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_tables_have_the_contracts_columns_order_and_settings(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", full_table())
    analyze_file(tmp_path / "a.parquet", tmp_path, make_settings(DATASET, metric={"age": "ordinal"}))
    for name, schema in (("distributions", DISTRIBUTIONS), ("matrices", MATRICES), ("uncertainty", UNCERTAINTY)):
        path = tmp_path / f"{name}.parquet"
        assert pq.read_schema(path).remove_metadata() == schema
        metric = about_of(path)["metric"]
        assert isinstance(metric, dict)
        assert (metric["age"], metric["gender"]) == ("ordinal", "nominal")
    rows = pq.read_table(tmp_path / "matrices.parquet").to_pandas()
    assert len(rows) == 2 * 3 * 8 * 8
    assert list(dict.fromkeys(zip(rows["model"], rows["subject"], strict=True))) == [
        ("a", "chef"), ("a", "nurse"), ("a", "gardener"), ("b", "chef"), ("b", "nurse"), ("b", "gardener"),
    ]  # fmt: skip
    assert rows["source_axis"][:64:8].tolist() == rows["target_axis"][:8].tolist() == [a.name for a in DATASET.axes]


def test_matrices_agree_with_the_equations_applied_by_hand() -> None:
    table = full_table().to_pandas()
    rows = analyze(table, make_settings(DATASET)).matrices.set_index(["model", "subject", "source_axis", "target_axis"])
    mine = table[(table["model"] == "a") & (table["subject"] == "nurse") & (table["axis"] == "age")]
    shares = mine.groupby(["source_axis", "source_value"])["answer"].value_counts(normalize=True).unstack(fill_value=0)
    before = np.abs(shares.loc[("", "")] - 1 / 3).sum() / 2 / (2 / 3)
    after = np.abs(shares.loc["emotion"].mean() - 1 / 3).sum() / 2 / (2 / 3)
    assert rows.loc[("a", "nurse", "emotion", "age"), "is"] == pytest.approx(before - after)


def test_uncertainty_has_the_rows_of_the_matrices_around_their_values() -> None:
    table = full_table().to_pandas()
    settings = make_settings(DATASET)
    matrix, bounds = analyze(table, settings).matrices, analyze(table, settings).uncertainty
    assert list(bounds.columns) == UNCERTAINTY.names
    keys = ["model", "subject", "source_axis", "target_axis", "is"]
    pd.testing.assert_frame_equal(bounds[keys], matrix[keys])
    assert ((bounds["low"] <= bounds["is_matched"]) & (bounds["is_matched"] <= bounds["high"])).all()


def test_observations_become_the_rows_of_the_contract() -> None:
    prompt = prompts_of(DATASET, "nurse")[1]
    values = {a.name: np.array([0, -1]) for a in DATASET.axes}
    probability = {a.name: np.array([0.75, np.nan]) for a in DATASET.axes}
    answers = Answers(
        np.array([4, 5]), np.array([40, 50]), ("aa", "bb"), np.array([True, False]), np.array([0.5, np.nan]),
        values, probability, "pictovlm",
    )  # fmt: skip
    table = answer_rows(
        "m", DATASET, [Observations(prompt, {}, 2, 1, answers), Observations(prompt, {}, 2, 0, None, ("x",))]
    )
    assert table.schema == ANSWERS
    rows = [tuple(row.values()) for row in table.to_pylist()]
    place = ("m", "nurse", "gender", "male")
    assert rows[0] == (*place, 4, "person", "yes", 0.5, "A photo of a male nurse", 40, "aa", "pictovlm")
    assert rows[1] == (*place, 4, "gender", "male", 0.75, "A photo of a male nurse", 40, "aa", "pictovlm")
    assert [row[5] for row in rows[1:9]] == [a.name for a in DATASET.axes]
    assert rows[9] == (*place, 5, "person", "no", None, "A photo of a male nurse", 50, "bb", "pictovlm")
    assert len(rows) == 10
    coded_answers(table.to_pandas(), DATASET)


def test_a_sweep_is_counted_as_the_rows_that_it_writes_are(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(3), 6
    dataset = DATASET.select(subjects=["chef", "nurse"])
    observed: dict[str, list[Observations]] = {"b": [], "a": []}
    for cells in observed.values():
        for prompt in (p for subject in dataset.subjects for p in prompts_of(dataset, subject)):
            person = rng.random(n) < 0.9
            values = {a.name: np.where(person, rng.integers(0, len(a.attributes), n), -1) for a in dataset.axes}
            chance, keys = {a.name: rng.random(n) for a in dataset.axes}, ("k",) * n
            answers = Answers(np.arange(n), np.arange(n), keys, person, rng.random(n), values, chance, "vlm")
            cells.append(observations_of(dataset, prompt, [answers], n))
    rows = [answer_rows(model, dataset, [cell]) for model, cells in observed.items() for cell in cells]
    assert write_rows(tmp_path / "answers.parquet", ANSWERS, rows) == sum(table.num_rows for table in rows)
    assert pq.read_table(tmp_path / "answers.parquet") == pa.concat_tables(rows)
    counted = tally_observations(observed, dataset)
    again = tally_answers(coded_answers(read_answers(tmp_path / "answers.parquet"), dataset), dataset)
    assert (counted.groups, counted.cells, counted.spans) == (again.groups, again.cells, again.spans)
    assert counted.dropped.any()
    for mine, theirs in ((counted.asked, again.asked), (counted.dropped, again.dropped)):
        np.testing.assert_array_equal(mine, theirs)
    for axis, counts in again.counts.items():
        np.testing.assert_array_equal(counted.counts[axis], counts)


def test_a_cell_that_failed_counts_nothing_and_leaves_its_place() -> None:
    prompt = prompts_of(DATASET, "nurse")[0]
    counted = tally_observations({"m": [observations_of(DATASET, prompt, [], 48, ["x"])]}, DATASET)
    assert not counted.asked.any()
    assert np.isnan(shares(counted.counts[DATASET.axes[0].name])).all()
    assert counted.groups == tuple(("m", subject) for subject in DATASET.subjects)


def test_no_observations_make_an_empty_table_and_exact_ones_none() -> None:
    assert answer_rows("m", DATASET, []).schema == ANSWERS
    with pytest.raises(ValueError, match="have no images"):
        answer_rows("m", DATASET, [Observations(prompts_of(DATASET, "nurse")[0], {}, 48, 0)])


ROW = ("m", "nurse", "", "", "0", "gender", "male")
REFUSED = [
    ((*ROW[:6], "woman"), "row 2: 'woman' is not an attribute of axis 'gender'"),
    ((*ROW[:6], "Femal"), "row 2: 'Femal' is not an attribute of axis 'gender'; did you mean 'female'?"),
    (
        (*ROW[:5], "bodytype", "obese"),
        "row 2: 'obese' is not an attribute of axis 'bodytype'; it is the prompt's word for 'fat'",
    ),
    ((*ROW[:5], "gendr", "male"), "row 2: dataset 'occupation' has no axis 'gendr'; did you mean 'gender'?"),
    ((*ROW[:5], "person", "maybe"), "row 2: 'maybe' does not say whether there is a person; it must be yes or no"),
    (
        ("m", "nurse", "gendr", "male", *ROW[4:]),
        "row 2: source_axis: dataset 'occupation' has no axis 'gendr'; did you",
    ),
    (
        ("m", "nurse", "bodytype", "obese", *ROW[4:]),
        "row 2: source_value 'obese' is not an attribute of axis 'bodytype'; it is the prompt's word for 'fat'",
    ),
    (("m", "nurse", "gender", "*", *ROW[4:]), "row 2: source_value '*' is not an attribute of axis 'gender'"),
    (("m", "nurse", "gender", "", *ROW[4:]), "row 2: source_axis is 'gender' but source_value is empty"),
    (("m", "nurse", "", "male", *ROW[4:]), "row 2: source_value is 'male' but source_axis is empty"),
    ((*ROW[:6], "female"), "row 2: image 0 of 'm', 'nurse', initial prompt, answers axis 'gender' a second time"),
    (
        (*ROW[:5], "person", "no"),
        "row 1: image 0 of 'm', 'nurse', initial prompt, shows no person, yet answers axis 'gender'",
    ),
]


@pytest.mark.parametrize(("row", "message"), REFUSED, ids=[r[1][:60] for r in REFUSED])
def test_bad_answers_are_refused_with_their_row_before_anything_is_written(
    tmp_path: Path, row: tuple[str, ...], message: str
) -> None:
    table = frame([ROW, row])
    with pytest.raises(AnswersError) as refused:
        coded_answers(table, DATASET)
    assert message in str(refused.value)
    table.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(AnswersError, match=r"a\.csv, row"):
        analyze_file(tmp_path / "a.csv", tmp_path / "out", make_settings(DATASET))
    assert not (tmp_path / "out").exists()


def test_a_gap_in_a_frame_is_refused() -> None:
    with pytest.raises(AnswersError, match="row 2: 'answer' is empty"):
        coded_answers(frame([ROW, (*ROW[:4], "1", "gender", None)]), DATASET)  # type: ignore[list-item]


def test_an_out_dir_that_cannot_be_written_to_is_a_config_error(tmp_path: Path) -> None:
    CLOTHING.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ConfigError, match=r"cannot write to .*a\.csv"):
        analyze_file(tmp_path / "a.csv", tmp_path / "a.csv", make_settings(DATASET))


def test_a_table_of_initial_prompts_alone_has_distributions_and_no_matrix(tmp_path: Path) -> None:
    frame(cell("", "", "clothing", {"formal": 3})).to_csv(tmp_path / "a.csv", index=False)
    summary = analyze_file(tmp_path / "a.csv", tmp_path, make_settings(DATASET))
    assert summary.source_axes == ()
    assert len(pd.read_csv(tmp_path / "distributions.csv")) == 2
    assert len(pd.read_csv(tmp_path / "matrices.csv")) == 0


def test_a_table_in_which_nobody_is_seen_has_no_target_axes(tmp_path: Path) -> None:
    frame(cell("", "", "", {"no": 3}), cell("gender", "male", "", {"no": 3})).to_csv(tmp_path / "a.csv", index=False)
    summary = analyze_file(tmp_path / "a.csv", tmp_path, make_settings(DATASET))
    assert (summary.images, summary.dropped, summary.target_axes) == (6, 6, ())
    assert len(pd.read_csv(tmp_path / "distributions.csv")) == 0
    assert summary.undefined[0].source_axis == "gender"


def test_subjects_that_the_dataset_does_not_know_come_last(tmp_path: Path) -> None:
    cells = [cell("", "", "clothing", {"formal": 1}, subject=s) for s in ("zoologist", "nurse", "astronaut", "chef")]
    frame(*cells).to_csv(tmp_path / "a.csv", index=False)
    summary = analyze_file(tmp_path / "a.csv", tmp_path, make_settings(DATASET))
    assert summary.subjects == ("chef", "nurse", "astronaut", "zoologist")


def test_drops_are_told_by_cell_and_uneven_ones_are_pointed_out(tmp_path: Path) -> None:
    frame(
        cell("", "", "clothing", {"formal": 48}),
        cell("gender", "male", "clothing", {"formal": 47, "no": 1}),
        cell("gender", "female", "clothing", {"formal": 28, "no": 20}),
        *(cell("age", age, "clothing", {"formal": 45, "no": 3}) for age in ("young", "middle", "old")),
        *(
            cell("bodytype", b, "clothing", {"formal": 48 - n, "no": n})
            for b, n in (("fat", 30), ("slim", 2), ("muscular", 3))
        ),
    ).to_csv(tmp_path / "a.csv", index=False)
    summary = analyze_file(tmp_path / "a.csv", tmp_path, make_settings(DATASET))
    assert [(d.source_value, d.asked, d.dropped) for d in summary.drops][:3] == [
        ("", 48, 0),
        ("male", 48, 1),
        ("female", 48, 20),
    ]
    assert summary.drops[2].share == pytest.approx(20 / 48)
    assert [(u.source_axis, u.fewest.source_value, u.most.source_value) for u in summary.uneven_drops] == [
        ("gender", "male", "female"),
        ("bodytype", "slim", "fat"),
    ]
    assert all(u.p < 0.01 for u in summary.uneven_drops)


def test_one_odd_drop_rate_among_many_tests_is_put_down_to_chance(tmp_path: Path) -> None:
    """Fisher's p is 0.006 for 8 of 48 against none, an alarm if it were the one test; among 8 x 3 it is not."""
    even = [
        cell(axis.name, attribute, "clothing", {"formal": 48}, subject=subject)
        for subject in ("chef", "nurse", "gardener")
        for axis in DATASET.axes
        for attribute in axis.attributes
        if (subject, axis.name, attribute) != ("nurse", "gender", "male")
    ]
    odd = cell("gender", "male", "clothing", {"formal": 40, "no": 8})
    settings = make_settings(DATASET)
    frame(odd, cell("gender", "female", "clothing", {"formal": 48})).to_csv(tmp_path / "one.csv", index=False)
    frame(odd, *even).to_csv(tmp_path / "many.csv", index=False)
    assert [u.source_axis for u in analyze_file(tmp_path / "one.csv", tmp_path, settings).uneven_drops] == ["gender"]
    assert analyze_file(tmp_path / "many.csv", tmp_path, settings).uneven_drops == ()


def test_even_drops_raise_no_alarm(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", full_table())
    assert analyze_file(tmp_path / "a.parquet", tmp_path, make_settings(DATASET)).uneven_drops == ()


def test_answers_written_are_answers_read(tmp_path: Path) -> None:
    table = full_table()
    write_table(tmp_path / "a.parquet", table)
    frame = read_answers(tmp_path / "a.parquet")
    assert frame["image"].tolist() == [str(i) for i in table["image"].to_pylist()]
    assert frame["prompt"].tolist() == table["prompt"].to_pylist()


def test_settings_take_a_users_values() -> None:
    settings = make_settings(DATASET, metric="values", targets={"gender": "uniform", "age": [0.5, 0.25, 0.25]})
    assert isinstance(settings, AnalysisSettings)
    assert set(settings.metric.values()) == {"values"}
    assert settings.targets["age"].tolist() == [0.5, 0.25, 0.25]
    assert settings.targets["gender"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metric": "nominall"}, "metric of axis 'gender' cannot be 'nominall'; did you mean 'nominal'"),
        (
            {"metric": {"gendr": "nominal"}},
            "metric: dataset 'occupation' has no axis 'gendr'; did you mean 'gender'",
        ),
        ({"metric": {"age": "ordnal"}}, "metric of axis 'age' cannot be 'ordnal'; did you mean 'ordinal'"),
        ({"metric": 3}, "metric is 3; it must be one word"),
        ({"targets": "real"}, "targets is 'real'; it must be 'uniform', or"),
        ({"targets": ["gender"]}, r"targets is \['gender'\]; it must be"),
        ({"targets": {"gendr": "uniform"}}, "targets: dataset 'occupation' has no axis 'gendr'; did you mean"),
        ({"targets": {"gender": "even"}}, "the target of axis 'gender' is 'even'; it must be 'uniform', or shares"),
        ({"targets": {"gender": {"man": 1}}}, "the target of axis 'gender': the axis has no attribute 'man'"),
        ({"targets": {"gender": {"male": 1}}}, "has no share for 'female'"),
        ({"targets": {"gender": [0.5, 0.4]}}, "sums to 0.9"),
        ({"targets": {"gender": [0.5]}}, "has 1 shares for its 2 attributes"),
        ({"targets": {"gender": ["half", 0.5]}}, "has 'half' where a number"),
        ({"targets": {"gender": [True, False]}}, "has True where a number"),
        ({"targets": {"gender": 0.5}}, "the target of axis 'gender' is 0.5"),
        ({"intervention": "targets"}, "intervention cannot be 'targets'; did you mean 'target'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_settings(DATASET, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "first", "second", "how"),
    [
        ("subject", "nurse", "nurse ", "white space"),
        ("subject", "nurse", "Nurse", "case"),
        ("subject", "infirmi\u00e8re", "infirmie\u0300re", "its Unicode form"),
        ("model", "sd 14", "sd  14", "white space"),
        ("model", "SD14", "sd14", "case"),
    ],
)
def test_two_names_that_people_read_as_one_are_refused_with_the_row(column, first, second, how) -> None:
    """Each would be a row of the matrices with half of the images."""
    rows = frame(cell("", "", "gender", {"male": 2}), cell("gender", "male", "gender", {"male": 2}))
    rows[column] = [first, first, *[second] * (len(rows) - 2)]
    with pytest.raises(AnswersError) as refused:
        analyze(rows, make_settings(DATASET))
    assert f"row 3: {column} {second!r} differs from {first!r} by {how} alone" in str(refused.value)
