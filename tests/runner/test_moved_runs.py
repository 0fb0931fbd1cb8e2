"""Where a run and its store lie is no part of the run: when moved, they are found or said to be missing."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from seesaw.experiments.dataset.load import load_dataset
from seesaw.results.errors import EnvironmentFault, RunDirectoryError
from seesaw.results.store.store import Store
from seesaw.runner.display.status import show_status
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.report import rewrite_report, write_report
from seesaw.runner.run_places import places_of, store_of
from seesaw.runner.rundir import RunDirectory
from seesaw.runner.store_checks import check_same_store
from tests.results.trial import experiment_of, run_of

CONFIG = """
models: [{name: simt, engine: simulated, cpus: 0.25}]
vqa: simulated
subjects: [nurse]
axes: [gender, age]
images: 4
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a run, its store and its report."""
    run, store = run_of(tmp_path / "project", axes=("gender",), images=2)
    write_report(run, store)
    return tmp_path / "project"


def pictures(run: Path) -> int:
    return (run / "report" / "index.html").read_text().count("<img ")


def moved(project: Path, to: str) -> Path:
    place = project.parent / to
    project.rename(place)
    return place


def experiment_at(project: Path, config: Path):
    """The trial's experiment, with run and store as the config of a run directory says now."""
    dataset = replace(load_dataset("occupation").select(axes=("gender",)), subjects=("nurse",))
    experiment = experiment_of(project, ("birch",), dataset, 2, ())
    return replace(
        experiment, **{key: place if key == "store" else Path(place) for key, place in places_of(config).items()}
    )


def test_a_project_that_is_moved_or_copied_as_a_whole_has_its_store_and_its_pictures(project):
    shown = pictures(project / "run")
    assert shown > 0
    shutil.copytree(project, project.parent / "copy")
    assert store_of(project.parent / "copy" / "run") == str(project.parent / "copy" / "store")
    assert store_of(project / "run") == str(project / "store")
    there = moved(project, "deeper")
    assert store_of(there / "run") == str(there / "store")
    assert rewrite_report(there / "run", None)[1] == ""
    assert pictures(there / "run") == shown


def test_a_run_that_is_moved_alone_keeps_the_store_where_it_was(project):
    (project / "run").rename(project.parent / "run elsewhere")
    assert store_of(project.parent / "run elsewhere") == str(project / "store")


def test_a_store_that_is_moved_alone_is_said_to_be_missing_and_the_report_keeps_its_pictures(project):
    page = (project / "run/report/index.html").read_bytes()
    (project / "store").rename(project.parent / "elsewhere")
    with pytest.raises(RunDirectoryError, match=r"there is no store at .* is left as it is"):
        rewrite_report(project / "run", None)
    assert (project / "run/report/index.html").read_bytes() == page
    path, message = rewrite_report(project / "run", str(project.parent / "elsewhere"))
    assert (message, path.read_bytes()) == ("", page)
    path.unlink()
    assert "there is no store at" in rewrite_report(project / "run", None)[1]


def test_the_config_of_a_run_directory_is_about_that_directory_wherever_it_was_written(project):
    experiment = experiment_at(project, project / "run/config.yaml")
    there = moved(project, "moved")
    experiment = experiment_at(there, there / "run/config.yaml")
    assert (experiment.run, experiment.store) == (there / "run", str(there / "store"))


def test_images_are_not_made_again_because_a_store_was_not_found(project):
    experiment = experiment_at(project, project / "run/config.yaml")
    assert not check_same_store(experiment, Store(experiment.store))

    (project / "store").rename(project.parent / "elsewhere")
    for place in ("store", "another"):
        with pytest.raises(EnvironmentFault, match=r"there is none.*store=DIR"):
            check_same_store(experiment, Store(project / place))
    assert check_same_store(experiment, Store(project.parent / "elsewhere"))
    (project / "store").mkdir()  # the mount point of a share that is away
    with pytest.raises(EnvironmentFault, match=r"there is none.*store=DIR"):
        check_same_store(experiment, Store(project / "store"))


def test_another_store_is_taken_if_it_holds_what_the_run_has(project):
    experiment = experiment_at(project, project / "run/config.yaml")
    shutil.copytree(project / "store", project / "more")
    assert check_same_store(experiment, Store(project / "more"))
    next((project / "more").glob("images/*/*.parquet")).unlink()
    with pytest.raises(RunDirectoryError, match="lacks 1 of their shards"):
        check_same_store(experiment, Store(project / "more"))


