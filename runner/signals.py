"""How a user stops a run: Ctrl-C, SIGTERM or SIGHUP. Handlers are put back when the run ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from seesaw.results.errors import Interrupted

__all__ = ["STOPPED", "StopRequests"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = "stopped; the same command goes on where this one was"


class StopRequests:
    """Requests to stop one run, which signals make.

    Until the run is at work a request raises KeyboardInterrupt in the main thread, if the run is there. Otherwise it is
    kept until the run asks for it with `check`. Once the run is at work (`call`), a request is a call.
    """

    def __init__(self, run_is_here: bool) -> None:
        """`run_is_here`: the run is in the thread that makes this, and not in one of its own."""
        self._can_interrupt = run_is_here
        self._requested = False
        self._on_request: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def from_signals(self) -> Iterator[None]:
        """Take requests from signals while the block runs, then handle signals as before.

        Only the main thread can handle signals; in any other this does nothing.
        """
        if not _in_main_thread():
            yield
            return
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        # None: a handler that was not installed by Python, and that Python cannot put back
        self._before = {number: handler for number, handler in handlers.items() if handler is not None}
        try:
            self.install()
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def install(self) -> None:
        """Put the handlers in place, again if a library has put its own there. Ignored signals (nohup) stay ignored."""
        if _in_main_thread():
            for number, before in self._before.items():
                signal.signal(number, signal.SIG_IGN if before is signal.SIG_IGN else self._handle)

    def check(self) -> None:
        """Raises Interrupted if there was a request."""
        if self._requested:
            raise Interrupted(STOPPED)

    @contextmanager
    def call(self, on_request: Callable[[], object]) -> Iterator[None]:
        """Call `on_request` in the main thread at each request while the block runs. Raises Interrupted as `check`."""
        self._on_request = on_request
        try:
            self.check()
            yield
        finally:
            self._on_request = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        if self._on_request is not None:
            self._on_request()
        elif self._can_interrupt:
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
