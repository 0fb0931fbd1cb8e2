"""One command from config to tables: claim the run directory, join Ray, let a job observe, write, report.

What differs between commands is their `Job` (`runner.jobs.sweep`, `runner.jobs.mitigate`, `runner.jobs.study`); what must never differ
is here: who holds the directory, what is checked before work starts, signals, what is recorded, and exit codes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seesaw.experiments.sweep import withheld_images
from seesaw.results.errors import Interrupted, RunDirectoryError
from seesaw.results.store.store import Store
from seesaw.runner.display.events import Counts, Events, Show
from seesaw.runner.display.metrics import exported
from seesaw.runner.display.progress import FIGURES, recorded
from seesaw.runner.display.streams import diverted
from seesaw.runner.jobs.job import Job
from seesaw.runner.plan import make_plan
from seesaw.runner.rundir import RunDirectory

if TYPE_CHECKING:
    from seesaw.runner.cluster.preflight import Ready

__all__ = ["run"]


def run(job: Job, show: Show) -> int:
    """Run or resume a job; returns the exit code, 0 or 1 (something failed).

    Raises:
        SeesawError: with the exit code of its kind. Whatever was committed until then is kept.
    """
    experiment = job.experiment
    store, directory = Store(experiment.store), RunDirectory(job)
    with directory.claimed(), exported(experiment.cluster.metrics, show) as shown:
        events = Events(recorded(directory.logs / FIGURES, shown))
        if directory.finished() and job.is_cached(store):
            report = directory.path / "report" / "index.html"
            told = f"; report: {report}" if job.shown and report.is_file() else ""
            events.end(message=f"nothing to do: {experiment.run} is complete{told}", state="done")
            return 0
        return _work(job, store, directory, events)


def _work(job: Job, store: Store, directory: RunDirectory, events: Events) -> int:
    """Run a job of which something is left; Ray and all that needs it is imported here, for nothing else does."""
    from seesaw.runner.cluster.connect import connected
    from seesaw.runner.cluster.preflight import check_disk, preflight
    from seesaw.runner.cluster.requirements import check_resources

    experiment = job.experiment
    plan = make_plan(experiment, store)
    store.probe()
    check_disk(plan, experiment.store)
    began = datetime.now(UTC).isoformat()
    events.start(message=f"{experiment.name}: {job.describe(plan)}")
    _stop_on_signals()
    begun = False  # a run that never got to work leaves no record: the directory stays free for another try
    known = (directory.path / "run.json").exists()
    try:
        with diverted(directory.logs / "driver.log"), connected(job.served):
            _stop_on_signals()  # Ray has put its own handler there
            check_resources(job.served)
            ready = preflight(job.served)
            for told in ready.notes:
                events.note(told)
            directory.write_config()  # from here on the directory is this experiment's
            directory.write_run_json("running", began=began)
            begun = True
            asyncio.run(_observe(job, store, directory, events, ready))
            _stop_on_signals()  # asyncio has put the system's own back
        whole = _write(job, directory, events)
    except BaseException as error:
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        _ended(job, directory, events, "interrupted" if stopped else "failed", began, begun)
        if not (known or events.counts.images_made or events.counts.batches_done):
            directory.forget()
        if stopped:
            again = "stopped; the same command goes on where this one was"
            raise (error if isinstance(error, Interrupted) else Interrupted(again)) from None
        raise
    return _ended(job, directory, events, "done" if whole else "partial", began)


def _write(job: Job, directory: RunDirectory, events: Events) -> bool:
    whole = job.write(events)
    directory.write_failures(events.counts.failures)
    return whole and not events.counts.failures


def _ended(job: Job, directory: RunDirectory, events: Events, state: str, began: str, begun: bool = True) -> int:
    """Write the report of a run that has figures, record how it ended, and tell; the exit code of a run that did."""
    from seesaw.runner.report import write_report

    counts = events.counts
    seconds = time.monotonic() - events.began

    def record(state: str) -> None:
        ended = datetime.now(UTC).isoformat()
        directory.write_run_json(
            state,
            began=began,
            ended=ended,
            seconds=round(seconds, 3),
            counts=counts.numbers(),
            notes=counts.notes,
            vqa=events.engine_metrics,
        )

    if state not in ("done", "partial"):
        if begun:
            record(state)
        events.end(message=state, state=state)
        return 1
    report, unreported = "", False
    if not job.shown:
        pass
    elif directory.measured():
        record("reporting")  # what the report tells of the run
        try:
            report = str(write_report(directory.path, directory.store))
        except RunDirectoryError as error:  # a file that another command left here
            events.note(f"all is measured, but there is no report: {error}")
            unreported = True
    else:
        events.note("no image shows a person, or none could be made: there is nothing to report")
    record("partial" if unreported else state)
    lacking = _lacking(counts, directory) if state == "partial" else ""
    if unreported:
        lacking += ", but there is no report"
    where = f"; report: {report}" if report else ""
    events.end(f"done in {seconds:.0f} s{lacking}{where}", state, report)
    return 1 if lacking else 0


def _lacking(counts: Counts, directory: RunDirectory) -> str:
    listed = f"{directory.path}/failures.parquet"
    if not counts.failures:
        return ", but not all of it is defined"
    if not counts.cells_failed:
        return f", but some images are blank: {listed}"
    if counts.cells_failed == counts.cells:
        return f": all {counts.cells} cells failed: {listed}"
    return f", but {counts.cells_failed} cells failed: {listed}"


async def _observe(job: Job, store: Store, directory: RunDirectory, events: Events, ready: Ready) -> None:
    """Let the job observe. The first SIGINT or SIGTERM lets what is in flight finish; the second stops at once."""
    from seesaw.runner.fleet.fleet import Fleet
    from seesaw.runner.lab import FleetLab

    experiment = job.served
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    fleet = Fleet(experiment, directory.logs, events, ready, more=job.command == "mitigate", abandon=task.cancel)

    def stop() -> None:
        if fleet.stopping:
            task.cancel()
            return
        events.note("stopping: what is in flight is finished and kept; once more stops at once")
        fleet.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        lab = FleetLab(experiment, store, fleet, events)
        await job.observe(lab, events)
        await fleet.report_metrics()
        events.withheld(withheld_images(lab.withheld()))
    except asyncio.CancelledError:
        at_once = Interrupted("stopped at once; the same command goes on where this one was")
        raise fleet.fault or at_once from None
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
