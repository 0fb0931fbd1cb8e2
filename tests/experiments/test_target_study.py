"""What another D* does to IS: measured on real images or given in a table."""

import asyncio
import time

import numpy as np
import pandas as pd
import pytest

from seesaw.actors.pictogram.codes import AXES
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.analysis import analyze
from seesaw.experiments.answers import coded_answers
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab, exact_matrices
from seesaw.experiments.lab import Observations
from seesaw.experiments.prompts import initial_prompt, prompts_of
from seesaw.experiments.settings import make_settings
from seesaw.experiments.tally import tally_answers
from seesaw.experiments.target_study import (
    Targets,
    flip_summary,
    flips,
    observed_targets,
    read_targets,
    real_targets,
    with_targets,
)
from seesaw.results.errors import AnswersError, ConfigError
from seesaw.results.tables.read_answers import read_answers

DATASET = load_dataset("occupation")
FEW = DATASET.select(subjects=["chef", "nurse"])
NURSE = DATASET.select(subjects=["nurse"])
SEVEN = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]


def cell(source: str, value: str, axis: str, answers: dict[str, int], model: str = "m", subject: str = "nurse") -> list:
    """Rows of a cell in which `answers[word]` images answer `axis` with `word`; "no" is an image without a person."""
    words = [word for word, count in answers.items() for _ in range(count)]
    place = (model, subject, source, value)
    rows = [(*place, str(i), "person", "no" if word == "no" else "yes") for i, word in enumerate(words)]
    return rows + [(*place, str(i), axis, word) for i, word in enumerate(words) if word != "no"]


def flips_of(answers: pd.DataFrame, settings, targets: Targets) -> pd.DataFrame:
    """`flips` of the sweep that `answers` are."""
    return flips(tally_answers(coded_answers(answers, settings.dataset), settings.dataset), settings, targets)


def table(*cells: list) -> pd.DataFrame:
    return pd.DataFrame([row for rows in cells for row in rows], columns=SEVEN)


#: docs/method.md: 48/48 formal at first, 54/96 after the intervention, 47/48 in the real images.
SWEEP = table(
    cell("", "", "clothing", {"formal": 48}),
    cell("clothing", "formal", "clothing", {"formal": 44, "informal": 4}),
    cell("clothing", "informal", "clothing", {"formal": 10, "informal": 38}),
)
REAL = table(cell("", "", "clothing", {"formal": 47, "informal": 1, "no": 3}, model="real"))


def drawn(model: str, subjects, images: int = 48) -> pd.DataFrame:
    """The answers to images that a world drew."""
    world, rows = WORLDS[model], []
    for prompt in (prompt for subject in subjects for prompt in prompts_of(DATASET, subject)):
        place = (model, prompt.subject, prompt.source_axis, prompt.source_value)
        for i in range(images):
            figure = world.sample(prompt.text, i)
            rows.append((*place, str(i), "person", "yes" if figure else "no"))
            rows += [(*place, str(i), axis, value) for axis, value in (figure or {}).items()]
    return pd.DataFrame(rows, columns=SEVEN)


def test_the_papers_flip_comes_out_of_real_images():
    targets = real_targets(REAL, NURSE)
    assert targets.shares["nurse"]["clothing"].tolist() == [47 / 48, 1 / 48]
    assert targets.n == {"nurse": {"clothing": 48}}
    row = flips_of(SWEEP, make_settings(DATASET), targets)
    assert row.columns.tolist()[4:] == [
        "is_before", "se_before", "is_after", "se_after", "w_init_before", "w_init_after", "flipped",
    ]  # fmt: skip
    assert len(row) == 1
    assert row.iloc[0].tolist()[:4] == ["m", "nurse", "clothing", "clothing"]
    assert row["is_before"].item() == pytest.approx(0.875, abs=1e-12)
    assert row["is_after"].item() == pytest.approx(-19 / 24, abs=1e-12)  # -0.792
    assert row["w_init_before"].item() == 1
    assert row["w_init_after"].item() == pytest.approx(1 / 24, abs=1e-12)
    assert row["flipped"].item()
    assert flip_summary(row).iloc[0].tolist() == [
        "m",
        1,
        1,
        1.0,
        "nurse",
        "clothing",
        "clothing",
        *row[["is_before", "is_after"]].iloc[0],
    ]


