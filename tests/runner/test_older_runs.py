"""A store and a run directory that version 0.1.0 wrote, before `import seesaw`, are read and resumed.

`older_run.zip` holds a config, a user's own engine beside it, the store, and the run directory after `sweep`,
`mitigate` and `study validation`. It was written in /tmp/before, which is the one thing that the test changes.
"""

import io
import json
import zipfile
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.slow  # starts Ray to resume older runs

JUDGED = ["judged", "p_reached"]  #: columns that 0.1.0 did not write
#: 0.1.0 computed standard errors and intervals, and what depends on them, in other ways
ERRORS = ["error", "sure", "se", "low", "high", "is_matched", "p", "q", "significant", "tau_se", "alerts"]


@pytest.fixture
def older(tmp_path):
    """The folder with the older run, as if it had been written there."""
    with zipfile.ZipFile(Path(__file__).with_name("older_run.zip")) as archive:
        archive.extractall(tmp_path)
    for name in ("run.json", "config.yaml"):
        path = tmp_path / "run" / name
        path.write_text(path.read_text().replace("/tmp/before", str(tmp_path)))
    return tmp_path


def ended(command) -> dict:
    assert command.code == 0, command.err
    return json.loads(command.out.splitlines()[-1])


def test_status_and_report_read_an_older_run(seesaw, older):
    assert "100.0% done" in seesaw("status", "run").out
    report = seesaw("report", "run")
    assert report.code == 0, report.err
    assert (older / report.out.strip()).is_file()


def test_an_older_run_is_extended_from_the_images_and_answers_that_it_has(seesaw, older):
    event = ended(seesaw("sweep", "before.yaml", "images=16", "--json"))
    cells = 2 * 2 * 6  # models x subjects x prompts
    assert (event["images_made"], event["images_reused"]) == (8 * cells, 8 * cells)


def test_tables_made_again_from_an_older_store_say_what_they_said(seesaw, older):
    run = older / "run"
    tables = {path.name: path.read_bytes() for path in run.glob("*.csv")} | {
        path.name: path.read_bytes() for path in (run / "tables").glob("*.csv")
    }
    answers = pd.read_parquet(run / "answers.parquet")
    for path in [*run.glob("*.csv"), *run.glob("*.parquet"), *(run / "tables").glob("*")]:
        path.unlink()
    for command in (("sweep",), ("mitigate", "fresh=false")):  # as 0.1.0 mitigated
        assert ended(seesaw(command[0], "before.yaml", *command[1:], "--json"))["images_made"] == 0
    event = ended(seesaw("study", "validation", "before.yaml", "--json"))  # 0.1.0 measured in what had predicted
    assert event["images_made"] > 0
    tables = {name: table for name, table in tables.items() if name not in ("effects.csv", "validation.csv")}
    pd.testing.assert_frame_equal(pd.read_parquet(run / "answers.parquet"), answers)
    exact = {"distributions.csv", "matrices.csv", "mitigation_matrices.csv", "withheld.csv"}
    for name, before in tables.items():
        path = run / name if (run / name).exists() else run / "tables" / name
        if name in exact:
            assert path.read_bytes() == before, name
        else:  # what 0.1.0 computed by matrix products has other last bits on other processors
            now, then = (pd.read_csv(file).drop(columns=ERRORS, errors="ignore") for file in (path, io.BytesIO(before)))
            now = now.drop(columns=[column for column in JUDGED if column not in then], errors="ignore")
            pd.testing.assert_frame_equal(now, then, rtol=1e-9)
