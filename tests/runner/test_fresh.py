"""Run directories of mitigations that are judged on fresh images, and of those that are not. Starts nothing."""

import pandas as pd
import pytest

from seesaw.results.errors import RunDirectoryError
from seesaw.results.store.store import Store
from seesaw.results.tables.read_mitigation import read_mitigation
from seesaw.runner.jobs.mitigate import MitigateJob
from tests.results.trial import experiment_of, page_of, run_of

KEYS = {"priorities": {"gender": 0.5, "clothing": 0.5}, "epsilon": 0.2}


def mitigated(tmp_path, **keys):
    return run_of(tmp_path, axes=("gender", "clothing"), images=16, sweep=False, mitigate={**KEYS, **keys})


def test_a_run_that_was_not_judged_may_be_judged_and_not_the_other_way_round(tmp_path):
    run, store = mitigated(tmp_path, fresh=False)
    (plain,) = read_mitigation(run / "mitigation.parquet")
    folder = next(iter(Store(store).folders()))
    held = Store(store).names(folder)
    assert {step.judged for step in plain.trajectory} == {"shared"}

    mitigated(tmp_path)
    (judged,) = read_mitigation(run / "mitigation.parquet")
    assert judged.judged == "fresh"
    assert held < Store(store).names(folder), "images were added, and none changed"
    with pytest.raises(RunDirectoryError, match=r"mitigation\.fresh"):
        mitigated(tmp_path, fresh=False)
    with pytest.raises(RunDirectoryError, match=r"mitigation\.margin"):
        mitigated(tmp_path, margin=0.1)


def test_without_fresh_and_margin_a_mitigation_has_the_identity_that_older_run_directories_hold(tmp_path):
    from seesaw.experiments.dataset.load import load_dataset

    dataset = load_dataset("occupation").select(subjects=["nurse"], axes=["gender", "clothing"])

    def identity(**keys):
        return MitigateJob(experiment_of(tmp_path, ["birch"], dataset, 16, (), {**KEYS, **keys})).identity()[
            "mitigation"
        ]

    assert identity(fresh=False).keys() == {"intervention", "mitigator", "max_steps", "cases"}
    assert identity()["fresh"] is True
    assert identity(max_steps="chosen")["max_steps"] == "chosen"


def test_the_report_and_the_tables_say_what_was_judged_on_what_and_how_sure_it_is(tmp_path):
    run, store = mitigated(tmp_path, strategy=["greedy", "own"])
    page = page_of(run, store)
    assert "judged on fresh images" in page
    assert "tau is at most epsilon with probability" in page
    appendix = pd.read_csv(next((run / "tables").glob("appendix-*greedy.csv")))
    assert appendix["judged"].tolist() == ["fresh"]
    assert appendix["p_reached"].between(0, 1).all()
