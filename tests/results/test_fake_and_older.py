"""The report says that figures are fake, and reads the tables of older versions."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from seesaw.results.errors import RunDirectoryError
from seesaw.results.tables.write import write_table
from seesaw.runner.report import write_report
from tests.results.trial import page_of, run_of

OLDER = ["model", "subject", "source_axis", "target_axis", "is", "se", "low", "high"]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, str]:
    return run_of(tmp_path / "trial", axes=("gender", "clothing"), subjects=("nurse", "chef"), images=12)


def made_older(run: Path) -> None:
    """Leave what version 0.1.0 wrote of a sweep."""
    write_table(run / "uncertainty.parquet", pq.read_table(run / "uncertainty.parquet").select(OLDER))
    for name in ("means", "bias"):
        (run / f"{name}.parquet").unlink()


def test_a_report_of_older_tables_is_that_of_new_ones(run: tuple[Path, str]) -> None:
    page = page_of(*run)
    made_older(run[0])
    assert page_of(*run) == page


def test_older_tables_that_do_not_record_their_settings_are_refused(run: tuple[Path, str]) -> None:
    made_older(run[0])
    table = pq.read_table(run[0] / "matrices.parquet")
    write_table(run[0] / "matrices.parquet", table.replace_schema_metadata(None))
    with pytest.raises(RunDirectoryError, match="written by an older version, and its matrices do not record metric"):
        write_report(*run)


def test_a_report_of_simulated_answers_says_that_they_are_fake(run: tuple[Path, str]) -> None:
    assert "These figures are fake" not in page_of(*run)
    config = yaml.safe_load((run[0] / "config.yaml").read_text())
    config["vqa"]["engine"] = "simulated"
    (run[0] / "config.yaml").write_text(yaml.safe_dump(config))
    assert f"These figures are fake: the engine of {config['vqa']['name']} is simulated" in page_of(*run)


def test_the_mean_over_subjects_is_shown_for_these_and_for_others_like_them(run: tuple[Path, str]) -> None:
    means, page = pd.read_parquet(run[0] / "means.parquet"), page_of(*run)
    assert set(means["unit"]) == {"images", "subjects"}
    for label in ("over 2 subjects", "over 2 subjects, for others like them"):
        assert f'aria-label="Mean IS matrix of pictogram-birch {label}"' in page
