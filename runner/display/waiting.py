"""Telling a user that the run waits for something that is away, once, and when the wait is over."""

from __future__ import annotations

import math
import time

from seesaw.runner.display.events import Events

__all__ = ["Waiting"]


class Waiting:
    """Waiting for what is away: told once, when it has been for `grace` seconds, and again when it is over."""

    def __init__(self, events: Events, grace: float = 0.0) -> None:
        self._events, self._grace = events, grace
        self._since, self._told = math.inf, False

    def goes_on(self, why: str) -> float:
        """Seconds of waiting so far."""
        self._since = min(self._since, time.monotonic())
        waited = time.monotonic() - self._since
        if waited >= self._grace and not self._told:
            self._told = True
            self._events.note(why)
        return waited

    def is_over(self, how: str) -> None:
        """It may have been over before; `how` is said with the seconds that it took."""
        if self._told:
            self._events.note(f"{how} after {time.monotonic() - self._since:.0f} s")
        self._since, self._told = math.inf, False
