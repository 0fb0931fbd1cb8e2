"""Writing the report of a run directory: read its tables, decide what they say, draw it."""

from __future__ import annotations

from pathlib import Path

from seesaw.experiments.findings import findings_of
from seesaw.results.report.report import draw_report
from seesaw.results.tables.run_reader import read_run

__all__ = ["rewrite_report", "write_report"]


def rewrite_report(run: Path, store: str | None) -> tuple[Path, str]:
    """Write the report of `run` again, which may be another's; returns its path, and a message ("": none).

    `store` is the one that the user gave. Without it, the store that run.json names is opened if it is a directory. A
    URI there is not opened: its maker would choose the server that the user's credentials are sent to.

    Raises:
        RunDirectoryError: as `write_report`, or the report has images and would have none.
    """
    record = read_run(run)
    named = record.run_json["fingerprint"].get("store", "")
    opened, message = store, ""
    if store is None:
        is_directory = isinstance(named, str) and "://" not in named
        opened = named if is_directory else ""
        if not is_directory:
            message = f"without images: its store is a URI; to open it, give it: seesaw report {run} --store URI"
    findings = findings_of(record.sweep) if record.sweep else None
    return draw_report(record, findings, opened or "", keep_images=True), message


def write_report(run: Path, store: str) -> Path:
    """Write `report/index.html` of the run directory `run`, with examples from `store`; returns its path.

    Raises:
        RunDirectoryError: `run` is no run directory, has not been measured, or a file of it cannot be read or written.
    """
    record = read_run(run)
    return draw_report(record, findings_of(record.sweep) if record.sweep else None, store)
