"""The job of `seesaw study target`: the IS of a sweep with the D* of real images in the place of its own targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seesaw.actors.folder_engine import FolderEngine, real_images
from seesaw.actors.real_images import SubjectFolder, count_copies, same_name
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.lab import Lab, Observations
from seesaw.experiments.prompts import initial_prompt
from seesaw.experiments.target_study import Targets, flip_summary, flips, observed_targets, read_targets, real_targets
from seesaw.results.errors import AnswersError, ConfigError, nearest
from seesaw.results.store.store import Store
from seesaw.results.tables.csv_text import csv_header, other_separator, refuse_other_text, start_of
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.schemas import FLIPS, TARGETS
from seesaw.results.tables.write import table_of, write_both
from seesaw.runner.config import ModelConfig
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment, with_model
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.plan import Plan, all_answered

__all__ = ["TargetJob"]

REAL = "real"  #: the name of the model whose images are the real ones of a folder
LISTED = 10  #: names in a message


class TargetJob:
    """D* comes from `real`: a folder of images, about which the experiment's VLM is asked, or answers, or shares."""

    command = "study target"
    files = ("target.*", "flips.*")
    shown = False
    stated = 1

    def __init__(self, experiment: Experiment, real: str | None) -> None:
        """Raises ConfigError or AnswersError if `real` is missing, cannot be read, or lacks a subject."""
        if real is None:
            raise ConfigError("the study of targets needs --real PATH: a folder of real images, answers, or shares")
        self.experiment = self.served = experiment
        self._sweep = SweepJob(experiment)
        self._targets: Targets | None = None
        self._folders: Mapping[str, SubjectFolder] = {}
        self._cells: list[Observations] = []
        path = Path(real)
        if path.is_dir():
            settings = {"path": str(path), "template": experiment.dataset.template, "seed": experiment.seed}
            settings = FolderEngine.absolute(settings, [Path.cwd()])
            self._folders = _folders_of(experiment.dataset, real_images(settings), real)
            self.served = with_model(experiment, ModelConfig(REAL, "folder", settings))
        elif _has_answers(path):
            self._targets = real_targets(read_answers(path), experiment.dataset)
        else:
            self._targets = read_targets(path, experiment.dataset)
        if self._targets is not None:
            missing = [subject for subject in experiment.dataset.subjects if subject not in self._targets.shares]
            if missing:
                raise ConfigError(
                    f"'{real}' has nothing about {', '.join(missing)}; add rows, or leave them out with subjects=[...]"
                )

    def identity(self) -> Mapping[str, Any]:
        dataset = self.experiment.dataset
        real: object = self.served.models[-1].identity
        if self._targets is not None:
            real = {
                subject: {axis: shares.tolist() for axis, shares in by_axis.items()}
                for subject, by_axis in self._targets.shares.items()
                if subject in dataset.subjects
            }
        return {**self._sweep.identity(), "real": real}

    def is_cached(self, store: Store) -> bool:
        return all_answered(self.experiment, store)

    def describe(self, plan: Plan) -> str:
        return self._sweep.describe(plan)

    async def observe(self, lab: Lab, events: Events) -> None:
        dataset = self.experiment.dataset
        for subject, folder in self._folders.items():
            for note in _notes(subject, folder):
                events.note(note)
        for subject, folder in self._folders.items():
            prompt = initial_prompt(dataset, subject)
            self._cells += await lab.observe(REAL, [prompt], len(folder.images))
        await self._sweep.observe(lab, events)

    def write(self, events: Events) -> bool:
        path, settings = self.experiment.run, self.experiment.settings
        targets = observed_targets(self._cells) if self._targets is None else self._targets
        entries = flips(self._sweep.tally(), settings, targets)
        tables = {
            "target": table_of(targets.frame(settings.dataset), TARGETS),
            "flips": table_of(entries, FLIPS, settings.about()),
        }
        for name, table in tables.items():
            write_both(path, name, table)
        for row in flip_summary(entries).itertuples(index=False):
            strongest = (
                f"{row.subject}, {row.source_axis} on {row.target_axis}, {row.is_before:+.2f} to {row.is_after:+.2f}"
            )
            events.note(
                f"{row.model}: {row.flipped:,} of {row.entries:,} entries change sign by more than sampling explains"
                + (f" ({row.share:.1%}), most of all {strongest}" if row.flipped else "")
            )
        return True


def _folders_of(dataset: Dataset, folders: Mapping[str, SubjectFolder], real: str) -> dict[str, SubjectFolder]:
    """The folder of every subject. ConfigError if one has no images; the message names the folders that are there."""
    by_prompt = {prompt: folder for folder in folders.values() for prompt in folder.prompts if folder.images}
    prompts = {subject: same_name(initial_prompt(dataset, subject).text) for subject in dataset.subjects}
    missing = [subject for subject, prompt in prompts.items() if prompt not in by_prompt]
    if missing:
        names = [name for name, folder in folders.items() if folder.images]
        close = nearest(missing[0], names)
        raise ConfigError(
            f"'{real}' has no images of {', '.join(missing)}; its folders are {_first(names)}"
            f"{close + ' Rename it' if close.endswith('?') else '; rename a folder'}, add '{real}/{missing[0]}/', or "
            "leave them out with subjects=[...]"
        )
    return {subject: by_prompt[prompt] for subject, prompt in prompts.items()}


def _notes(subject: str, folder: SubjectFolder) -> list[str]:
    """What a user should know of the images that D* of `subject` is measured on."""
    notes = []
    if folder.unread:
        names = _first([file.name for file in folder.unread])
        notes.append(f"{len(folder.unread)} files of {subject}/ are not looked at, being no images: {names}")
    copies = count_copies(folder.images)
    if copies:
        notes.append(f"{copies} files of {subject}/ are copies of others, and each of them counts; delete them if not")
    return notes


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED:,} more" if len(names) > LISTED else "")


def _has_answers(path: Path) -> bool:
    """Whether a file is a table of answers rather than one of shares, by its header and not by its name.

    Raises AnswersError if it is neither, but JSON, say, or columns separated by tabs.
    """
    if not path.is_file():
        return path.suffix.lower() != ".csv"  # the reader refuses it, and names files that are there
    try:
        start = start_of(path)
    except OSError:
        return True  # the reader refuses it, with the reason
    if start.startswith(b"PAR1"):
        return True
    refuse_other_text(path, start)
    names = csv_header(start)
    if other_separator(names):
        raise AnswersError(f"{path}: has no header of answers or shares{other_separator(names)}")
    return not {"answer", "model"}.isdisjoint(names)