def test_before_and_after_are_analyses_with_either_target():
    sweep = pd.concat([drawn(model, FEW.subjects, 12) for model in ("alder", "elm")], ignore_index=True)
    settings, targets = (
        make_settings(DATASET, metric={"age": "ordinal"}),
        real_targets(drawn("birch", ["nurse"]), NURSE),
    )
    found = flips_of(sweep, settings, targets)
    assert found["subject"].unique().tolist() == ["nurse"]  # nothing is said of chefs
    assert found["model"].unique().tolist() == ["alder", "elm"]
    assert len(found) == 2 * 64
    for when, given in (("before", None), ("after", dict(targets.shares["nurse"]))):
        alone = make_settings(DATASET, {"age": "ordinal"}, given)
        rows = sweep[sweep["subject"] == "nurse"]
        expected = analyze(rows, alone).matrices.merge(analyze(rows, alone).uncertainty)
        for column in ("source_axis", "target_axis"):
            assert found[column].tolist() == expected[column].tolist()
        for column in ("is", "w_init", "se"):
            assert found[f"{column}_{when}"].to_numpy() == pytest.approx(expected[column].to_numpy(), abs=1e-12)
    sure = (found["is_before"].abs() > 1.96 * found["se_before"]) & (found["is_after"].abs() > 1.96 * found["se_after"])
    other = np.sign(found["is_before"]) == -np.sign(found["is_after"])
    assert found["flipped"].tolist() == (sure & other).tolist()
    assert 0 < found["flipped"].sum() < other.sum()  # some signs change by sampling alone


def test_a_sign_that_sampling_may_have_changed_is_no_flip():
    """28 of 48 before, 52 of 96 after: nothing is known for sure of either sign."""
    sweep = table(
        cell("", "", "clothing", {"formal": 28, "informal": 20}),
        cell("clothing", "formal", "clothing", {"formal": 30, "informal": 18}),
        cell("clothing", "informal", "clothing", {"formal": 22, "informal": 26}),
    )
    row = flips_of(sweep, make_settings(DATASET), real_targets(REAL, NURSE)).iloc[0]
    assert row["is_before"] > 0 > row["is_after"]
    assert not row["flipped"]


def test_a_model_is_as_it_should_be_where_it_is_its_own_target():
    """D* measured on a world's own images: nothing to mitigate at first, so no intervention can help."""
    sweep = drawn("alder", FEW.subjects)
    found = flips_of(sweep, make_settings(FEW), real_targets(sweep, FEW, "alder"))
    assert len(found) == 2 * 64
    assert found["w_init_after"].to_numpy() == pytest.approx(0, abs=1e-12)
    assert (found["is_after"] <= 0).all()
    assert (found["is_before"] > 0).any()
    assert found["flipped"].any()


def test_exact_worlds_are_as_they_should_be_under_their_own_shares():
    lab = ExactLab(FEW, {"elm": WORLDS["elm"].shares})
    seen = asyncio.run(lab.observe("elm", [initial_prompt(FEW, subject) for subject in FEW.subjects], 48))
    targets = observed_targets(seen)
    for subject in FEW.subjects:
        assert targets.n[subject] == pytest.approx(dict.fromkeys(AXES, 48))
        settings = with_targets(make_settings(FEW.select(subjects=[subject])), targets, subject)
        found = asyncio.run(exact_matrices({"elm": WORLDS["elm"].shares}, settings))
        assert len(found) == 64
        assert found["is"].max() <= 1e-12
        assert found["is"].min() < -0.1


def test_counterfactuals_go_on_to_weigh_the_same():
    sweep = table(
        cell("", "", "clothing", {"formal": 48}),
        cell("clothing", "formal", "clothing", {"formal": 48}),
        cell("clothing", "informal", "clothing", {"informal": 48}),
    )
    targets = real_targets(table(cell("", "", "clothing", {"formal": 36, "informal": 12})), NURSE)
    uniform = flips_of(sweep, make_settings(DATASET), targets)
    assert uniform["is_after"].item() == pytest.approx(0.5 - 0.5)  # w of 48/48 and of 48/96 from 36/48
    weighted = flips_of(sweep, make_settings(DATASET, intervention="target"), targets)
    assert weighted["is_after"].item() == pytest.approx(0.5)  # as D* says: exactly there


