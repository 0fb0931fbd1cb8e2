"""The nodes that a run may use now: those that are there, less what others hold, and newcomers once they were asked."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ray.exceptions import RayError

from results.errors import SeesawError
from results.secrets import first_line
from runner.cluster import aside, available, labels, listed, nodes
from runner.events import Events
from runner.experiment import Experiment
from runner.preflight import Ready, welcome
from runner.room import Node

__all__ = ["Nodes"]

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

    async def look(self, ours: Collection[str]) -> None:
        """Ask Ray's head; `ours` are the nodes where replicas of this run are. Raises what Ray's clients raise."""
        listing, free = await aside(listed), await aside(available)
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