def test_the_place_of_the_store_of_an_older_run_does_not_bind_it(project):
    record = json.loads((project / "run/run.json").read_text())
    assert "store" not in record["fingerprint"]


def test_relative_places_are_taken_from_the_working_directory_wherever_they_are_written(tmp_path, monkeypatch):
    for folder in ("configs", "here"):
        (tmp_path / folder).mkdir()
    written = tmp_path / "configs" / "written.yaml"
    written.write_text(CONFIG + "run: r\nstore: s\n")
    plain = tmp_path / "configs" / "plain.yaml"
    plain.write_text(CONFIG)
    monkeypatch.chdir(tmp_path / "here")
    here = tmp_path / "here"
    for config, overrides, run, store in (
        (written, [], here / "r", here / "s"),
        (plain, [], here / "outputs/plain", here / "outputs/store"),
        (plain, ["run=../r", "store=t"], tmp_path / "r", here / "t"),
        (Path("../configs/written.yaml"), ["store=/absolute"], here / "r", Path("/absolute")),
    ):
        experiment = load_experiment(str(config), overrides)
        assert experiment.run == run
        assert experiment.store == str(store)


def test_status_of_a_moved_run_says_where_it_stands_or_that_its_store_is_missing(tmp_path, monkeypatch, capsys):
    """Nothing was made here yet, so no Ray is needed: a run that was interrupted at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "sim.yaml").write_text(CONFIG)
    experiment = load_experiment("a/sim.yaml", ["run=a/run", "store=a/store"])
    Store(experiment.store).probe()
    experiment.run.mkdir()
    (experiment.run / "config.yaml").write_text(yaml.safe_dump(experiment.resolved()))
    record = {"command": "sweep", "state": "interrupted", "fingerprint": experiment.fingerprint()}
    (experiment.run / "run.json").write_text(json.dumps(record))
    (tmp_path / "a").rename(tmp_path / "b")
    show_status(Path("b/run"), as_json=True)
    status = json.loads(capsys.readouterr().out)
    assert (status["store"], status["store_found"]) == (str(tmp_path / "b/store"), True)
    (tmp_path / "b/store").rename(tmp_path / "elsewhere")
    show_status(Path("b/run"), as_json=False)
    assert "there is no store at" in capsys.readouterr().out
    show_status(Path("b/run"), as_json=True, given="elsewhere")
    assert json.loads(capsys.readouterr().out)["store_found"]


@pytest.mark.slow  # sweeps with a Ray of their own
def test_a_swept_project_moves_and_its_store_serves_others_when_it_can_only_be_read(tmp_path, seesaw):
    home = tmp_path / "a"
    home.mkdir()
    (home / "sim.yaml").write_text(CONFIG)
    (tmp_path / "sim.yaml").write_text(CONFIG)

    assert seesaw("sweep", "a/sim.yaml", "run=a/run", "store=a/store").code == 0
    home.rename(tmp_path / "b")
    assert "100.0% done" in seesaw("status", "b/run").out
    again = seesaw("sweep", "b/run/config.yaml")
    assert again.code == 0, again.err
    assert "nothing to do" in again.err
    again = seesaw("sweep", "sim.yaml", "run=b/run", "store=b/store")
    assert again.code == 0, again.err
    assert "nothing to do" in again.err

    shared = tmp_path / "shared"
    shared.mkdir()
    subprocess.run(["mount", "--bind", "-o", "ro", tmp_path / "b/store", shared], check=True)
    try:
        lent = seesaw("sweep", "sim.yaml", "store=shared", "run=c", "--json")
        more = seesaw("sweep", "sim.yaml", "store=shared", "run=d", "images=16")
    finally:
        subprocess.run(["umount", shared], check=True)
    assert lent.code == 0, lent.err
    assert json.loads(lent.out.splitlines()[-1])["images_made"] == 0
    assert more.code == 4
    assert "a store that can only be read serves a run that needs nothing new, and this one lacks" in more.err
    assert not (tmp_path / "d" / "run.json").exists()


@pytest.mark.timeout(60)
def test_a_fifo_in_the_place_of_a_table_is_named_and_not_waited_for(project):
    directory = RunDirectory(SweepJob(experiment_at(project, project / "run/config.yaml")))
    (project / "run/matrices.csv").unlink()
    os.mkfifo(project / "run/matrices.csv")
    with pytest.raises(RunDirectoryError, match=r"matrices\.csv' cannot be read: it is no regular file; delete it"):
        directory.finished()
