"""`seesaw ls`: the runs under a folder, with their state, age and size."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.table import Table

from seesaw.results.errors import InputError, RunDirectoryError
from seesaw.results.tables.run_reader import read_run_json
from seesaw.results.words import duration
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape
from seesaw.runner.run_places import find_runs, is_driven

__all__ = ["show_runs"]

_DEEP = 3  #: folders below the one that is listed


def show_runs(folder: Path, as_json: bool) -> None:
    """Print the run directories in `folder` and up to three levels below, the latest first.

    Raises InputError if there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"'{folder}' is no folder")
    runs = sorted(find_runs(folder, _DEEP), key=lambda run: -(run / "run.json").stat().st_mtime)
    table = Table(box=None, pad_edge=False)
    for column in ("run", "command", "state", "age", "size MB"):
        table.add_column(column, justify="right" if column in ("age", "size MB") else "left", no_wrap=True)
    for run in runs:
        command, state = _state(run)
        age = time.time() - (run / "run.json").stat().st_mtime
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 1e6
        if as_json:
            line = {"event": "run", "run": str(run), "command": command, "state": state}
            say(json.dumps({**line, "age_seconds": round(age), "megabytes": round(size, 1)}))
        else:
            table.add_row(escape(str(run)), escape(command), escape(state), duration(age), f"{size:,.1f}")
    if not as_json:
        if runs:
            Console(width=160).print(table)
        else:
            say(f"no runs in {folder}")


def _state(run: Path) -> tuple[str, str]:
    try:
        record = read_run_json(run)
    except RunDirectoryError:
        return "?", "run.json cannot be read"
    state = str(record["state"])
    killed = state == "running" and not is_driven(run)
    return str(record.get("command", "?")), "killed" if killed else state
