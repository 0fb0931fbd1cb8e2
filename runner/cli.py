"""The command line. Nothing heavy is imported before a command needs it, so that `--help` answers at once."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from seesaw.results.secrets import first_line, without_values
from seesaw.runner.display.streams import say
from seesaw.runner.stores.commands import store_commands
from seesaw.runner.verbs import Verbs
from seesaw.runner.verbs import answerable as _answerable
from seesaw.runner.verbs import as_json as _json

if TYPE_CHECKING:
    from seesaw.runner.jobs.job import Job

__all__ = ["INTERNAL", "command", "main"]

INTERNAL = 70  #: exit code of an error of Seesaw's own (EX_SOFTWARE of sysexits.h)


def command() -> NoReturn:
    """What `seesaw` runs: `main`, in a process whose exit code is the one that `main` gave.

    A command that has loaded Arrow or Ray ends by `os._exit` once its output is written. Python's own end of such a
    process does not always give that exit code: a thread of Arrow's that still releases what it has read aborts the
    process (SIGABRT), and Ray waits for a head that is lost. Which of them have threads by then cannot be known from
    here, so every command that has loaded them is ended so; what must be closed is closed where it was opened. Other
    commands (`--help`, a mistyped verb) end as Python programs do.
    """
    _replace_closed_streams()
    code: object = INTERNAL
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        _report_bug(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    if sys.modules.keys().isdisjoint(("pyarrow", "ray")):
        sys.exit(code if isinstance(code, int | None) else INTERNAL)
    os._exit(code if isinstance(code, int) else 0 if code is None else INTERNAL)


def _report_bug(error: BaseException) -> None:
    """Say that Seesaw itself is at fault, and where the traceback is; without secrets, which an error may quote."""
    text = without_values("".join(traceback.format_exception(error)))
    where = "its traceback follows:\n" + text
    with suppress(OSError):
        with tempfile.NamedTemporaryFile("w", prefix="seesaw-error-", suffix=".txt", delete=False) as file:
            file.write(f"seesaw {' '.join(sys.argv[1:])}\n{text}")
        where = f"its traceback is in {file.name}"
    kind = f"{type(error).__name__}: {first_line(error)}"
    message = f"seesaw: this is an error of Seesaw's own, please report it; {kind}; {where}"
    say(message, sys.stderr, lines=True)


def _replace_closed_streams() -> None:
    """Let a stream that whoever started us has closed (`>&-`) lead to /dev/null.

    All free descriptors below 3 are taken, so that no file which is opened later is written to in a stream's place.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


_config = click.argument("config")
_overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seesaw", prog_name="seesaw")
def main() -> None:
    """Audit text-to-image models for biases that interact, at the scale of a cluster.

    CONFIG is a YAML file or the name of one in configs/ (demo, paper). KEY=VALUE overrides a key of it, for
    example images=16 or cluster.replicas.sd14=4.

    Exit codes: 0 all done; 1 done, but some cells failed; 2 bad usage, config or input; 3 interrupted, the same
    command resumes; 4 the environment cannot do it; 70 an error of Seesaw's own.
    """


@main.command()
@_config
@_overrides
@click.option("--gpus", type=click.IntRange(0, 4096), help="Also say how long a sweep takes on so many; 0: on CPUs.")
@click.option("--gpu-memory", type=click.FloatRange(1), default=80, show_default=True, help="GB of one such GPU.")
@_json
@_answerable
def plan(config: str, overrides: tuple[str, ...], gpus: int | None, gpu_memory: float, as_json: bool) -> None:
    """Say what a run would do, and run nothing.

    With --gpus the fleet's policy is run against a virtual clock: time, use of every GPU, GPU-hours by model, and what
    one GPU more would bring. The GPUs need not be there: nodes of up to 8 are assumed, with 16 CPUs a GPU.
    """
    from seesaw.results.store.store import Store
    from seesaw.runner.display.show import show_plan
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.plan import make_plan, time_plan
    from seesaw.runner.prompts import prompt_notes

    experiment = load_experiment(config, overrides)
    prospect = make_plan(experiment, Store(experiment.store))
    timing = None if gpus is None else time_plan(experiment, prospect, gpus, gpu_memory)
    notes, _ = prompt_notes(experiment, stated=1)
    show_plan(experiment, prospect, as_json, timing)
    _say_notes(notes, as_json)


