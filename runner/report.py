"""Writing the report of a run directory: read its tables, decide what they say, draw it."""

from __future__ import annotations

from pathlib import Path

from seesaw.experiments.findings import findings_of
from seesaw.results.report.report import draw_report
from seesaw.results.tables.run_reader import read_run

__all__ = ["write_report"]


def write_report(run: Path, store: str) -> Path:
    """Write `report/index.html` of the run directory `run`, with examples from `store`; returns its path.

    Raises:
        RunDirectoryError: `run` is no run directory, has not been measured, or a file of it cannot be read or written.
    """
    record = read_run(run)
    return draw_report(record, findings_of(record.sweep) if record.sweep else None, store)
