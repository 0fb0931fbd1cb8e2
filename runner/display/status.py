"""Where a run stands, and whether a store is undamaged: read from the files alone, while a driver works or later."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from seesaw.results.errors import InputError, RunDirectoryError
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_table
from seesaw.results.store.store import Store
from seesaw.results.tables.read_mitigation import read_mitigation
from seesaw.results.tables.run_reader import read_run_json
from seesaw.runner.display.progress import FIGURES, fleet_lines
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape
from seesaw.runner.experiment import load_experiment
from seesaw.runner.plan import make_plan
from seesaw.runner.run_places import is_driven

__all__ = ["follow", "show_status", "show_verify"]

_LISTED = 10  #: foreign or temporary things that `verify` names; it counts the others
_INTERVAL = 2.0  #: seconds between two readings of a run that is followed


def show_status(run: Path, as_json: bool, given: str | None = None) -> None:
    """Print how much of a run is done, by model, and what failed. Its store is the `given` one, or the one it records.

    Raises:
        RunDirectoryError: `run` is no run directory.
    """
    record = read_run_json(run)
    experiment = load_experiment(str(run / "config.yaml"), [f"store={given}"] if given else [])
    store = Store(experiment.store)
    plan, found = make_plan(experiment, store), store.is_there()
    state = record["state"]
    working = is_driven(run)
    if state == "running" and not working:
        state = "killed"
    failures = run / "failures.parquet"
    failed = _failed(failures) if state in ("done", "partial") else []
    command = record.get("command", "sweep")
    outcomes = _outcomes(run) if command == "mitigate" and state in ("done", "partial") else {}
    if as_json:
        models = [
            {"model": m.name, "batches": m.batches, "images": m.images_held, "answers": m.answers_held}
            for m in plan.models
        ]
        about = {"event": "status", "command": command, "state": state, "models": models, "failures": failed}
        about |= {"progress": _progress(run)} if state == "running" else {}
        about |= {"store": experiment.store, "store_found": found}
        say(json.dumps(about | ({"mitigations": outcomes} if command == "mitigate" else {})))
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    meaning = {
        "running": "a driver is at work",
        "killed": "its driver was killed; the same command resumes",
        "interrupted": "stopped on request; the same command resumes",
        "failed": "ended with an error; the same command resumes",
        "reporting": "all is measured; the same command writes the report",
        "partial": "done, but something failed or is undefined; the same command tries again what may succeed",
        "done": "complete",
    }.get(state, escape(str(state)))
    console.print(f"[b]{escape(experiment.name)}[/b] ({escape(str(run))}), {escape(str(command))}: {meaning}")
    if command == "mitigate":
        listed = ", ".join(f"{number:,} {escape(outcome)}" for outcome, number in sorted(outcomes.items()))
        console.print(f"  mitigations: {listed or 'no outcomes yet'}; of what a sweep, its first step, looks at:")
    if state == "running":
        progress = _progress(run)
        for line in [progress.get("figures", "no figures yet"), *fleet_lines(progress.get("fleet", {}))]:
            console.print(f"  {escape(line)}")
    if not found and state != "running":
        where = f"seesaw status {escape(str(run))} --store STORE"
        console.print(f"  there is no store at {escape(experiment.store)}; if it was moved: {where}")
    for m in plan.models if found else ():
        console.print(
            f"  {escape(m.name)}: {m.answers_held / m.batches:.1%} done; of {m.batches:,} batches {m.images_held:,} "
            f"have images and {m.answers_held:,} have answers"
        )
    for failure in failed[:20]:
        console.print(f"  failed: {escape(failure['cell'])}: {escape(failure['error'])}: {escape(failure['message'])}")
    if len(failed) > 20:
        console.print(f"  ... and {len(failed) - 20} more in {escape(str(failures))}")
    for stray in plan.strays:
        console.print(f"  in the store: {escape(stray)}")


def follow(run: Path, given: str | None = None) -> None:
    """Print where a run stands, then its figures as they change, until no driver is at work on it."""
    show_status(run, as_json=False, given=given)
    console, last = Console(highlight=False), ""
    while is_driven(run):
        about = _progress(run)
        if about and about["figures"] != last:
            last = about["figures"]
            console.print(f"{time.strftime('%H:%M:%S', time.localtime(about['time']))} {escape(last)}")
            for line in fleet_lines(about.get("fleet", {})):
                console.print(f"         {escape(line)}")
        time.sleep(_INTERVAL)
    show_status(run, as_json=False, given=given)


def _progress(run: Path) -> dict[str, Any]:
    """The figures that the driver wrote last; empty if there are none, or they are being written."""
    try:
        figures: dict[str, Any] = json.loads((run / "logs" / FIGURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return figures if figures.keys() >= {"time", "figures"} else {}


def _outcomes(run: Path) -> dict[str, int]:
    try:
        return dict(Counter(case.outcome for case in read_mitigation(run / "mitigation.parquet")))
    except RunDirectoryError:  # the same command writes it again
        return {}


def _failed(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = plain_table(path).to_pylist() if path.is_file() else []
        return rows
    except (OSError, pa.ArrowException) as error:
        raise RunDirectoryError(f"'{path}' cannot be read: {first_line(error)}; delete it") from None


def show_verify(root: str, as_json: bool) -> int:
    """Check a store and print what is wrong with it; 1 if a shard is damaged, else 0.

    Raises:
        InputError: there is no store.
    """
    if "://" not in root and not Path(root).is_dir():
        raise InputError(f"'{root}' is no store: there is no such directory")
    if not Store(root).folders():
        beside = Path(root).parent / "store"
        hint = f"; did you mean '{beside}'?" if beside.is_dir() else "; a config's `store` says where one is"
        raise InputError(f"'{root}' is no store: it holds no images and no answers{hint}")
    counts: Counter[str] = Counter()
    for name, problem in Store(root).verify():
        kind = problem.kind if problem else "sound"
        counts[kind] += 1
        if problem and kind != "damaged" and counts[kind] > _LISTED:
            continue
        if problem and as_json:
            say(json.dumps({"event": "problem", "name": name, "kind": kind, "message": problem.message}))
        elif problem:
            say(f"{kind}: {name}: {problem.message}")
    if as_json:
        say(json.dumps({"event": "verify", **counts}))
    else:
        others = "".join(f", {n} {kind}" for kind, n in sorted(counts.items()) if kind != "sound")
        say(f"{counts['sound']} shards are sound{others}")
        if counts["damaged"]:
            say("a sweep that needs a damaged shard moves it aside and makes it again")
    return 1 if counts["damaged"] else 0
