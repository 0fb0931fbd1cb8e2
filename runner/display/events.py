"""What happens in a run is counted here, and passed on as a typed event to whoever shows it.

The kinds of events are in `seesaw.runner.display.event_types`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from seesaw.results.words import prompt_label
from seesaw.runner.display.event_types import (
    AnswersDone,
    BatchReused,
    BatchSetAside,
    CellDone,
    EngineMetrics,
    Event,
    FleetDecision,
    FleetState,
    ImagesDone,
    MitigationStep,
    Note,
    ReplicaLost,
    ReplicaReady,
    RunEnded,
    RunStarted,
)

if TYPE_CHECKING:
    import pandas as pd

    from seesaw.results.errors import BatchFailed
    from seesaw.runner.plan import Batch

__all__ = ["Counts", "Events", "Failure", "Show", "json_lines"]


@dataclass(frozen=True)
class Failure:
    """A batch that was set aside: a row of failures.parquet."""

    cell: str
    stage: str
    error: str
    attempts: int
    message: str


@dataclass
class Counts:
    """Figures of this command so far. Images and answers that the store had already are counted apart."""

    batches: int = 0  #: to do in all, those that the store has included
    batches_done: int = 0
    images_made: int = 0
    images_reused: int = 0
    answers: int = 0
    cells: int = 0
    cells_done: int = 0
    cells_failed: int = 0
    replicas_lost: int = 0
    mitigations: int = 0
    mitigations_done: int = 0
    steps: int = 0  #: axes mitigated
    images_asked: int = 0  #: whole batches that mitigations looked at, each as often as one did
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, int]:
        """The figures alone, by name, as `--json`, run.json and progress.json keep them."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


Show = Callable[[Event, Counts], None]  #: shows one event, given the counts that include it


def _show_nothing(event: Event, counts: Counts) -> None:
    pass


class Events:
    """Counts what happens and passes each event on to `show`. The only place that counts."""

    def __init__(self, show: Show) -> None:
        self.counts = Counts()
        self.began = time.monotonic()
        self.engine_metrics: dict[str, Mapping[str, float]] = {}  #: by replica of the VLM, what its engine measured
        self._show = show
        self._blank: set[str] = set()  #: models whose first blank image has been noted

    def _emit(self, event: Event) -> None:
        try:
            self._show(event, self.counts)
        except OSError:  # the terminal or the reader of a pipe has gone: the work goes on without a display
            self._show = _show_nothing

    def start(self, message: str) -> None:
        self._emit(RunStarted(message))

    def asked(self, cells: int, batches: int) -> None:
        """A Lab was asked for so much more work."""
        self.counts.cells += cells
        self.counts.batches += batches

    def note(self, message: str) -> None:
        """Something that a user should know and that needs no action."""
        self.counts.notes.append(message)
        self._emit(Note(message))

    def replica(self, event: ReplicaReady) -> None:
        self._emit(event)

    def lost(self, name: str, error: str, batches: int) -> None:
        """A replica died or hung with so many batches in its line, which are tried again."""
        self.counts.replicas_lost += 1
        self._emit(ReplicaLost(name, error, batches))

    def decided(self, line: str) -> None:
        """The fleet's policy has decided to change something; `line` says what and why."""
        self._emit(FleetDecision(line))

    def fleet(self, state: FleetState) -> None:
        self._emit(state)

    def images(self, made: int = 0, held: int = 0) -> None:
        self.counts.images_made += made
        self.counts.images_reused += held
        self._emit(ImagesDone(made, held))

    def answers(self, count: int) -> None:
        self.counts.answers += count
        self.counts.batches_done += 1
        self._emit(AnswersDone(count))

    def reused(self, images: int) -> None:
        """A batch whose answers the store had already, or that another caller had asked for a moment ago."""
        self.counts.images_reused += images
        self.counts.batches_done += 1
        self._emit(BatchReused(images))

    def failed(self, batch: Batch, error: BatchFailed) -> None:
        self.counts.failures.append(Failure(batch.label, error.stage, error.error, error.attempts, str(error)))
        self.counts.batches_done += 1
        self._emit(BatchSetAside(batch.label, error.stage, error.error, str(error)))

    def blank(self, batch: Batch, images: int) -> None:
        """A batch was made with so many blank images. The first of a model is noted now, all are listed at the end."""
        if images and batch.model not in self._blank:
            self._blank.add(batch.model)
            self.note(f"{batch.label}: {images} blank images (NaN, or one even colour); later ones are told at the end")

    def withheld(self, images: pd.DataFrame) -> None:
        """Images that were made and not asked, a row a cell. Blank ones are failures, flagged ones are findings."""
        for row in images[images["blank"] > 0].to_dict("records"):
            where = prompt_label(row["source_axis"], row["source_value"])
            message = f"{row['blank']} of {row['images']} images are blank (NaN, or one even colour) and count nowhere"
            label = f"{row['model']} / {row['subject']} / {where}"
            self.counts.failures.append(Failure(label, "generate", "blank", 2, message))
            self._emit(BatchSetAside(label, "generate", "blank", message))
        for model in images[images["flagged"] > 0]["model"].unique():
            rows = images[(images["model"] == model) & (images["flagged"] > 0)]
            flagged = int(rows["flagged"].sum())
            self.note(f"{model}: {flagged:,} images in {len(rows)} cells were flagged as unsafe, or refused")

    def cell(self, failed: bool) -> None:
        self.counts.cells_done += 1
        self.counts.cells_failed += failed
        self._emit(CellDone(failed))

    def step(
        self, label: str, images: int, *, axis: str, tau: Sequence[float], mitigated: Sequence[str], outcome: str,
        reason: str,
    ) -> None:  # fmt: skip
        """A mitigation has observed a state or chosen an axis; all of them have looked at `images` so far."""
        self.counts.images_asked = images
        self.counts.steps += bool(axis)
        self.counts.mitigations_done += bool(outcome)
        self._emit(MitigationStep(label, axis, tau, mitigated, outcome, reason))

    def metrics(self, replica: str, figures: Mapping[str, float]) -> None:
        self.engine_metrics[replica] = figures
        self._emit(EngineMetrics(replica, figures))

    def end(self, message: str, state: str, report: str | None = None) -> None:
        """The command ends; `report` is the path of its report, as `RunEnded` says."""
        self._emit(RunEnded(message, state, report))


def json_lines(stream: IO[str]) -> Show:
    """One JSON object a line: `event`, `time` (Unix seconds), the event's own fields, and the counts."""

    def show(event: Event, counts: Counts) -> None:
        line = {"event": event.kind, "time": round(time.time(), 3), **event.fields(), **counts.numbers()}
        stream.write(json.dumps(line, default=str) + "\n")
        stream.flush()

    return show
