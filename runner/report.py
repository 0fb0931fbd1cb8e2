"""Writing the report of a run directory: read its tables, decide what they say, draw it."""

from __future__ import annotations

from pathlib import Path

from seesaw.experiments.findings import findings_of
from seesaw.results.report.report import draw_report
from seesaw.results.store.store import Store
from seesaw.results.tables.run_reader import read_run
from seesaw.runner.run_places import store_of

__all__ = ["rewrite_report", "write_report"]


def rewrite_report(run: Path, store: str | None) -> tuple[Path, str]:
    """Write the report of `run` again, which may be another's; returns its path, and a message ("": none).

    `store` is the one that the user gave. Without it, the store that the run records is opened if it is a directory. A
    URI there is not opened: its maker would choose the server that the user's credentials are sent to.

    Raises:
        RunDirectoryError: as `write_report`, or the report has images and would have none.
    """
    record = read_run(run)
    opened = store_of(run) if store is None else store
    if not opened:
        lacking = "it records no store"
    elif store is None and "://" in opened:
        lacking = "its store is a URI, which is opened only if you give it"
    else:
        lacking = "" if Store(opened).is_there() else f"there is no store at '{opened}'"
    findings = findings_of(record.sweep) if record.sweep else None
    path = draw_report(record, findings, "" if lacking else opened, keep_images=lacking or "no image was found")
    return path, f"without images: {lacking}; to show them: seesaw report {run} --store STORE" if lacking else ""


def write_report(run: Path, store: str) -> Path:
    """Write `report/index.html` of the run directory `run`, with examples from `store`; returns its path.

    Raises:
        RunDirectoryError: `run` is no run directory, has not been measured, or a file of it cannot be read or written.
    """
    record = read_run(run)
    return draw_report(record, findings_of(record.sweep) if record.sweep else None, store)