@main.command()
@_config
@_overrides
@click.option("--csv", "file", metavar="FILE", help="Write them as a table of CSV.")
@_json
@_answerable
def prompts(config: str, overrides: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """List every prompt that a sweep sends: subject, axis, attribute, text, and tokens.

    For each model, the tokens that it takes and those that the model reads (12/77), counted with the model's own
    tokenizer; blank where that is not on this machine. Exit code 2 if a prompt is too long for a model.
    """
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.prompts import show_prompts

    if file is not None and as_json:
        raise click.UsageError("--csv and --json are two forms of the same list; give one")
    _say_notes(show_prompts(load_experiment(config, overrides), as_json, Path(file) if file else None), as_json)


def _say_notes(notes: list[str], as_json: bool) -> None:
    for note in notes:
        say(json.dumps({"event": "note", "message": note}) if as_json else note, None if as_json else sys.stderr)


@main.command()
@_config
@_overrides
@_json
@_answerable
def sweep(config: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Images, answers and IS matrices of every model and subject. The same command again resumes."""
    from seesaw.runner.experiment import load_experiment

    experiment = load_experiment(config, overrides)
    from seesaw.runner.jobs.sweep import SweepJob

    return _run(SweepJob(experiment), as_json)


@main.command()
@_config
@_overrides
@_json
@_answerable
def mitigate(config: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """InterMit for many subjects at once. The same command again resumes.

    Which axes matter is said by `priorities`: {gender: 0.5, age: 0.5} of every subject, {nurse: {gender: 1}} of the
    ones named, a list of such, the path of a CSV, or `draw` (the default) as the paper drew them. Other keys: epsilon,
    strategy (greedy, all, own, random, or a list of them), mitigator, normalize, max_steps,
    fresh (judge ends on images that no decision saw), margin.
    """
    from seesaw.runner.experiment import load_experiment

    experiment = load_experiment(config, overrides)
    from seesaw.runner.jobs.mitigate import MitigateJob

    return _run(MitigateJob(experiment), as_json)


@main.command()
@click.argument("name")
@_config
@_overrides
@click.option("--real", metavar="PATH", help="Of study target: real images or their shares.")
@_json
@_answerable
def study(name: str, config: str, overrides: tuple[str, ...], real: str | None, as_json: bool) -> int:
    """One of the paper's studies, NAME: validation, negatives or target. The same command again resumes.

    validation: does IS foretell what mitigating an axis does? negatives: how often does that make another axis worse?
    target: which signs of IS change when the ideal distribution is that of real images? --real is a folder
    PATH/<subject>/*.png, whose images the VLM is asked about, a table of answers to such images (as for analyze), or a
    CSV of shares (columns subject, axis, attribute, share).
    """
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.jobs.study import study_of

    experiment = load_experiment(config, overrides)
    return _run(study_of(name, experiment, real), as_json)


def _run(job: Job, as_json: bool) -> int:
    from seesaw.runner.display.events import json_lines
    from seesaw.runner.display.progress import display
    from seesaw.runner.display.streams import own
    from seesaw.runner.run import run

    return run(job, json_lines(own(1)) if as_json else display(own(2)))


@main.command()
@click.argument("answers")
@click.option("--out", required=True, metavar="DIR", help="Where the tables go; made if it is not there.")
@_overrides
@_json
@_answerable
def analyze(answers: str, out: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Distributions and IS matrices from an answers table that anyone made (CSV or Parquet); no models needed.

    The keys dataset, axes, metric, targets and intervention can be overridden, for example dataset=my.yaml or
    targets.clothing=[0.2,0.8].
    """
    from seesaw.experiments.analysis import analyze_file
    from seesaw.runner.display.show import show_summary
    from seesaw.runner.experiment import analysis_settings

    show_summary(analyze_file(answers, out, analysis_settings(overrides)), Path(out), as_json)


@main.command()
@click.argument("run", metavar="RUN")
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until no driver is at work on it.")
@click.option("--store", metavar="STORE", help="Where its store is now, if it was moved.")
@_json
@_answerable
def status(run: str, following: bool, store: str | None, as_json: bool) -> None:
    """Where a run stands: what is done, what failed, what is left. Reads only."""
    from seesaw.runner.display.status import follow, show_status

    if following and as_json:
        raise click.UsageError("--follow is for people; the driver's own --json has events as they come")
    if following:
        follow(Path(run), store)
    else:
        show_status(Path(run), as_json, store)


@main.command()
@click.argument("run", metavar="RUN")
@click.option("--store", metavar="STORE", help="Where its images are. A URI is opened only if given.")
@_answerable
def report(run: str, store: str | None) -> None:
    """Write the HTML report of a run again, and say where it is."""
    from seesaw.runner.report import rewrite_report

    path, message = rewrite_report(Path(run), store)
    if message:
        say(message, sys.stderr)
    say(str(path))


@main.group(cls=Verbs)
def labels() -> None:
    """What people say that images show: which to label, and figures corrected by the labels."""


@labels.command(name="plan")
@click.argument("run", metavar="RUN")
@click.option("-n", "--images", "n", type=click.IntRange(1), default=200, show_default=True, help="Images to label.")
@click.option("--axis", "axes", multiple=True, metavar="AXIS", help="Only this axis; may be given again. Default: all.")
@click.option("--out", metavar="DIR", help="Where labels.csv and the images go. Default: labels/ in the run.")
@click.option("--store", metavar="STORE", help="Where its images are. A URI is opened only if given.")
@_answerable
def plan_labels(run: str, n: int, axes: tuple[str, ...], out: str | None, store: str | None) -> None:
    """Write a CSV of images for people to label, and the images.

    The images are a stratified random sample of RUN's, the same at each call. The CSV tells neither what the VLM read
    nor the prompt. Fill in `label` with one of the row's choices, and `labeller` where several people do it.
    """
    from seesaw.runner.labels import plan_labels as write_plan

    path = write_plan(Path(run), n, axes, Path(out) if out else None, store)
    say(f"{path} is written; fill in the column label, then: seesaw labels import {run} {path}")


@labels.command(name="import")
@click.argument("run", metavar="RUN")
@click.argument("csv", metavar="CSV")
@_answerable
def import_labels(run: str, csv: str) -> None:
    """Take labels into RUN, and write what follows: the VLM's accuracy, corrected figures, the report.

    Labels are added to labels.parquet; none is ever removed. The same CSV may be imported again.
    """
    from seesaw.runner.labels import import_labels as add
    from seesaw.runner.report import rewrite_report

    total, new, notes = add(Path(run), Path(csv))
    for note in notes:
        say(note, sys.stderr)
    path, message = rewrite_report(Path(run), None)
    if message:
        say(message, sys.stderr)
    say(f"{total:,} labels, {new:,} of them new; corrected figures are in {run}/tables; report: {path}")


@main.command()
@click.argument("store", metavar="STORE")
@_json
@_answerable
def verify(store: str, as_json: bool) -> int:
    """Check every byte of every shard of a store. Exit code 1 if one is damaged."""
    from seesaw.runner.display.status import show_verify

    return show_verify(store, as_json)


@main.command()
@click.argument("path", default="seesaw.yaml")
@click.option("--model", default="pictogram-sd", show_default=True, help="A shipped model, or a YAML file of one.")
@click.option("--vqa", default="pictogram-vlm", show_default=True, help="The VLM that looks at the images.")
@click.option("--subjects", "listed", metavar="FILE", help="Subjects of your own, one a line.")
@_answerable
def init(path: str, model: str, vqa: str, listed: str | None) -> None:
    """Write a commented config to start from at PATH (seesaw.yaml)."""
    from seesaw.runner.init import read_subjects, write_starter

    write_starter(Path(path), model, vqa, read_subjects(Path(listed)) if listed else [])
    say(f"{path} is written; read it, then: seesaw plan {path}")


@main.command()
@_json
@_answerable
def models(as_json: bool) -> None:
    """List the shipped models: engine, memory, licence, and whether their weights are here."""
    from seesaw.runner.catalog import show_models

    show_models("models", as_json)


@main.command()
@_json
@_answerable
def vlms(as_json: bool) -> None:
    """List the shipped VLMs: engine, memory, licence, and whether their weights are here."""
    from seesaw.runner.catalog import show_models

    show_models("vlms", as_json)


@main.command()
@_json
@_answerable
def datasets(as_json: bool) -> None:
    """List the shipped datasets: subjects, axes and attributes."""
    from seesaw.runner.catalog import show_datasets

    show_datasets(as_json)


@main.command()
@_json
@_answerable
def doctor(as_json: bool) -> int:
    """Say what this machine can run, and what is missing. Exit code 4 if not even the demo can run."""
    from seesaw.runner.doctor import show_doctor

    return show_doctor(as_json)


@main.command(name="ls")
@click.argument("folder", default="outputs", metavar="[DIR]")
@_json
@_answerable
def list_runs(folder: str, as_json: bool) -> None:
    """List the runs under DIR (outputs): state, age and size."""
    from seesaw.runner.display.runs import show_runs

    show_runs(Path(folder), as_json)


@main.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@_answerable
def completion(shell: str) -> None:
    """Print the completion of commands and options for SHELL.

    For bash: eval "$(seesaw completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc; for fish: seesaw completion
    fish > ~/.config/fish/completions/seesaw.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    say(kind(main, {}, "seesaw", "_SEESAW_COMPLETE").source(), lines=True)


main.add_command(store_commands)