def test_axes_without_a_target_have_no_rows_and_cells_that_are_lacking_are_undefined():
    sweep = table(
        cell("", "", "gender", {"male": 30, "female": 18}),
        cell("clothing", "formal", "gender", {"male": 48}),
        cell("clothing", "informal", "gender", {"female": 48}),
        cell("", "", "gender", {"male": 30, "female": 18}, subject="chef"),
        [("m", "nurse", "", "", str(i), "clothing", "formal") for i in range(48)],
    )
    targets = Targets({subject: {"gender": np.array([0.5, 0.5])} for subject in FEW.subjects})
    found = flips_of(sweep, make_settings(DATASET), targets)
    assert found[["subject", "source_axis", "target_axis"]].to_numpy().tolist() == [
        ["chef", "clothing", "gender"],
        ["nurse", "clothing", "gender"],
    ]
    assert found["is_after"].isna().tolist() == [True, False]
    assert found["flipped"].tolist() == [False, False]
    assert flip_summary(found).iloc[0, :4].tolist() == ["m", 1, 0, 0.0]
    assert flip_summary(found).iloc[0, 4:7].tolist() == ["", "", ""]
    with pytest.raises(ConfigError, match=r"D\* is about announcer, but the answers are about other subjects or axes"):
        flips_of(sweep, make_settings(DATASET), Targets({"announcer": {"gender": np.array([0.5, 0.5])}}))


def test_the_strongest_flip_is_that_whose_is_moves_most_of_each_model():
    names = ["model", "subject", "source_axis", "target_axis", "is_before", "is_after", "flipped"]
    rows = [
        ("m", "nurse", "age", "age", 0.4, -0.3, True),
        ("m", "nurse", "age", "gender", -0.5, 0.4, True),
        ("m", "nurse", "age", "emotion", 0.9, -0.9, False),
        ("m", "nurse", "age", "clothing", np.nan, 0.1, False),
        ("n", "nurse", "age", "clothing", np.nan, 0.1, False),
    ]
    found = flip_summary(pd.DataFrame(rows, columns=names)).set_index("model")
    assert found.loc["m"].tolist() == [3, 2, pytest.approx(2 / 3), "nurse", "age", "gender", -0.5, 0.4]
    assert found.loc["n", ["entries", "flipped"]].tolist() == [0, 0]
    assert np.isnan(found.loc["n", "share"])


def test_only_initial_prompts_are_real():
    answers = pd.concat([REAL, SWEEP[SWEEP["source_axis"] != ""].assign(model="real")])
    assert real_targets(answers, NURSE, "real").shares["nurse"]["clothing"].tolist() == [47 / 48, 1 / 48]


@pytest.mark.parametrize(
    ("answers", "dataset", "model", "message"),
    [
        (pd.concat([REAL, SWEEP]), NURSE, None, r"about several models \(m, real\); leave the rows of one in the file"),
        (REAL, NURSE, "reel", "not about a model 'reel'; did you mean 'real'"),
        (REAL, FEW, None, "model 'real': no valid image of 'chef', so it has no D.; add some, or leave"),
        (table(cell("", "", "gender", {"no": 4})), NURSE, None, "model 'm': no valid image of 'nurse', so"),
        (table(cell("age", "old", "gender", {"male": 4})), NURSE, None, "model 'm': no valid image of 'nurse', so"),
        (
            table(
                cell("", "", "gender", {"male": 2}),
                cell("", "", "gender", {"male": 2}, subject="chef"),
                [("m", "chef", "", "", "0", "age", "old")],
            ),
            FEW,
            None,
            "no valid image of 'nurse' answers axis 'age', so it has no D.",
        ),
        (table(cell("", "", "gender", {"man": 4})), NURSE, None, "row 5: 'man' is not an attribute of axis 'gender'"),
    ],
)
def test_real_images_that_say_nothing_are_an_error_that_names_the_subject(answers, dataset, model, message):
    with pytest.raises(AnswersError, match=message):
        real_targets(answers, dataset, model)


