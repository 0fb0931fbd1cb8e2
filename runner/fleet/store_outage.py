"""A store that is full or away for a while: calls to it wait, the run says so once, and ends if it takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray.exceptions import RayTaskError

from seesaw.results.errors import Interrupted, SeesawError, StoreUnavailable
from seesaw.runner.display.events import Events
from seesaw.runner.display.waiting import Waiting

__all__ = ["StoreOutage"]

Result = TypeVar("Result")
LONGEST_PAUSE = 15.0  #: seconds between two tries


class StoreOutage:
    """All calls together wait for at most `wait_seconds`; then `end_run` gets the reason why the run ends."""

    def __init__(
        self, wait_seconds: float, events: Events, end_run: Callable[[SeesawError], None], stopping: Callable[[], bool]
    ) -> None:
        self._wait_seconds, self._end_run, self._stopping = wait_seconds, end_run, stopping
        self._waiting = Waiting(events)

    async def retry_while_unavailable(
        self, call: Callable[[], Awaitable[Result]], on_wait: Callable[[], None] = lambda: None
    ) -> Result:
        """The result of `call`, which is called again for as long as the store is unavailable, each time after a pause.

        `on_wait` is called before each pause.

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
                on_wait()
                await self._pause(cause)
            else:
                self._waiting.over("the store is back")
                return result

    async def _pause(self, error: StoreUnavailable) -> None:
        waited = self._waiting.still_waiting(f"waiting for up to {self._wait_seconds:g} s, nothing is lost: {error}")
        if waited >= self._wait_seconds:
            self._end_run(StoreUnavailable(f"{error} (waited for {waited:.0f} s); the same command goes on then"))
        if self._stopping():
            raise Interrupted("stopped while the store was away; the same command goes on where this one was")
        await asyncio.sleep(min(1 + waited / 10, LONGEST_PAUSE, self._wait_seconds))
