"""The nodes that a run may use now: those that are there, less what others hold, and newcomers once they were asked."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray.exceptions import RayError

from seesaw.results.errors import HeadLost, SeesawError
from seesaw.results.secrets import first_line
from seesaw.runner.cluster.connect import aside, available, labels, listed, nodes
from seesaw.runner.cluster.preflight import Ready, welcome
from seesaw.runner.display.events import Events
from seesaw.runner.display.waiting import Waiting
from seesaw.runner.experiment import Experiment
from seesaw.runner.scheduling.resources import Node

__all__ = ["Nodes"]

HEADLESS = 20.0  #: seconds of looks that Ray's head leaves unanswered until the run ends, well before Ray's own minute
REPLY = 5.0  #: seconds that it has for one
FREED = 5.0  #: seconds after which Ray's head knows what became free on a node


class Nodes:
    """What is known of the cluster since the last `look`; `changed` is called when newcomers have answered."""

    def __init__(self, experiment: Experiment, ready: Ready, events: Events, changed: Callable[[], None]) -> None:
        self._experiment, self._ready, self._events, self._changed = experiment, ready, events, changed
        self.now: Sequence[Node] = nodes(ready.facts)
        self._labels: Mapping[str, str] = {}
        self._greeting: asyncio.Task[Ready] | None = None
        self._newcomers: set[str] = set()  # who is being asked
        self._useless: set[str] = set()
        self._used: dict[str, float] = {}  # when something of ours was on a node last
        self._free: dict[str, Mapping[str, float]] = {}  # what others left of a node when nothing of ours was there
        self._silence, self._unanswered = Waiting(events, grace=10.0), 0

    def label(self, name: str) -> str:
        """A node's address in the place of Ray's id."""
        return self._labels.get(name, name)

    def readable(self, line: str) -> str:
        """A line with the addresses of nodes in the place of their ids."""
        for name, label in self._labels.items():
            line = line.replace(name, label)
        return line

    def lacking(self, model: str) -> set[str]:
        """Nodes that cannot load a model."""
        return {name for name, facts in self._ready.facts.items() if model in facts.lacks}

    async def look(self, ours: Collection[str]) -> bool:
        """Ask Ray's head; False if it does not answer now. `ours` are the nodes where replicas of this run are.

        Raises:
            HeadLost: it has not answered for `HEADLESS` seconds.
        """
        try:
            listing, free = await asyncio.wait_for(aside(_listed_and_free), timeout=REPLY)
        except (TimeoutError, RayError, RuntimeError, OSError) as error:  # Ray's clients raise all of these
            self._unanswered += 1  # and not the clock alone, which goes on while this process is stopped
            waited = self._silence.still_waiting(
                f"Ray's head does not answer: waiting for up to {HEADLESS:g} s, nothing is lost"
            )
            if waited > HEADLESS and self._unanswered > 3:
                said = "no reply" if isinstance(error, TimeoutError) else first_line(error)
                raise HeadLost(
                    f"Ray's head does not answer any more ({said}); what was in flight is lost, what was committed is "
                    "kept: start the head again, and the same command goes on"
                ) from error
            return False
        self._silence.over("Ray's head answers again")
        self._unanswered = 0
        self._see(listing, free, ours)
        return True

    def _see(
        self, listing: Sequence[Mapping[str, Any]], free: dict[str, dict[str, float]], ours: Collection[str]
    ) -> None:
        self._labels = labels(listing)
        if self._greeting is not None and self._greeting.done():
            greeting, self._greeting = self._greeting, None
            self._welcome(greeting)
        there = {node.name for node in nodes(found=listing)}
        known = self._ready.facts.keys() | self._ready.refused | self._useless
        if self._greeting is None and there - known:
            self._newcomers = there - known
            self._greeting = asyncio.create_task(aside(welcome, self._experiment, self._ready))
            self._greeting.add_done_callback(lambda _: self._changed())
        now = time.monotonic()
        self._used |= dict.fromkeys(ours, now)
        found = nodes(self._ready.facts, listing)
        for node in found:
            if now - self._used.get(node.name, -math.inf) > FREED and node.name in free:
                self._free[node.name] = free[node.name]
        self.now = [self._less_others(node) for node in found]

    def _welcome(self, greeting: asyncio.Task[Ready]) -> None:
        try:
            self._ready = greeting.result()
        except (SeesawError, RayError, RuntimeError, OSError) as error:  # the same nodes are asked again
            self._events.note(f"a node that has joined cannot be asked yet: {first_line(error)}")
            return
        self._useless |= self._newcomers - self._ready.facts.keys() - self._ready.refused  # no room for anything
        for told in self._ready.notes:
            self._events.note(told)

    def _less_others(self, node: Node) -> Node:
        free = self._free.get(node.name)
        return node if free is None else replace(node, gpus=int(free.get("GPU", 0.0)), cpus=free.get("CPU", 0.0))

    def close(self) -> None:
        if self._greeting is not None:
            self._greeting.cancel()


def _listed_and_free() -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    return listed(), available()
