"""Plans and runs from Python: in a process that goes on, and in a notebook whose event loop runs already."""

import subprocess
import sys
from pathlib import Path

import nbclient
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import seesaw

CONFIG = """
models: [{name: one, engine: simulated, cpus: 0.2}]
vqa: {name: vlm, engine: simulated, cpus: 0.2}
subjects: [nurse]
axes: [gender, age]
images: 8
priorities: {gender: 0.5, age: 0.5}
strategy: [greedy, all]
cluster: {cpus: 1}
"""

#: One cell, or one part of a script, after the other.
PARTS = (
    """
import os, signal
import seesaw
before = signal.getsignal(signal.SIGTERM)
experiment = seesaw.load_experiment("small.yaml")
run = seesaw.run_sweep(experiment, progress=False)
assert run.sweep.matrix.shape[0] == 4, run.sweep.matrix
assert run.failures.empty
""",
    """
again = seesaw.run_sweep(experiment)
assert again.sweep.matrix.equals(run.sweep.matrix)
more = seesaw.run_sweep(seesaw.load_experiment("small.yaml", ["images=16"]))
assert more.sweep.answers > run.sweep.answers
""",
    """
experiment = seesaw.load_experiment("small.yaml", ["images=16"])
run = seesaw.run_mitigation(experiment)
assert {case.strategy for case in run.mitigation.cases} == {"greedy", "all"}
tables = seesaw.run_study("validation", experiment, progress=False)
assert set(tables) == {"effects", "validation"}
assert signal.getsignal(signal.SIGTERM) is before
print("all done in", os.getcwd())
""",
)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "small.yaml").write_text(CONFIG)
    return tmp_path


def test_a_plan_says_what_a_run_would_do_and_starts_nothing(folder):
    plan = seesaw.make_plan(seesaw.load_experiment(str(folder / "small.yaml"), [f"store={folder}/store"]))
    assert plan.total("images") == 6 * 8
    assert plan.total("answers_held") == 0


def check_run(folder: Path) -> None:
    run = seesaw.read_run(folder / "outputs/small")
    assert run.run_json["state"] == "done"
    assert isinstance(run.sweep.matrix, pd.DataFrame)


@pytest.mark.slow  # starts Ray again and again in one process
def test_a_script_runs_a_sweep_extends_it_mitigates_and_studies_and_goes_on(folder):
    (folder / "script.py").write_text("\n".join(PARTS))
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"all done in {folder}\n"
    assert "nothing to do" in done.stderr  # the second sweep
    assert done.stderr.count("done in") == 2  # the longer one and the mitigation; the others were quiet
    check_run(folder)


@pytest.mark.slow  # does the same in a notebook
def test_a_notebook_does_the_same_and_shows_the_progress_in_the_cell(folder):
    notebook = new_notebook(cells=[new_code_cell(part) for part in PARTS])
    where = {"metadata": {"path": str(folder)}}
    done = nbclient.NotebookClient(notebook, kernel_name="python3", timeout=400, resources=where).execute()
    shown = ["".join(output.get("text", "") for output in cell.outputs) for cell in done.cells]
    assert "batches" not in shown[0]  # it is asked for no progress; Ray itself may say what it misses in a notebook
    assert "nothing to do" in shown[1]
    assert "done in" in shown[2]
    assert f"all done in {folder}" in shown[2]
    check_run(folder)
