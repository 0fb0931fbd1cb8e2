"""A replica as its pool sees it: an actor, the batches that are at it, and how long it has been at work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from seesaw.runner.scheduling.resources import State

__all__ = ["Replica"]


@dataclass(eq=False)
class Replica:
    """`line` has the batches that are at the replica, the one that runs first, until all of it is done and written."""

    name: str
    node: str = ""
    gpus: tuple[int, ...] = ()  #: of the node, as the policy counts them; which they are is Ray's choice
    actor: Any = None
    alive: bool = True
    ready: bool = False
    leaving: bool = False  #: it gets nothing more, and ends when its line is empty
    line: list[str] = field(default_factory=list)
    suspects: tuple[str, ...] = ()  #: the line when it died: any of them may have done it
    busy: float = 0.0  #: seconds with a batch
    done: int = 0  #: batches
    warming: float = 0.0  #: seconds of `busy` until its first batch was done, which are not what a batch takes
    moved: float = field(default_factory=time.monotonic)  #: when it was started, loaded, or its line last moved
    _kept_for: str = ""
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> State:
        if self.leaving:
            return "draining"
        return "loading" if not self.ready else "busy" if self.line else "idle"

    async def enter(self, label: str, alone: bool) -> bool:
        """Join the line; `alone`: once it is empty, and nobody joins until `leave`. False if it takes nothing more."""
        while self._open and self._kept_for not in ("", label):
            await self._change.wait()
        if alone and self._open:
            self._kept_for = label
        while alone and self._open and self.line:
            await self._change.wait()
        if not self._open:
            return False
        if not self.line:
            self.moved = time.monotonic()
        self.line.append(label)
        return True

    def leave(self, label: str, done: bool) -> None:
        if label in self.line:
            now = time.monotonic()
            self.busy += now - self.moved
            self.moved = now
            self.done += done
            if done and self.done == 1:
                self.warming = self.busy
            self.line.remove(label)
        if self._kept_for == label:
            self._kept_for = ""
        self.tell()

    def waits(self) -> None:
        """It waits for something outside, and does not hang."""
        self.moved = time.monotonic()

    def died(self) -> None:
        self.alive, self.suspects = False, tuple(self.line)
        self.tell()

    @property
    def _open(self) -> bool:
        return self.alive and not self.leaving

    def tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
