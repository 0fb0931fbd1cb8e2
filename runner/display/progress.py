"""One display on a terminal: images, answers, rate, time left, failures. Plain lines where it is no terminal.

The same figures are kept in a file of the run directory, where `seesaw status` reads them from another terminal.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from seesaw.results.atomic_write import atomic_write
from seesaw.results.words import duration
from seesaw.runner.display.events import Counts
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape

__all__ = ["FIGURES", "display", "fleet_lines", "recorded"]

Show = Callable[[str, Mapping[str, Any], Counts], None]
FIGURES = "progress.json"  #: in logs/ of a run directory

_KEPT = 2.0  # seconds between two writes of the file
_EVERY = 10.0  # seconds between plain lines: a log of a week stays readable


def display(stream: TextIO) -> Show:
    """Whoever shows events on `stream`: live on a terminal, a line every ten seconds elsewhere."""
    return _Live(stream) if stream.isatty() else _Lines(stream)


def recorded(path: Path, show: Show) -> Show:
    """`show`, which also keeps in `path` where the run stands: time, figures in words, and what the fleet last told."""
    pace, fleet = _Pace(), dict[str, Any]()
    last = 0.0

    def told(kind: str, fields: Mapping[str, Any], counts: Counts) -> None:
        nonlocal last
        if kind == "fleet":
            fleet.update(fields)
        figures = pace(counts)
        if time.monotonic() - last >= _KEPT or kind in ("start", "end"):
            last = time.monotonic()
            numbers = {key: value for key, value in vars(counts).items() if isinstance(value, int)}
            about = {"time": time.time(), "figures": _figures(counts, *figures), "counts": numbers}
            with suppress(OSError), atomic_write(path) as file:  # a full disk: what counts is the work
                file.write(json.dumps({**about, "fleet": fleet}).encode())
        show(kind, fields, counts)

    return told


class _Pace:
    """Images a second over the last minute, and what is left at that pace: models that load make neither wrong."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def __call__(self, counts: Counts) -> tuple[float, float]:
        now = time.monotonic()
        if counts.batches_done > (self._seen[-1][1] if self._seen else 0):
            self._seen.append((now, counts.batches_done, counts.images_made + counts.images_reused))
        if not self._seen:
            return 0.0, float("inf")
        while now - self._seen[0][0] > 60 and len(self._seen) > 2:
            self._seen.popleft()
        (then, before, had), (last, done, has) = self._seen[0], self._seen[-1]
        if done == before or last == then:
            return 0.0, float("inf")
        return (has - had) / (last - then), (counts.batches - done) * (last - then) / (done - before)


def _figures(counts: Counts, rate: float, left: float) -> str:
    failures = f", {len(counts.failures)} batches failed" if counts.failures else ""
    told = f"images {counts.images_made} made, {counts.images_reused} reused; answers {counts.answers}; "
    if counts.mitigations:  # what the next steps need is not known before they are chosen, so no time is left
        reused = 1 - counts.images_made / counts.images_asked if counts.images_asked else 0.0
        mitigations = f"{counts.mitigations_done}/{counts.mitigations} mitigations done, {counts.steps} steps; "
        return f"{mitigations}{told}{reused:.0%} of what they look at is reused; {rate:.1f} images/s{failures}"
    return f"{told}{rate:.1f} images/s, {duration(left)} left{failures}"


def fleet_lines(fleet: Mapping[str, Any]) -> list[str]:
    """What is left for whom and who runs where, a line a model; nothing before the fleet has told."""
    lines = []
    for model, about in fleet.get("models", {}).items():
        where = Counter(
            f"{replica['node']} ({replica['state']})"
            for name, replica in fleet["replicas"].items()
            if name.rpartition("-")[0] == model
        )
        told = ", ".join(f"{count} on {place}" for place, count in sorted(where.items())) or "no replica"
        rate = f", {about['rate']:.3g} batches/s" if about["rate"] else ""
        lines.append(f"{model}: {about['done']:,} batches done, {about['left']:,} left{rate}; {told}")
    if fleet.get("gpu_idle") is not None:
        lines.append(f"GPUs idle: {fleet['gpu_idle']:.0%} of their time, loading included")
    return lines


def _said(kind: str, fields: Mapping[str, Any]) -> str | None:
    """The line that an event deserves of its own, if any."""
    if kind == "note":
        return str(fields["message"])
    if kind == "replica":
        return f"{fields['name']} is ready after {fields.get('load_seconds', 0):.1f} s"
    if kind == "lost":
        return f"{fields['name']} died and is replaced: {fields['error']}"
    if kind == "failed":
        return f"set aside: {fields['cell']}: {fields['stage']} {fields['error']}: {fields['message']}"
    if kind == "metrics" and fields.get("questions"):
        rate = fields["questions"] / max(fields["seconds"], 1e-9)
        cached = f", {fields['hit_rate']:.0%} of prompt tokens from the prefix cache" if "hit_rate" in fields else ""
        return f"{fields['replica']}: {fields['questions']:,} questions, {rate:,.0f}/s while asking{cached}"
    if kind == "step" and fields["outcome"]:
        taus = " > ".join(f"{tau:.2f}" for tau in fields["tau"])
        done = f": {', '.join(fields['mitigated'])}" if fields["mitigated"] else ""
        return f"{fields['label']}: {fields['outcome']} after {len(fields['mitigated'])} steps{done}; tau {taus}"
    if kind in ("start", "end"):
        return str(fields["message"])
    return None


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = time.monotonic()
        self._pace = _Pace()

    def __call__(self, kind: str, fields: Mapping[str, Any], counts: Counts) -> None:
        rate, left = self._pace(counts)
        line = _said(kind, fields)
        if line is None and time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            line = f"{counts.batches_done}/{counts.batches} batches: {_figures(counts, rate, left)}"
        if line is not None:
            say(line, self._stream)


class _Live:
    def __init__(self, stream: TextIO) -> None:
        self._pace = _Pace()
        self._progress = Progress(
            TextColumn("batches"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(file=stream),
        )  # fmt: skip
        self._task: TaskID | None = None

    def __call__(self, kind: str, fields: Mapping[str, Any], counts: Counts) -> None:
        if kind == "start":
            self._progress.start()
            self._task = self._progress.add_task("", total=counts.batches)
        if self._task is not None:
            about = escape(_figures(counts, *self._pace(counts)))
            self._progress.update(self._task, total=counts.batches, completed=counts.batches_done, description=about)
        if kind == "end":
            self._progress.stop()
        line = _said(kind, fields)
        if line is not None:
            self._progress.console.print(escape(line), highlight=False)
