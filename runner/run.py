"""One command from config to tables: claim the run directory, join Ray, let a job observe, write, report.

Commands differ in their `Job` (`seesaw.runner.jobs`). What must be the same for all is here: who holds the directory,
what is checked before work starts, signals, what is recorded, and exit codes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seesaw.experiments.lab import Lab
from seesaw.experiments.sweep import withheld_images
from seesaw.results.errors import Interrupted, RunDirectoryError
from seesaw.results.store.lock import at_work
from seesaw.results.store.store import Store
from seesaw.runner.display.events import Counts, Events, Show
from seesaw.runner.display.metrics import exported
from seesaw.runner.display.progress import FIGURES, recorded
from seesaw.runner.display.streams import diverted
from seesaw.runner.experiment import Experiment
from seesaw.runner.jobs.job import Job, ReadTwice
from seesaw.runner.plan import Plan, make_plan
from seesaw.runner.prompts import prompt_notes
from seesaw.runner.rundir import RunDirectory
from seesaw.runner.signals import STOPPED, StopRequests
from seesaw.runner.store_checks import check_same_store, check_writable

if TYPE_CHECKING:
    from seesaw.runner.cluster.preflight import Ready

__all__ = ["run"]


def run(job: Job, show: Show) -> int:
    """Run or resume a job; returns the exit code, 0 or 1 (something failed).

    The process may go on afterwards and run again: Ray is shut down if this run has started or joined it. In the main
    thread SIGINT, SIGTERM and SIGHUP stop the run, unless they were ignored before; afterwards they are handled as
    before. Where an event loop runs already, as in a notebook, the run gets a thread of its own, and this one waits.

    Raises:
        SeesawError: with the exit code of its kind. Whatever was committed until then is kept.
        KeyboardInterrupt: stopped by a signal before its work began.
    """
    loop_runs_here = _loop_runs_here()
    stops = StopRequests(run_is_here=not loop_runs_here)
    with stops.from_signals():
        if not loop_runs_here:
            return _run(job, show, stops)
        with ThreadPoolExecutor(1, "seesaw-run") as threads:
            return threads.submit(_run, job, show, stops).result()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(job: Job, show: Show, stops: StopRequests) -> int:
    experiment = job.experiment
    store, directory = Store(experiment.store), RunDirectory(job)
    with directory.claimed(), exported(experiment.cluster.metrics, show) as shown:
        events = Events(recorded(directory.logs / FIGURES, shown))
        moved = check_same_store(experiment, store)
        if directory.finished() and job.is_cached(store):
            if moved:
                directory.write_config()  # where the store is now
            report = directory.path / "report" / "index.html"
            where = f"; report: {report}" if job.shown and report.is_file() else ""
            events.end(f"nothing to do: {experiment.run} is complete{where}", state="done")
            return 0
        plan = make_plan(experiment, store)
        writable = check_writable(store, plan)
        with at_work(store) if writable or store.local else nullcontext():
            return _work(job, store, directory, events, stops, plan, writable)


def _work(
    job: Job,
    store: Store,
    directory: RunDirectory,
    events: Events,
    stops: StopRequests,
    plan: Plan,
    writable: bool,
) -> int:
    """Run a job of which something is left. Ray and all that needs it is imported here, since nothing else does."""
    from seesaw.runner.cluster.connect import connected
    from seesaw.runner.cluster.preflight import Ready, check_disk, preflight
    from seesaw.runner.cluster.requirements import check_resources

    experiment = job.experiment
    notes, uncounted = prompt_notes(job.served, job.stated)
    check_disk(plan, experiment.store)
    began = datetime.now(UTC).isoformat()
    events.start(f"{experiment.name}: {job.describe(plan)}")
    for note in notes:
        events.note(note)
    if experiment.simulated:
        events.note(f"these figures are fake: the engine of {', '.join(experiment.simulated)} is simulated")
    recorded = False  # a run that never gets to work leaves no record: the directory stays free for another try
    had_record = (directory.path / "run.json").exists()
    try:
        with diverted(directory.logs / "driver.log") as stderr, connected(job.served, stderr):
            stops.install()  # Ray has put its own handler there
            check_resources(job.served)
            ready = preflight(job.served, uncounted)
            second = job.second if isinstance(job, ReadTwice) else None
            if second is not None:
                check_resources(second)
            ready_for_second = preflight(second) if second is not None else Ready()
            for note in dict.fromkeys((*ready.notes, *ready_for_second.notes)):
                events.note(note)
            directory.write_config()  # from here on the directory is this experiment's
            directory.write_run_json("running", began=began)
            recorded = True
            passes = [(job.served, job.observe, ready)]
            if second is not None and isinstance(job, ReadTwice):
                passes.append((second, job.observe_second, ready_for_second))
            for served, observe, nodes in passes:
                more = job.command == "mitigate"
                asyncio.run(_observe(served, observe, more, store, directory, events, nodes, stops, writable))
        complete = _write(job, directory, events)
    except BaseException as error:
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        state = "interrupted" if stopped else "failed"
        if recorded:
            _record(directory, events, state, began, time.monotonic() - events.began)
        events.end(message=state, state=state)
        if not (had_record or events.counts.images_made or events.counts.batches_done):
            directory.forget()
        if stopped:
            raise (error if isinstance(error, Interrupted) else Interrupted(STOPPED)) from None
        raise
    return _finish(job, directory, events, "done" if complete else "partial", began)


def _write(job: Job, directory: RunDirectory, events: Events) -> bool:
    complete = job.write(events)
    directory.write_failures(events.counts.failures)
    return complete and not events.counts.failures


def _finish(job: Job, directory: RunDirectory, events: Events, state: str, began: str) -> int:
    """Write the report of a run that came to its end, record how it ended, and say so; returns the exit code."""
    from seesaw.runner.report import write_report

    seconds = time.monotonic() - events.began
    report, unreported = "", False
    if not job.shown:
        pass
    elif directory.measured():
        _record(directory, events, "reporting", began, seconds)  # what the report says of the run
        try:
            report = str(write_report(directory.path, directory.store))
        except RunDirectoryError as error:  # a file that another command left here
            events.note(f"all is measured, but there is no report: {error}")
            unreported = True
    else:
        events.note("no image shows a person, or none could be made: there is nothing to report")
    _record(directory, events, "partial" if unreported else state, began, seconds)
    lacking = _lacking(events.counts, directory) if state == "partial" else ""
    if unreported:
        lacking += ", but there is no report"
    where = f"; report: {report}" if report else ""
    events.end(f"done in {seconds:.0f} s{lacking}{where}", state, report)
    return 1 if lacking else 0


def _record(directory: RunDirectory, events: Events, state: str, began: str, seconds: float) -> None:
    directory.write_run_json(
        state,
        began=began,
        ended=datetime.now(UTC).isoformat(),
        seconds=round(seconds, 3),
        counts=events.counts.numbers(),
        notes=events.counts.notes,
        vqa=events.engine_metrics,
    )


def _lacking(counts: Counts, directory: RunDirectory) -> str:
    listed = f"{directory.path}/failures.parquet"
    if not counts.failures:
        return ", but not all of it is defined"
    if not counts.cells_failed:
        return f", but some images are blank: {listed}"
    if counts.cells_failed == counts.cells:
        return f": all {counts.cells} cells failed: {listed}"
    return f", but {counts.cells_failed} cells failed: {listed}"


async def _observe(
    experiment: Experiment,
    observe: Callable[[Lab, Events], Awaitable[None]],
    more: bool,
    store: Store,
    directory: RunDirectory,
    events: Events,
    ready: Ready,
    stops: StopRequests,
    writable: bool,
) -> None:
    """Let a job observe; `more` work may come while it does.

    The first request to stop lets what is in flight finish; the second stops at once.

    A store that is not `writable` is not waited for: it would not become so by itself.
    """
    from seesaw.runner.fleet.fleet import Fleet
    from seesaw.runner.lab import FleetLab

    if not writable:
        experiment = replace(experiment, cluster=replace(experiment.cluster, wait_seconds=1.0))
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    fleet = Fleet(experiment, directory.logs, events, ready, more=more, abandon=task.cancel)

    def stop() -> None:
        if fleet.stopping:
            task.cancel()
            return
        events.note("stopping: what is in flight is finished and kept; once more stops at once")
        fleet.stop()

    with stops.call(lambda: loop.call_soon_threadsafe(stop)):
        try:
            lab = FleetLab(experiment, store, fleet, events)
            await observe(lab, events)
            await fleet.report_metrics()
            await lab.note_losses()
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
