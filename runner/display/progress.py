"""One display on a terminal: images, answers, rate, time left, failures. Plain lines where it is no terminal.

The same figures are kept in a file of the run directory, where `seesaw status` reads them from another terminal.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from seesaw.results.atomic_write import atomic_write
from seesaw.results.words import duration
from seesaw.runner.display.event_types import (
    BatchSetAside,
    EngineMetrics,
    Event,
    FleetState,
    MitigationStep,
    Note,
    ReplicaLost,
    ReplicaReady,
    RunEnded,
    RunStarted,
)
from seesaw.runner.display.events import Counts, Show
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape

__all__ = ["FIGURES", "LineDisplay", "LiveDisplay", "display", "fleet_lines", "recorded"]

FIGURES = "progress.json"  #: in logs/ of a run directory

_FILE_SECONDS = 2.0  # between two writes of the file
_LINE_SECONDS = 10.0  # between two plain lines: a log of a week stays readable
_PACE_SECONDS = 60.0  # over which the rate is measured


def display(stream: TextIO) -> Show:
    """What shows events on `stream`: live on a terminal, a line every ten seconds elsewhere."""
    return LiveDisplay(stream) if stream.isatty() else LineDisplay(stream)


def recorded(path: Path, show: Show) -> Show:
    """`show`, which also keeps in `path` where the run stands: time, figures in words, the fleet's last state."""
    pace, fleet = _Pace(), dict[str, Any]()
    last_write = 0.0

    def show_and_record(event: Event, counts: Counts) -> None:
        nonlocal last_write
        if isinstance(event, FleetState):
            fleet.update(event.fields())
        rate_and_left = pace(counts)
        if time.monotonic() - last_write >= _FILE_SECONDS or isinstance(event, RunStarted | RunEnded):
            last_write = time.monotonic()
            figures = _figures(counts, *rate_and_left)
            progress = {"time": time.time(), "figures": figures, "counts": counts.numbers(), "fleet": fleet}
            with suppress(OSError), atomic_write(path) as file:  # a full disk: the work matters more than this file
                file.write(json.dumps(progress).encode())
        show(event, counts)

    return show_and_record


class _Pace:
    """Images a second over the last minute, and seconds left at that pace, so that loading models distort neither."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()  # seconds, batches done, images, whenever a batch was done

    def __call__(self, counts: Counts) -> tuple[float, float]:
        """(images a second, seconds left): 0 and infinity before two batches are done."""
        now = time.monotonic()
        if counts.batches_done > (self._seen[-1][1] if self._seen else 0):
            self._seen.append((now, counts.batches_done, counts.images_made + counts.images_reused))
        if not self._seen:
            return 0.0, float("inf")
        while now - self._seen[0][0] > _PACE_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        (first, first_batches, first_images), (last, batches, images) = self._seen[0], self._seen[-1]
        if batches == first_batches or last == first:
            return 0.0, float("inf")
        seconds_a_batch = (last - first) / (batches - first_batches)
        return (images - first_images) / (last - first), (counts.batches - batches) * seconds_a_batch


def _figures(counts: Counts, rate: float, seconds_left: float) -> str:
    failures = f", {len(counts.failures)} batches failed" if counts.failures else ""
    done = f"images {counts.images_made} made, {counts.images_reused} reused; answers {counts.answers}; "
    if counts.mitigations:  # no time left: what the next steps need is not known before they are chosen
        reused = 1 - counts.images_made / counts.images_asked if counts.images_asked else 0.0
        mitigations = f"{counts.mitigations_done}/{counts.mitigations} mitigations done, {counts.steps} steps; "
        return f"{mitigations}{done}{reused:.0%} of what they look at is reused; {rate:.1f} images/s{failures}"
    return f"{done}{rate:.1f} images/s, {duration(seconds_left)} left{failures}"


def fleet_lines(fleet: Mapping[str, Any]) -> list[str]:
    """What is left for each model and where its replicas are, a line a model.

    `fleet` has the fields of a `FleetState` event, as progress.json keeps them; of an empty one there are no lines.
    """
    lines = []
    for model, state in fleet.get("models", {}).items():
        places = Counter(
            f"{replica['node']} ({replica['state']})"
            for name, replica in fleet["replicas"].items()
            if name.rpartition("-")[0] == model
        )
        where = ", ".join(f"{count} on {place}" for place, count in sorted(places.items())) or "no replica"
        rate = f", {state['rate']:.3g} batches/s" if state["rate"] else ""
        lines.append(f"{model}: {state['done']:,} batches done, {state['left']:,} left{rate}; {where}")
    if fleet.get("gpu_idle") is not None:
        lines.append(f"GPUs idle: {fleet['gpu_idle']:.0%} of their time, loading included")
    return lines


def _line_of(event: Event) -> str | None:
    """The line that people are shown of an event, if it deserves one."""
    match event:
        case RunStarted() | Note() | RunEnded():
            return event.message
        case ReplicaReady():
            return f"{event.name} is ready after {event.load_seconds:.1f} s"
        case ReplicaLost():
            return f"{event.name} died and is replaced: {event.error}"
        case BatchSetAside():
            return f"set aside: {event.cell}: {event.stage} {event.error}: {event.message}"
        case EngineMetrics() if event.figures.get("questions"):
            questions, seconds = event.figures["questions"], event.figures["seconds"]
            hits = event.figures.get("hit_rate")
            cached = "" if hits is None else f", {hits:.0%} of prompt tokens from the prefix cache"
            rate = questions / max(seconds, 1e-9)
            return f"{event.replica}: {questions:,} questions, {rate:,.0f}/s while asking{cached}"
        case MitigationStep() if event.outcome:
            taus = " > ".join(f"{tau:.2f}" for tau in event.tau)
            axes = f": {', '.join(event.mitigated)}" if event.mitigated else ""
            return f"{event.label}: {event.outcome} after {len(event.mitigated)} steps{axes}; tau {taus}"
    return None


class LineDisplay:
    """A line for each event that deserves one, and one of the figures every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_line = time.monotonic()
        self._pace = _Pace()

    def __call__(self, event: Event, counts: Counts) -> None:
        rate, seconds_left = self._pace(counts)
        line = _line_of(event)
        if line is None and time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            line = f"{counts.batches_done}/{counts.batches} batches: {_figures(counts, rate, seconds_left)}"
        if line is not None:
            say(line, self._stream)


class LiveDisplay:
    """A bar with the figures, which stays at the bottom of a terminal, and above it a line for some events."""

    def __init__(self, stream: TextIO) -> None:
        self._pace = _Pace()
        self._progress = Progress(
            TextColumn("batches"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(file=stream),
        )  # fmt: skip
        self._task: TaskID | None = None

    def __call__(self, event: Event, counts: Counts) -> None:
        if isinstance(event, RunStarted):
            self._progress.start()
            self._task = self._progress.add_task("", total=counts.batches)
        if self._task is not None:
            figures = escape(_figures(counts, *self._pace(counts)))
            self._progress.update(self._task, total=counts.batches, completed=counts.batches_done, description=figures)
        if isinstance(event, RunEnded):
            self._progress.stop()
        line = _line_of(event)
        if line is not None:
            self._progress.console.print(escape(line), highlight=False)
