"""Telling a user that the run waits for something that is away, once, and when the wait is over."""

from __future__ import annotations

import math
import time

from seesaw.runner.display.events import Events

__all__ = ["Waiting"]


class Waiting:
    """A wait for something that is away. It is noted once it has lasted for `grace` seconds, and again at its end."""

    def __init__(self, events: Events, grace: float = 0.0) -> None:
        self._events, self._grace = events, grace
        self._since, self._noted = math.inf, False

    def still_waiting(self, message: str) -> float:
        """What the run waits for is still away. Seconds of waiting so far."""
        self._since = min(self._since, time.monotonic())
        waited = time.monotonic() - self._since
        if waited >= self._grace and not self._noted:
            self._noted = True
            self._events.note(message)
        return waited

    def over(self, message: str) -> None:
        """It is back, or was never away. If the wait was noted, so is `message`, with the seconds that it took."""
        if self._noted:
            self._events.note(f"{message} after {time.monotonic() - self._since:.0f} s")
        self._since, self._noted = math.inf, False
