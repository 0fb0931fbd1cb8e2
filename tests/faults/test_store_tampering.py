"""Things that others put into the store, or take from it, while a run is at work: told, and no fault of the batch."""

import os
from pathlib import Path

import pandas as pd
import pytest

from seesaw.results.store.store import Store
from seesaw.runner.experiment import load_experiment
from seesaw.runner.plan import all_batches

pytestmark = pytest.mark.slow  # runs a sweep

CONFIG = """
models: [{name: simt, engine: simulated, cpus: 0.25, settings: {seconds: 0.05}}]
vqa: simulated
subjects: [nurse]
axes: [gender]
images: 64
store: store
run: run
cluster: {replicas: {simt: 1, simulated: 1}}
"""


def test_what_takes_a_shards_name_in_a_live_run_is_moved_aside_and_a_shard_that_is_taken_is_told(
    start, tmp_path, monkeypatch
):
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment("config.yaml")
    (model,) = experiment.models
    batches = [*all_batches(experiment, model)]
    command = start("sweep", "config.yaml", "--json")
    notes, tampered = [], False
    for event in command.events():
        if event["event"] == "note":
            notes.append(event["message"])
        if event["event"] == "images" and not tampered:
            tampered = True
            left = [batch for batch in batches if not Path("store", batch.images).exists()]
            assert len(left) > 12
            folder, fifo, garbage, forged = (Path("store", batch.images) for batch in left[-4:])
            folder.mkdir()
            os.mkfifo(fifo)
            garbage.write_bytes(b"PAR1 garbage PAR1")
            forged.symlink_to("nowhere")
            for batch in left[-2:]:
                Path("store", batch.answers).parent.mkdir(parents=True, exist_ok=True)
                Path("store", batch.answers).write_bytes(b"PAR1 garbage PAR1")
            taken = next(Path("store", batch.images) for batch in batches if batch not in left)
            taken.unlink()
    command.finish()
    assert command.code == 0, command.err
    assert not (tmp_path / "run" / "failures.csv").exists() or pd.read_csv("run/failures.csv").empty
    assert not pd.read_parquet("run/matrices.parquet")["is"].isna().any()
    assert any("things that were no sound shards were moved aside" in note for note in notes), notes
    assert any("removed from the store during this run" in note and taken.name in note for note in notes), notes
    sound = {name for name, problem in Store("store").verify() if problem is None}
    assert sound >= {batch.images for batch in batches if Path(batch.images).name != taken.name}