def test_observations_that_say_nothing_are_an_error():
    prompt, shares = initial_prompt(FEW, "nurse"), {axis.name: np.ones(len(axis.attributes)) for axis in FEW.axes}
    nobody = {axis: 0 * counts for axis, counts in shares.items()}
    with pytest.raises(AnswersError, match="no valid image of 'nurse'"):
        observed_targets([Observations(prompt, nobody, 8, 8)])
    with pytest.raises(AnswersError, match=r"D\* of 'nurse' cannot be measured: it is gone"):
        observed_targets([Observations(prompt, shares, 8, 0, failures=("it is gone",))])
    with pytest.raises(ValueError, match="not of 'A photo of a male nurse'"):
        observed_targets([Observations(prompts_of(FEW, "nurse")[1], shares, 8, 0)])


def test_a_table_of_targets_is_read_and_what_is_said_of_one_subject_comes_first(tmp_path):
    path = tmp_path / "targets.csv"
    path.write_text(
        "\ufeffaxis,share,subject,attribute\n"
        "gender, 0.5,,male\ngender,0.5,,female\n\n"
        'gender,0.1,nurse,male\ngender,0.9,nurse,"female"\n'
        "clothing,1,chef,formal\nclothing,0,chef,informal\n"
    )
    found = read_targets(path, FEW)
    assert {s: {axis: d.tolist() for axis, d in by_axis.items()} for s, by_axis in found.shares.items()} == {
        "chef": {"gender": [0.5, 0.5], "clothing": [1, 0]},
        "nurse": {"gender": [0.1, 0.9]},
    }
    assert found.n == {}
    path.write_text("axis,attribute,share\nage,old,0.333333\nage,young,0.333333\nage,middle,0.3333335\n")
    assert all(
        by_axis["age"].sum() == pytest.approx(1, abs=1e-12) for by_axis in read_targets(path, FEW).shares.values()
    )


def test_what_was_measured_is_written_and_read_again(tmp_path):
    targets = real_targets(drawn("elm", FEW.subjects), FEW)
    frame = targets.frame(FEW)
    assert frame.columns.tolist() == ["subject", "axis", "attribute", "share", "n"]
    assert frame.groupby(["subject", "axis"])["share"].sum().to_numpy() == pytest.approx(1)
    frame.to_csv(tmp_path / "targets.csv", index=False)
    found = read_targets(tmp_path / "targets.csv", FEW)
    assert {subject: list(found.shares[subject]) for subject in FEW.subjects} == {"chef": [*AXES], "nurse": [*AXES]}
    for subject, by_axis in targets.shares.items():
        for axis, shares in by_axis.items():
            assert found.shares[subject][axis].tolist() == shares.tolist()
    assert read_targets_of(tmp_path, Targets({"chef": targets.shares["chef"]}).frame(FEW)).shares.keys() == {"chef"}


def read_targets_of(folder, frame: pd.DataFrame) -> Targets:
    frame.to_csv(folder / "again.csv", index=False)
    return read_targets(folder / "again.csv", FEW)


HEAD, GENDER = "subject,axis,attribute,share\n", ",gender,male,0.5\n,gender,female,0.5\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: has no column 'axis'; a table of D. has subject, axis, attribute, share"),
        ("axis,attribute\n", "line 1: has no column 'share'"),
        ("subjct,axis,attribute,share\n", "line 1: unknown column 'subjct'; did you mean 'subject'"),
        ("axis,axis,attribute,share\n", "line 1: has two columns called 'axis'"),
        (HEAD, "has no rows"),
        (HEAD + GENDER + "nurs,gender,male,1\n", "line 4: no subject 'nurs'; did you mean 'nurse'"),
        (HEAD + ",gendr,male,1\n", "line 2: dataset 'occupation' has no axis 'gendr'; did you mean 'gender'"),
        (HEAD + ",gender,mal,1\n", "line 2: axis 'gender' has no attribute 'mal'; did you mean 'male'"),
        (HEAD + ",gender,,1\n", "line 2: axis 'gender' has no attribute ''"),
        (HEAD + ",gender,male,half\n", "line 2: share is 'half'; it must be a number between 0 and 1"),
        (HEAD + ",gender,male,\n", "line 2: share is ''; it must be a number"),
        (HEAD + ",gender,male,nan\n", "line 2: share is nan; it must be between 0 and 1"),
        (HEAD + ",gender,male,50\n", "line 2: share is 50; it must be between 0 and 1"),
        (HEAD + ",gender,male,-0.1\n", "line 2: share is -0.1"),
        (HEAD + GENDER + ",gender,male,0.5\n", "line 4: 'male' of axis 'gender' has a share already"),
        (HEAD + "\n" + ",gender,male,1\n" + ",age,old,1\n", "line 3: axis 'gender' has no share for 'female'; give it"),
        (HEAD + GENDER + "nurse,gender,male,1\n", "line 4: axis 'gender' of 'nurse' has no share for 'female'"),
        (HEAD + ",gender,male,0.5\n,gender,female,0.50001\n", "line 3: the target of axis 'gender' sums to 1.00001"),
        (HEAD + ",gender,male\n", "line 2: has 3 fields for 4 columns"),
        (HEAD + ",gender,male,0.5,\n", "line 2: has 5 fields for 4 columns"),
        (HEAD + ',gender,male,"0.5"x\n', "line 2: not valid CSV"),
        (HEAD + ",gender,\udcff,1\n", "is not a text file"),
    ],
)
def test_a_bad_table_of_targets_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "targets.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message) as caught:
        read_targets(path, FEW)
    assert str(caught.value).startswith(str(path))


