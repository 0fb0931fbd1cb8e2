"""A store that is full or away for a while: who needs it waits, the run says so once, and gives up after too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray.exceptions import RayTaskError

from seesaw.results.errors import Interrupted, SeesawError, StoreUnavailable
from seesaw.runner.display.events import Events
from seesaw.runner.display.waiting import Waiting

__all__ = ["Outage"]

Result = TypeVar("Result")


class Outage:
    """`longest` seconds are waited in all; then `end` is told why the run ends. `stopping` says whether it does."""

    def __init__(
        self, longest: float, events: Events, end: Callable[[SeesawError], None], stopping: Callable[[], bool]
    ) -> None:
        self._longest, self._end, self._stopping = longest, end, stopping
        self._waiting = Waiting(events)

    async def through(self, call: Callable[[], Awaitable[Result]], waits: Callable[[], None] = lambda: None) -> Result:
        """The result of `call`, made again for as long as it ends for want of the store; `waits` is told each time.

        Raises:
            Interrupted: the run was told to stop meanwhile, or the store was away for too long.
        """
        while True:
            try:
                result = await call()
            except (RayTaskError, StoreUnavailable) as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                if not isinstance(cause, StoreUnavailable):
                    raise
                waits()
                await self._wait(cause)
            else:
                self._waiting.is_over("the store is back")
                return result

    async def _wait(self, error: StoreUnavailable) -> None:
        waited = self._waiting.goes_on(f"waiting for up to {self._longest:g} s, nothing is lost: {error}")
        if waited >= self._longest:
            self._end(StoreUnavailable(f"{error} (waited for {waited:.0f} s); the same command goes on then"))
        if self._stopping():
            raise Interrupted("stopped while the store was away; the same command goes on where this one was")
        await asyncio.sleep(min(1 + waited / 10, 15.0, self._longest))
