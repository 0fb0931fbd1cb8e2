"""How far removing or copying is, for people: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from seesaw.runner.display.terminal import Console

__all__ = ["counted"]


@contextmanager
def counted(what: str, total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function to call after each of `total` files."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda name: progress.advance(task)
