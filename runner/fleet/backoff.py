"""How long a pool leaves its model alone when the service behind it asks for patience.

`Backoff` is the arithmetic of pauses, without a clock; `Patience` lets a pool's batches wait.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import suppress

from seesaw.results.errors import EnvironmentFault, SeesawError, TryLater
from seesaw.runner.display.events import Events
from seesaw.runner.fleet.work import short_message

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "Backoff", "Patience", "pause_seconds"]

FIRST_PAUSE = 2.0  #: seconds; each further pause in a row is twice as long
LONGEST_PAUSE = 120.0
SPREAD = 5.0  #: seconds over which, at most, batches that waited for the end of a pause go on


def pause_seconds(pauses: int, asked: float | None, chance: float) -> float:
    """The length of a pause after `pauses` others in a row; `asked` are the seconds that the service asks for, if any.

    `chance` in [0, 1) spreads the tries of many drivers: never shorter than what is asked for, else by a quarter.
    """
    if asked:
        return asked + FIRST_PAUSE * chance
    grown: float = min(FIRST_PAUSE * 2.0 ** min(pauses, 16), LONGEST_PAUSE)
    return grown * (0.75 + chance / 2)


class Backoff:
    """The pauses of one pool. All its batches wait for the end of a pause, and not only the one that was turned away.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self) -> None:
        self._pauses = 0  # in a row
        self._since = math.inf  # when the service first turned a batch away, since it last did one
        self._began = -math.inf  # the last pause
        self._until = -math.inf

    def left(self, now: float) -> float:
        """Seconds of the pause that are left; 0 if there is none."""
        return max(self._until - now, 0.0)

    def stalled(self, now: float) -> float:
        """Seconds since a batch was first turned away, none having been done; those of the pause that is on count."""
        return max(now, self._until) - self._since if self._since < math.inf else 0.0

    def turned_away(self, now: float, sent: float, asked: float | None, chance: float) -> float:
        """A batch that was sent at `sent` was turned away. Returns the seconds of the new pause; 0 if there is none.

        Several batches are at a model at once. Those that were sent before a pause began say nothing new.
        """
        self._since = min(self._since, now)
        if sent < self._began and not (asked and now + asked > self._until):
            return 0.0
        length = pause_seconds(self._pauses, asked, chance)
        self._pauses += sent >= self._began
        self._began, self._until = now, max(self._until, now + length)
        return length

    def done(self) -> None:
        """A batch was done."""
        self._pauses, self._since = 0, math.inf


class Patience:
    """Holds back a pool's batches while the service behind its model is left alone, and says so."""

    def __init__(self, name: str, events: Events) -> None:
        self._name, self._events, self._backoff = name, events, Backoff()
        self._longest_noted = 0.0
        self._given_up = asyncio.Event()

    @property
    def held_back(self) -> bool:
        """Whether a pause is on."""
        return self._backoff.left(time.monotonic()) > 0

    def stalled(self) -> float:
        """As `Backoff.stalled`, by now."""
        return self._backoff.stalled(time.monotonic())

    def turned_away(self, error: TryLater, sent: float) -> float:
        """A batch that was sent at `sent` (monotonic) was turned away; the seconds until the pause is over."""
        now = time.monotonic()
        pause = self._backoff.turned_away(now, sent, error.seconds, random.random())
        if pause >= 2 * self._longest_noted:  # not each of them: at its rate limit a run is turned away all the time
            self._longest_noted = pause
            self._events.note(f"{self._name} is left alone for {pause:.0f} s, nothing is lost: {short_message(error)}")
        return self._backoff.left(now)

    async def pause_is_over(self) -> None:
        """Wait for the end of a pause, and of those that begin meanwhile; not once the pool has given up."""
        while not self._given_up.is_set() and (left := self._backoff.left(time.monotonic())) > 0:
            # not all at once: whoever comes first sees whether the service can do anything yet
            with suppress(TimeoutError):
                await asyncio.wait_for(self._given_up.wait(), timeout=left + random.uniform(0, min(left / 4, SPREAD)))

    def done(self) -> None:
        """A batch was done."""
        self._backoff.done()

    def give_up(self) -> None:
        """The pool stops, or is broken: nobody waits any more."""
        self._given_up.set()

    def fault(self, error: SeesawError) -> SeesawError:
        """What a run ends with because of `error`: by then a service that asks for patience is a fault."""
        if not isinstance(error, TryLater):
            return error
        return EnvironmentFault(
            f"{self._name} does nothing for {self.stalled():.0f} s, as the service asks for patience and "
            f"cluster.wait_seconds is less: {error}; the same command goes on where this one was"
        )
