"""Runs for a notebook or a script: each does what the command of its name does, and returns what was measured.

They are public as `seesaw.run_sweep`, `seesaw.run_mitigation` and `seesaw.run_study`.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pandas as pd

from seesaw.results.store.parquet import plain_table
from seesaw.results.tables.run_reader import Run, read_run
from seesaw.runner.display.progress import display
from seesaw.runner.display.streams import own
from seesaw.runner.experiment import Experiment
from seesaw.runner.jobs.mitigate import MitigateJob
from seesaw.runner.jobs.study import study_of
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.run import run

if TYPE_CHECKING:
    from seesaw.runner.jobs.job import Job

__all__ = ["run_mitigation", "run_study", "run_sweep"]


def run_sweep(experiment: Experiment, *, progress: bool = True) -> Run:
    """Run or resume the sweep of `experiment`, as `seesaw sweep` does, and read its run directory.

    What failed for its own reasons is in `failures` of the result; the rest of it is measured. `progress` shows how far
    the run is, on standard error. Ctrl-C (a notebook's stop button) ends the run so that the same call goes on later.

    Raises SeesawError: Interrupted if it was stopped, EnvironmentFault if this machine or cluster cannot do it.

    Example::

        experiment = seesaw.load_experiment("demo", ["images=16"])
        run = seesaw.run_sweep(experiment)
        run.sweep.matrix
    """
    _run(SweepJob(experiment), progress)
    return read_run(experiment.run)


def run_mitigation(experiment: Experiment, *, progress: bool = True) -> Run:
    """Run or resume InterMit for the subjects of `experiment`, as `seesaw mitigate` does, and read its run directory.

    Arguments and errors are those of `run_sweep`.

    Example::

        experiment = seesaw.load_experiment("demo", ["priorities={gender: 0.5, age: 0.5}", "strategy=[greedy, all]"])
        run = seesaw.run_mitigation(experiment)
        [(case.subject, case.strategy, case.outcome, case.tau) for case in run.mitigation.cases]
    """
    _run(MitigateJob(experiment), progress)
    return read_run(experiment.run)


def run_study(
    name: str, experiment: Experiment, *, real: str | None = None, progress: bool = True
) -> dict[str, pd.DataFrame]:
    """Run or resume a study of the paper, as `seesaw study NAME` does; returns its tables by their names.

    `name` is validation, negatives or target; `real`, for target alone, says where real images or their shares are.
    Other arguments and errors are those of `run_sweep`.

    Example::

        tables = seesaw.run_study("validation", seesaw.load_experiment("demo"))
        tables["validation"]
    """
    job = study_of(name, experiment, real)
    _run(job, progress)
    tables = sorted(path for pattern in job.files for path in experiment.run.glob(pattern) if path.suffix == ".parquet")
    return {path.stem: plain_table(path).to_pandas() for path in tables}


def _run(job: Job, progress: bool) -> None:
    """Run `job`; its progress goes to where standard error leads now, which a run diverts, or to a notebook's cell."""
    if not progress:
        run(job, lambda *_: None)
        return
    with own(2) if sys.stderr is sys.__stderr__ else nullcontext(sys.stderr) as stream:
        run(job, display(stream))
