"""One sweep from config to tables: claim the run directory, join Ray, observe every cell, reduce, report."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa

from experiments.analysis import answer_rows, write_analysis
from experiments.lab import Observations
from experiments.sweep import sweep, withheld_images
from results.errors import Interrupted, SeesawError
from results.report import write_report
from results.store import Store
from results.tables import ANSWERS, FAILURES, WITHHELD, table_of, write_csv, write_table
from runner.cluster import check_disk, check_resources, connected, preflight
from runner.events import Counts, Events
from runner.experiment import Experiment
from runner.fleet import Fleet
from runner.lab import FleetLab
from runner.plan import make_plan
from runner.rundir import RunDirectory
from runner.streams import diverted
from runner.truth import write_truth

__all__ = ["run_sweep"]

SHOWN = 20  #: warnings about the tables that are worth a line each


def run_sweep(experiment: Experiment, show: Callable[[str, Mapping[str, Any], Counts], None]) -> int:
    """Run or resume a sweep; returns the exit code, 0 or 1 (some cells failed).

    Raises:
        SeesawError: with the exit code of its kind. Whatever was committed until then is kept.
    """
    store, directory, events = Store(experiment.store), RunDirectory(experiment), Events(show)
    with directory.claimed():
        plan = make_plan(experiment, store)
        events.counts.batches, events.counts.cells = plan.total("batches"), plan.total("cells")
        if plan.done and directory.finished():
            report = directory.path / "report" / "index.html"
            events.end(message=f"nothing to do: {experiment.run} is complete; report: {report}", state="done")
            return 0
        store.probe()
        check_disk(plan, experiment.store)
        began = datetime.now(UTC).isoformat()
        events.start(
            message=f"{experiment.name}: {plan.total('images'):,} images in {plan.total('cells'):,} cells; "
            f"{plan.total('answers_held'):,} of {plan.total('batches'):,} batches are in the store"
        )
        _stop_on_signals()
        begun = False  # a run that never got to work leaves no record: the directory stays free for another try
        known = (directory.path / "run.json").exists()
        try:
            with diverted(directory.logs / "driver.log"), connected(experiment):
                _stop_on_signals()  # Ray has put its own handler there
                check_resources(experiment)
                preflight(experiment)
                directory.write_config()  # from here on the directory is this experiment's
                directory.write_record("running", began=began)
                begun = True
                observed = asyncio.run(_observe(experiment, store, directory, events))
            state = _write(experiment, directory, observed, events)
        except (Interrupted, KeyboardInterrupt) as stopped:
            _ended(directory, events, "interrupted", began, begun)
            raise Interrupted(str(stopped) or "stopped; the same command goes on where this one was") from None
        except BaseException as error:
            _ended(directory, events, "failed", began, begun)
            counts = events.counts
            if isinstance(error, SeesawError) and not (known or counts.images_made or counts.batches_done):
                directory.forget()
            raise
        return _ended(directory, events, state, began)


def _ended(directory: RunDirectory, events: Events, state: str, began: str, begun: bool = True) -> int:
    """Write the report of a run that has figures, record how it ended, and tell; the exit code of a run that did."""
    counts = events.counts
    seconds = time.monotonic() - events.began

    def record(state: str) -> None:
        facts = {k: v for k, v in vars(counts).items() if isinstance(v, int)}
        ended = datetime.now(UTC).isoformat()
        directory.write_record(
            state,
            began=began,
            ended=ended,
            seconds=round(seconds, 3),
            counts=facts,
            notes=counts.notes,
            vqa=events.served,
        )

    if state not in ("done", "partial"):
        if begun:
            record(state)
        events.end(message=state, state=state)
        return 1
    report = ""
    if directory.measured():
        record("reporting")  # what the report tells of the run
        report = f"; report: {write_report(directory.path, directory.store)}"
    else:
        events.note("no image shows a person, or none could be made: there is nothing to report")
    record(state)
    lacking = f", but {counts.cells_failed} cells failed: {directory.path}/failures.parquet" if counts.failures else ""
    if counts.failures and not counts.cells_failed:
        lacking = f", but some images are blank: {directory.path}/failures.parquet"
    if counts.cells_failed == counts.cells:
        lacking = f": all {counts.cells} cells failed: {directory.path}/failures.parquet"
    events.end(message=f"done in {seconds:.0f} s{lacking}{report}", state=state, report=report.rpartition(" ")[2])
    return 1 if lacking else 0


async def _observe(
    experiment: Experiment, store: Store, directory: RunDirectory, events: Events
) -> dict[str, list[Observations]]:
    """Observe every cell. The first SIGINT or SIGTERM lets what is in flight finish; the second stops at once."""
    fleet = Fleet(experiment, directory.logs, events)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if fleet.stopping and task is not None:
            task.cancel()
            return
        events.note("stopping: what is in flight is finished and kept; once more stops at once")
        fleet.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        lab = FleetLab(experiment, store, fleet, events)
        observed = await sweep(lab, experiment.dataset, [m.name for m in experiment.models], experiment.images)
        await fleet.metrics()
        return observed
    except asyncio.CancelledError:
        raise Interrupted("stopped at once; the same command goes on where this one was") from None
    except Interrupted:
        if fleet.fault is not None:
            raise fleet.fault from None
        raise
    finally:
        await fleet.close()


def _stop_on_signals() -> None:
    """SIGTERM and SIGHUP end what has not begun yet as Ctrl-C does: interrupted, exit code 3."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _write(
    experiment: Experiment, directory: RunDirectory, observed: Mapping[str, list[Observations]], events: Events
) -> str:
    """The tables of a run whose cells have all been observed; returns the run's state."""
    tables = [answer_rows(model, experiment.dataset, cells) for model, cells in observed.items()]
    answers = pa.concat_tables(tables) if tables else ANSWERS.empty_table()
    write_table(directory.path / "answers.parquet", answers)
    withheld = withheld_images(observed)
    if len(withheld):
        events.withheld(withheld)
    table = table_of(withheld, WITHHELD)
    write_table(directory.path / "withheld.parquet", table)
    write_csv(directory.path / "withheld.csv", table)
    rows = sorted((asdict(failure) for failure in events.counts.failures), key=lambda row: str(row["cell"]))
    write_table(directory.path / "failures.parquet", table_of(pd.DataFrame(rows, columns=FAILURES.names), FAILURES))
    models = [model.name for model in experiment.models]
    cells = withheld[["model", "subject", "source_axis", "source_value"]].itertuples(index=False, name=None)
    dropped = dict(zip(cells, (withheld["flagged"] + withheld["blank"]).tolist(), strict=True))
    summary = write_analysis(answers.to_pandas(), directory.path, experiment.settings, models, withheld=dropped)
    write_truth(experiment)
    warnings = summary.warnings()
    ambiguous = sum(sum(cell.answers.ambiguous) for cells in observed.values() for cell in cells if cell.answers)
    if ambiguous:
        warnings.append(f"{ambiguous:,} images claimed several attributes of a composite axis; the likeliest counts")
    for line in warnings[:SHOWN]:
        events.note(line)
    if len(warnings) > SHOWN:
        events.note(f"and {len(warnings) - SHOWN:,} more of this kind; NaN in matrices.parquet marks what is undefined")
    return "partial" if rows else "done"
