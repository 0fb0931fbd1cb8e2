"""A replica as its pool sees it: an actor, the batches in its line, and how long it has been at work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from seesaw.runner.scheduling.resources import State

__all__ = ["Replica", "WorkDone"]


@dataclass(frozen=True)
class WorkDone:
    """What replicas did. A replica's first batch takes longer than others, so warm figures leave it out."""

    batches: int = 0
    seconds: float = 0.0  #: with a batch
    warm_batches: int = 0
    warm_seconds: float = 0.0

    def __add__(self, other: WorkDone) -> WorkDone:
        return WorkDone(
            self.batches + other.batches,
            self.seconds + other.seconds,
            self.warm_batches + other.warm_batches,
            self.warm_seconds + other.warm_seconds,
        )


@dataclass(eq=False)
class Replica:
    """`line` has the batches that are at the replica, the one that runs first, until all of it is done and written."""

    name: str
    node: str = ""
    gpus: tuple[int, ...] = ()  #: of the node, as the policy counts them; which they are is Ray's choice
    actor: Any = None
    alive: bool = True
    ready: bool = False  #: it has loaded
    leaving: bool = False  #: it gets no further batch, and ends when its line is empty
    line: list[str] = field(default_factory=list)  #: labels of batches
    suspects: tuple[str, ...] = ()  #: the line when it died: any of them may have killed it
    done: int = 0  #: batches
    last_progress: float = field(default_factory=time.monotonic)  #: when it started, loaded, or its line last moved
    _busy_seconds: float = 0.0
    _first_batch_seconds: float = 0.0  # busy seconds until the first batch was done
    _reserved_for: str = ""  # a batch that must be alone
    _line_changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> State:
        if self.leaving:
            return "draining"
        return "loading" if not self.ready else "busy" if self.line else "idle"

    @property
    def work_done(self) -> WorkDone:
        if not self.done:
            return WorkDone(0, self._busy_seconds)
        return WorkDone(self.done, self._busy_seconds, self.done - 1, self._busy_seconds - self._first_batch_seconds)

    async def enter(self, label: str, alone: bool) -> bool:
        """Join the line. With `alone`, wait until it is empty, and let nobody join until `leave`.

        Returns False, without joining, if the replica died or is leaving.
        """
        while self._takes_batches and self._reserved_for not in ("", label):
            await self._line_changed.wait()
        if alone and self._takes_batches:
            self._reserved_for = label
        while alone and self._takes_batches and self.line:
            await self._line_changed.wait()
        if not self._takes_batches:
            return False
        if not self.line:
            self.last_progress = time.monotonic()
        self.line.append(label)
        return True

    def leave(self, label: str, done: bool) -> None:
        """Leave the line; `done` says whether the batch was done. Without effect on a batch that is not in it."""
        if label in self.line:
            now = time.monotonic()
            self._busy_seconds += now - self.last_progress
            self.last_progress = now
            self.done += done
            if done and self.done == 1:
                self._first_batch_seconds = self._busy_seconds
            self.line.remove(label)
        if self._reserved_for == label:
            self._reserved_for = ""
        self._wake_line()

    def wait_outside(self) -> None:
        """It waits for something outside, such as the store, so it does not hang."""
        self.last_progress = time.monotonic()

    def drain(self) -> None:
        """Let no further batch join."""
        self.leaving = True
        self._wake_line()

    def died(self) -> None:
        self.alive, self.suspects = False, tuple(self.line)
        self._wake_line()

    @property
    def _takes_batches(self) -> bool:
        return self.alive and not self.leaving

    def _wake_line(self) -> None:
        self._line_changed.set()
        self._line_changed = asyncio.Event()
