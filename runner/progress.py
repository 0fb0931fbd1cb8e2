"""One display on a terminal: images, answers, rate, time left, failures. Plain lines where it is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from runner.events import Counts

__all__ = ["display"]

_EVERY = 10.0  # seconds between plain lines: a log of a week stays readable


def display(stream: TextIO) -> Callable[[str, Mapping[str, Any], Counts], None]:
    """Whoever shows events on `stream`: live on a terminal, a line every ten seconds elsewhere."""
    return _Live(stream) if stream.isatty() else _Lines(stream)


def _rate(counts: Counts, began: float) -> tuple[float, float]:
    """Images a second that were worked on by this command, and seconds left at that rate."""
    done, left = counts.batches_done, counts.batches - counts.batches_done
    seconds = max(time.monotonic() - began, 1e-6)
    return done * 8 / seconds, left * seconds / done if done else float("inf")


def _left(seconds: float) -> str:
    if seconds == float("inf"):
        return "time left unknown"
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def _figures(counts: Counts, began: float) -> str:
    rate, left = _rate(counts, began)
    failures = f", {len(counts.failures)} batches failed" if counts.failures else ""
    return (
        f"images {counts.images_made} made, {counts.images_reused} reused; answers {counts.answers}; "
        f"{rate:.1f} images/s, {_left(left)}{failures}"
    )


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
    if kind in ("start", "end"):
        return str(fields["message"])
    return None


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = self._last = time.monotonic()

    def __call__(self, kind: str, fields: Mapping[str, Any], counts: Counts) -> None:
        line = _said(kind, fields)
        if line is None and time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            line = f"{counts.batches_done}/{counts.batches} batches: {_figures(counts, self._began)}"
        if line is not None:
            print(line, file=self._stream, flush=True)


class _Live:
    def __init__(self, stream: TextIO) -> None:
        self._began = time.monotonic()
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
            about = escape(_figures(counts, self._began))
            self._progress.update(self._task, total=counts.batches, completed=counts.batches_done, description=about)
        if kind == "end":
            self._progress.stop()
        line = _said(kind, fields)
        if line is not None:
            self._progress.console.print(escape(line), highlight=False)
