"""`seesaw labels`: a blind plan with its images, labels that are checked and never lost, figures beside the plain."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from PIL import Image

from seesaw.actors.pictogram.world import WORLDS
from seesaw.results.errors import ConfigError, InputError, LabelsError, RunDirectoryError, StoreError
from seesaw.results.tables.labels import add_labels, read_labels
from seesaw.runner.cli import main
from seesaw.runner.labels import import_labels, plan_labels
from seesaw.runner.report import rewrite_report
from tests.results.trial import run_of

AXES = ("gender", "clothing", "disability")


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    run, _ = run_of(tmp_path_factory.mktemp("labels"), subjects=("nurse", "police"), axes=AXES, images=8)
    return run


@pytest.fixture
def run(swept, tmp_path) -> Path:
    """A copy of the run directory, whose labels nobody else changes; the store stays where it is."""
    for name in ("config.yaml", "run.json", *(f"{table}.parquet" for table in TABLES)):
        (tmp_path / name).write_bytes((swept / name).read_bytes())
    return tmp_path


TABLES = ("answers", "distributions", "matrices", "uncertainty", "bias", "means", "withheld", "failures")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def filled(path: Path, label, **changes: str) -> Path:
    """The CSV with `label(row)` as each label."""
    frame = pd.DataFrame(rows_of(path)).assign(**changes)
    frame["label"] = [label(row) for row in frame.to_dict("records")]
    frame.to_csv(path, index=False)
    return path


def truly(run: Path):
    """Labels by somebody who sees what was drawn."""
    answers = pd.read_parquet(run / "answers.parquet").drop_duplicates("image_key").set_index("image_key")

    def label(row: dict[str, str]) -> str:
        image = answers.loc[row["image_key"]]
        state = WORLDS["birch"].sample(image["prompt"], int(image["seed"]))
        assert state is not None
        return state[row["axis"]]

    return label


def test_a_plan_is_blind_and_has_the_images_as_files(run):
    rows = rows_of(plan_labels(run, 30))
    assert len(rows) == 90
    assert len({row["image_key"] for row in rows}) == 30
    assert list(rows[0]) == ["number", "image_key", "path", "axis", "choices", "label", "labeller"]
    assert {row["axis"]: row["choices"] for row in rows} == {
        "gender": "male | female | unclear",
        "clothing": "formal | informal | unclear",
        "disability": "fit | blind | hearing aid | wheelchair | unclear",
    }
    for row in rows:
        with Image.open(row["path"]) as image:
            assert image.size == (64, 64)
        assert row["label"] == row["labeller"] == ""
        assert Path(row["path"]).stem == row["image_key"]
    assert not {"nurse", "police", "obese"} & set(" ".join(map(str, rows)).split())


def test_a_plan_of_some_axes_has_no_others_and_one_for_more_images_than_there_are_has_them_all(run):
    rows = rows_of(plan_labels(run, 10_000, ["gender"]))
    answers = pd.read_parquet(run / "answers.parquet")
    assert {row["axis"] for row in rows} == {"gender"}
    assert len(rows) == (answers["axis"] == "gender").sum()


def test_labels_that_were_filled_in_are_not_overwritten_by_another_plan_until_they_are_imported(run):
    path = filled(plan_labels(run, 5), truly(run))
    with pytest.raises(LabelsError, match=r"labels that were not imported; `seesaw labels import"):
        plan_labels(run, 6)
    import_labels(run, path)
    assert len({row["image_key"] for row in rows_of(plan_labels(run, 6))}) == 6


def test_an_import_writes_accuracy_and_corrected_figures_and_leaves_the_plain_ones_as_they_are(run):
    plain = {name: (run / f"{name}.parquet").read_bytes() for name in ("answers", "matrices", "uncertainty")}
    path = filled(plan_labels(run, 40), truly(run))
    assert import_labels(run, path)[:2] == (120, 120)
    assert {name: (run / f"{name}.parquet").read_bytes() for name in plain} == plain
    corrected, matrices = (pd.read_parquet(run / f"{name}.parquet") for name in ("tables/corrected", "matrices"))
    key = ["model", "subject", "source_axis", "target_axis"]
    assert corrected[key].equals(matrices[key])
    # this VLM is never wrong, so what is corrected is what was read, but for the prior of 1.5 images
    both = corrected.merge(matrices, on=key, suffixes=("", "_plain"))
    assert (both["is"] - both["is_plain"]).abs().max() < 0.12
    whole = pd.read_parquet(run / "tables" / "accuracy.parquet").query("group_axis == ''")
    assert whole["right"].tolist() == whole["labelled"].tolist() == [40, 40, 40]
    page = rewrite_report(run, None)[0].read_text()
    assert "What the VLM misreads" in page
    assert "tables/corrected.parquet" in page


def test_a_report_without_labels_says_nothing_of_misreading(run):
    assert 'id="misreading"' not in rewrite_report(run, None)[0].read_text()


def test_imports_add_labels_and_lose_none(run):
    path = filled(plan_labels(run, 6, ["gender"]), truly(run))
    assert import_labels(run, path)[:2] == (6, 6)
    before = read_labels(run)
    assert import_labels(run, path)[:2] == (6, 0)
    assert read_labels(run).equals(before)
    others = {"male": "female", "female": "male"}
    filled(path, lambda row: others[row["label"]])
    assert import_labels(run, path)[:2] == (6, 6)
    after = read_labels(run)
    assert after[: len(before)].equals(before)
    assert after["imported"].tolist() == [1] * 6 + [2] * 6
    filled(path, lambda row: row["label"], labeller="somebody else")
    assert import_labels(run, path)[:2] == (6, 6)
    assert set(read_labels(run)["labeller"]) == {"", "somebody else"}
    assert pd.read_csv(run / "labels.csv").shape == (18, 10)


def test_rows_without_a_label_are_left_for_later(run):
    path = plan_labels(run, 6, ["gender"])
    keys = [row["image_key"] for row in rows_of(path)]
    filled(path, lambda row: "male" if row["image_key"] in keys[:2] else "")
    assert import_labels(run, path)[:2] == (2, 2)
    assert set(read_labels(run)["image_key"]) == set(keys[:2])


def test_a_swept_run_corrects_its_new_figures_by_the_labels_that_are_there(tmp_path):
    run, _ = run_of(tmp_path, axes=("gender", "clothing"), images=8)
    import_labels(run, filled(plan_labels(run, 20), truly(run)))
    before = pd.read_parquet(run / "tables" / "corrected.parquet")
    run_of(tmp_path, axes=("gender", "clothing"), images=16)
    after = pd.read_parquet(run / "tables" / "corrected.parquet")
    assert len(read_labels(run)) == 40
    assert not after["is"].equals(before["is"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "mail"}, "row 1: 'mail' is no choice of axis 'gender'; did you mean 'male'?"),
        ({"axis": "gendre"}, "row 1: dataset 'occupation' has no axis 'gendre'; did you mean 'gender'?"),
        ({"axis": "age"}, "row 1: dataset 'occupation' has no axis 'age'"),
        ({"image_key": "f" * 32}, "row 1: this run has no image 'ffff"),
    ],
)
def test_wrong_labels_are_refused_with_their_row_and_none_is_kept(run, change, message):
    path = plan_labels(run, 3, ["gender"])
    rows = [{**row, "label": "male"} for row in rows_of(path)]
    rows[0] |= change
    pd.DataFrame(rows).to_csv(path, index=False)
    with pytest.raises(LabelsError) as error:
        import_labels(run, path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert not (run / "labels.parquet").exists()
    assert not (run / "tables").exists()


def test_the_same_labeller_twice_about_one_image_is_refused_and_two_labellers_are_not(run):
    path = plan_labels(run, 2, ["gender"])
    row = {**rows_of(path)[0], "label": "male"}
    pd.DataFrame([row, {**row, "label": "female"}]).to_csv(path, index=False)
    with pytest.raises(LabelsError, match=r"row 2: the same labeller labels the gender of .* a second time, after"):
        import_labels(run, path)
    pd.DataFrame([row, {**row, "label": "female", "labeller": "Ann"}]).to_csv(path, index=False)
    assert import_labels(run, path)[:2] == (2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "has no column 'image_key'"),
        (b"image_key,axis\nx,gender\n", "has no column 'label'"),
        (b"image_key;axis;label\nx;gender;male\n", "separated by ';' and not by commas"),
        (b"image_key,axis,label,label\n", "has 2 columns 'label'"),
        (b"image_key,axis,label\nx,gender\n", "row 1: has 2 cells, and the header has 3"),
        (b"image_key,axis,label\nx,gender,\n", "no row has a label"),
        (b"image_key,axis,label\nx,gender,m\xe4nnlich\n", "line 2 is not UTF-8"),
        (b'{"image_key": 1}', "is JSON"),
    ],
)
def test_a_file_that_is_no_table_of_labels_is_refused(run, tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_bytes(text)
    with pytest.raises(InputError) as error:
        import_labels(run, path)
    assert message in str(error.value)


def test_a_file_that_is_not_there_is_named_with_the_nearest_that_is(run, tmp_path):
    (tmp_path / "labels.csv").write_text("")
    with pytest.raises(LabelsError, match=r"there is no such file; did you mean 'labels.csv'\?"):
        import_labels(run, tmp_path / "label.csv")


def test_places_that_have_no_images_are_refused(run, tmp_path):
    with pytest.raises(RunDirectoryError):
        plan_labels(tmp_path / "nowhere", 3)
    with pytest.raises(ConfigError, match="did you mean 'gender'"):
        plan_labels(run, 3, ["gendre"])
    with pytest.raises(StoreError, match="--store STORE says where the images are"):
        plan_labels(run, 3, store=str(tmp_path / "empty"))


def test_nothing_is_imported_while_another_seesaw_is_at_work_in_the_run(run):
    path = filled(plan_labels(run, 3), truly(run))
    with FileLock(run / ".lock"), pytest.raises(RunDirectoryError, match="another seesaw is at work"):
        import_labels(run, path)
    assert not (run / "labels.parquet").exists()


def test_labels_that_cannot_be_read_are_named_and_not_replaced(run):
    (run / "labels.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(RunDirectoryError, match="move it aside"):
        add_labels(run, read_labels(run))
    assert (run / "labels.parquet").read_bytes() == b"PAR1 no"


def test_unclear_labels_and_labellers_who_are_divided_count_nowhere_and_are_told(run):
    path = plan_labels(run, 3, ["gender"])
    rows = rows_of(path)
    labels = [
        {**rows[0], "label": "male"},
        {**rows[1], "label": "unclear"},
        {**rows[2], "label": "male", "labeller": "Ann"},
        {**rows[2], "label": "female", "labeller": "Bo"},
    ]
    pd.DataFrame(labels).to_csv(path, index=False)
    total, new, notes = import_labels(run, path)
    assert (total, new) == (4, 4)
    assert notes[0] == "of 3 labelled images and axes, 2 count nowhere: unclear, or labellers are divided"
    assert pd.read_parquet(run / "tables" / "misreading.parquet")["labelled"].tolist() == [1]
    assert notes[0] in rewrite_report(run, None)[0].read_text()


def test_the_commands_say_where_things_are_and_what_is_new(run, tmp_path, capfd):
    def seesaw(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments)], standalone_mode=False)
        out, err = capfd.readouterr()
        return end.value.code, out, err

    code, out, _ = seesaw("labels", "plan", run, "-n", 4, "--axis", "gender", "--out", tmp_path / "mine")
    assert (code, out.split()[0]) == (0, str(tmp_path / "mine" / "labels.csv"))
    filled(tmp_path / "mine" / "labels.csv", truly(run))
    code, out, err = seesaw("labels", "import", run, tmp_path / "mine" / "labels.csv")
    assert (code, out.split(";")[0]) == (0, "4 labels, 4 of them new")
    assert "no image has a label for clothing, disability" in err
    code, _, err = seesaw("labels", "import", run, tmp_path / "none.csv")
    assert code == 2
    assert "there is no such file" in err