def test_a_table_that_is_not_there_is_named_with_its_neighbour(tmp_path):
    (tmp_path / "targets.csv").write_text(HEAD)
    with pytest.raises(ConfigError, match=r"target\.csv cannot be read: No such file.*did you mean 'targets\.csv'"):
        read_targets(tmp_path / "target.csv", FEW)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_targets(tmp_path, FEW)


@pytest.mark.slow  # a study of the paper's size
def test_five_models_and_the_papers_subjects_take_less_than_a_minute(tmp_path):
    """8,320 entries; the number of images hardly matters."""
    few = drawn("alder", DATASET.subjects, 8)
    sweep = pd.concat([few.assign(model=model) for model in WORLDS], ignore_index=True)
    sweep.to_parquet(tmp_path / "answers.parquet")
    sweep, targets = read_answers(tmp_path / "answers.parquet"), real_targets(few, DATASET)
    began = time.process_time()
    found = flips_of(sweep, make_settings(DATASET), targets)
    assert time.process_time() - began < 60
    assert len(found) == 5 * 26 * 64
    assert flip_summary(found)["share"].between(0.01, 0.9).all()


@pytest.mark.parametrize(
    ("text", "male"),
    [
        ("axis,attribute,share\nage,young,0.333\nage,middle,0.333\nage,old,0.333\ngender,male,0.118\n"
         "gender,female,0.882\n", 0.118),
        ("subject,axis,attribute,count\nnurse,gender,male,1604\nnurse,gender,female,12004\n", 1604 / 13608),
        ("axis,attribute,percent\ngender,male,11.8\ngender,female,88.2\n", 0.118),
    ],
    ids=["rounded", "counts", "per cent"],
)  # fmt: skip
def test_shares_are_taken_rounded_as_counts_and_as_per_cent(tmp_path, text, male):
    (tmp_path / "d.csv").write_text(text)
    shares = read_targets(tmp_path / "d.csv", NURSE).shares["nurse"]
    assert shares["gender"] == pytest.approx([male, 1 - male])
    assert all(each.sum() == pytest.approx(1) for each in shares.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axis,attribute,share\ngender,male,11.8\ngender,female,88.2\n", "per cent into 'percent'"),
        ("axis,attribute,share\ngender,male,0.5\ngender,female,0.4\n", "sums to 0.9; shares must sum to 1"),
        ("axis,attribute,share\ngender,male,0.50\ngender,female,0.45\n", "sums to 0.95"),
        ("axis,attribute,count\ngender,male,0\ngender,female,0\n", "all counts of axis .gender. are 0"),
        ("axis,attribute,share,count\ngender,male,0.5,1\n", "has share and count; give one column of numbers"),
        ("axis,attribute,percent\ngender,male,118\n", "percent is 118; it must be between 0 and 100"),
    ],
)
def test_numbers_that_are_no_shares_say_what_would_be_right(tmp_path, text, message):
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_targets(tmp_path / "d.csv", NURSE)
