"""What happens in a run, told once and shown as the user wants it: a live display, plain lines, or JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from seesaw.results.words import prompt_label

if TYPE_CHECKING:
    import pandas as pd

    from seesaw.results.errors import BatchFailed
    from seesaw.runner.plan import Batch

__all__ = ["Counts", "Events", "Failure"]


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
    """Figures of this command so far; images and answers that were there already count apart."""

    batches: int = 0  #: to do in all, held ones included
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


def _nobody(kind: str, fields: Mapping[str, Any], counts: Counts) -> None:
    """Show nothing."""


class Events:
    """Counts what happens and passes it on as (kind, fields) to whoever shows it."""

    def __init__(self, show: Callable[[str, Mapping[str, Any], Counts], None]) -> None:
        self.counts = Counts()
        self.began = time.monotonic()
        self.served: dict[str, Mapping[str, Any]] = {}  #: by replica of the VLM, what its engine measured of itself
        self._show = show
        self._blank: set[str] = set()  #: models of which a blank image has been told

    def _tell(self, kind: str, **fields: Any) -> None:
        try:
            self._show(kind, fields, self.counts)
        except OSError:  # the terminal or the reader of a pipe has gone: the work is worth more than its display
            self._show = _nobody

    def start(self, **fields: Any) -> None:
        self._tell("start", **fields)

    def asked(self, cells: int, batches: int) -> None:
        """Work that a Lab is given."""
        self.counts.cells += cells
        self.counts.batches += batches

    def note(self, message: str) -> None:
        """Something a user should know and that needs no action."""
        self.counts.notes.append(message)
        self._tell("note", message=message)

    def replica(self, pool: str, name: str, about: Mapping[str, Any]) -> None:
        self._tell("replica", pool=pool, name=name, **{k: v for k, v in about.items() if k not in ("pool", "name")})

    def lost(self, name: str, error: str, batches: int) -> None:
        """A replica died or hung with so many batches in its line, which are done again."""
        self.counts.replicas_lost += 1
        self._tell("lost", name=name, error=error, held=batches)

    def decided(self, line: str) -> None:
        """What the fleet's policy has decided to change, and why."""
        self._tell("decision", message=line)

    def fleet(self, **state: Any) -> None:
        """Where replicas run and how busy they are: `runner.fleet.fleet`."""
        self._tell("fleet", **state)

    def images(self, made: int = 0, held: int = 0) -> None:
        self.counts.images_made += made
        self.counts.images_reused += held
        self._tell("images", made=made, held=held)

    def answers(self, count: int) -> None:
        self.counts.answers += count
        self.counts.batches_done += 1
        self._tell("answers", count=count)

    def reused(self, images: int) -> None:
        """A batch whose answers the store held, or that somebody else had asked for a moment ago."""
        self.counts.images_reused += images
        self.counts.batches_done += 1
        self._tell("reused", images=images)

    def failed(self, batch: Batch, error: BatchFailed) -> None:
        self.counts.failures.append(Failure(batch.label, error.stage, error.error, error.attempts, str(error)))
        self.counts.batches_done += 1
        self._tell("failed", cell=batch.label, stage=error.stage, error=error.error, message=str(error))

    def blank(self, batch: Batch, images: int) -> None:
        """A batch that was made has blank images: the first of a model is told at once, all are at the end."""
        if images and batch.model not in self._blank:
            self._blank.add(batch.model)
            self.note(f"{batch.label}: {images} blank images (NaN, or one even colour); later ones are told at the end")

    def withheld(self, images: pd.DataFrame) -> None:
        """Images that were made and not asked, a row a cell: a blank one is a failure, a flagged one a finding."""
        for row in images[images["blank"] > 0].to_dict("records"):
            where = prompt_label(row["source_axis"], row["source_value"])
            message = f"{row['blank']} of {row['images']} images are blank (NaN, or one even colour) and count nowhere"
            label = f"{row['model']} / {row['subject']} / {where}"
            self.counts.failures.append(Failure(label, "generate", "blank", 2, message))
            self._tell("failed", cell=label, stage="generate", error="blank", message=message)
        for model in images[images["flagged"] > 0]["model"].unique():
            rows = images[(images["model"] == model) & (images["flagged"] > 0)]
            flagged = int(rows["flagged"].sum())
            self.note(f"{model}: its safety checker flagged {flagged:,} images in {len(rows)} cells")

    def cell(self, failed: bool) -> None:
        self.counts.cells_done += 1
        self.counts.cells_failed += failed
        self._tell("cell", failed=failed)

    def step(self, label: str, images: int, **course: Any) -> None:
        """A mitigation has measured a state or chosen an axis; `images` were looked at by all so far."""
        self.counts.images_asked = images
        self.counts.steps += bool(course["axis"])
        self.counts.mitigations_done += bool(course["outcome"])
        self._tell("step", label=label, **course)

    def metrics(self, replica: str, figures: Mapping[str, Any]) -> None:
        self.served[replica] = figures
        self._tell("metrics", replica=replica, **figures)

    def end(self, **fields: Any) -> None:
        self._tell("end", **fields)


def json_lines(stream: IO[str]) -> Callable[[str, Mapping[str, Any], Counts], None]:
    """One JSON object a line: `event`, `time` (Unix seconds), the event's own fields, and the counts."""

    def show(kind: str, fields: Mapping[str, Any], counts: Counts) -> None:
        so_far = {k: v for k, v in vars(counts).items() if isinstance(v, int)}
        line = {"event": kind, "time": round(time.time(), 3), **fields, **so_far}
        stream.write(json.dumps(line, default=str) + "\n")
        stream.flush()

    return show
