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
from seesaw.runner.cluster.connect import available, call_in_thread, labels, list_nodes, nodes
from seesaw.runner.cluster.local_ray import own_node_died
from seesaw.runner.cluster.preflight import Ready, welcome
from seesaw.runner.display.events import Events
from seesaw.runner.display.waiting import Waiting
from seesaw.runner.experiment import Experiment
from seesaw.runner.scheduling.resources import Node

__all__ = ["Nodes"]

HEAD_SILENCE_SECONDS = 20.0  #: until the run ends, well before Ray's own minute
HEAD_SILENCE_LOOKS = 3  #: that must have gone unanswered as well: the clock goes on while this process is stopped
HEAD_GRACE_SECONDS = 10.0  #: of silence until it is noted
REPLY_SECONDS = 5.0  #: that the head has for one look
FREED_SECONDS = 5.0  #: after which Ray's head knows what became free on a node


class Nodes:
    """What is known of the cluster since the last `look`; `changed` is called when newcomers have answered."""

    def __init__(self, experiment: Experiment, ready: Ready, events: Events, changed: Callable[[], None]) -> None:
        self._experiment, self._ready, self._events, self._changed = experiment, ready, events, changed
        self.now: Sequence[Node] = nodes(ready.reports)
        self._labels: Mapping[str, str] = {}
        self._asking: asyncio.Task[Ready] | None = None  # newcomers
        self._newcomers: set[str] = set()  # who is being asked
        self._useless: set[str] = set()  # nodes with no room for anything
        self._last_used: dict[str, float] = {}  # by node, when a replica of this run was last there
        self._free: dict[str, Mapping[str, float]] = {}  # what others left of a node when nothing of this run was there
        self._silence, self._unanswered = Waiting(events, grace=HEAD_GRACE_SECONDS), 0

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
        return {name for name, report in self._ready.reports.items() if model in report.lacks}

    async def look(self, in_use: Collection[str]) -> bool:
        """Ask Ray's head; False if it does not answer now. `in_use` are the nodes where replicas of this run are.

        Raises:
            HeadLost: it has not answered for `HEAD_SILENCE_SECONDS`, or a Ray of the run's own has no node any more.
        """
        if own_node_died():  # no other node can come to a Ray of the run's own
            raise HeadLost(
                "the run's own Ray has lost its only node: its raylet has died, perhaps since memory ran out; what was "
                "in flight is lost, what was committed is kept, and the same command goes on"
            )
        try:
            listing, free = await asyncio.wait_for(call_in_thread(_listing_and_free), timeout=REPLY_SECONDS)
        except (TimeoutError, RayError, RuntimeError, OSError) as error:  # Ray's clients raise all of these
            self._note_silence(error)
            return False
        self._silence.over("Ray's head answers again")
        self._unanswered = 0
        self._update(listing, free, in_use)
        return True

    def _note_silence(self, error: BaseException) -> None:
        self._unanswered += 1
        waited = self._silence.still_waiting(
            f"Ray's head does not answer: waiting for up to {HEAD_SILENCE_SECONDS:g} s, nothing is lost"
        )
        if waited > HEAD_SILENCE_SECONDS and self._unanswered > HEAD_SILENCE_LOOKS:
            reason = "no reply" if isinstance(error, TimeoutError) else first_line(error)
            raise HeadLost(
                f"Ray's head does not answer any more ({reason}); what was in flight is lost, what was committed is "
                "kept: start the head again, and the same command goes on"
            ) from error

    def _update(
        self, listing: Sequence[Mapping[str, Any]], free: dict[str, dict[str, float]], in_use: Collection[str]
    ) -> None:
        self._labels = labels(listing)
        self._ask_newcomers({node.name for node in nodes(listing=listing)})
        now = time.monotonic()
        self._last_used |= dict.fromkeys(in_use, now)
        usable = nodes(self._ready.reports, listing)
        for node in usable:
            if now - self._last_used.get(node.name, -math.inf) > FREED_SECONDS and node.name in free:
                self._free[node.name] = free[node.name]
        self.now = [self._less_others(node) for node in usable]

    def _ask_newcomers(self, alive: set[str]) -> None:
        """Take in the answers of those that were asked, and ask those that have come since."""
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            self._welcome(asking)
        newcomers = alive - self._ready.reports.keys() - self._ready.refused - self._useless
        if self._asking is None and newcomers:
            self._newcomers = newcomers
            self._asking = asyncio.create_task(call_in_thread(welcome, self._experiment, self._ready))
            self._asking.add_done_callback(lambda _: self._changed())

    def _welcome(self, asking: asyncio.Task[Ready]) -> None:
        try:
            self._ready = asking.result()
        except (SeesawError, RayError, RuntimeError, OSError) as error:  # the same nodes are asked again
            self._events.note(f"a node that has joined cannot be asked yet: {first_line(error)}")
            return
        self._useless |= self._newcomers - self._ready.reports.keys() - self._ready.refused
        for note in self._ready.notes:
            self._events.note(note)

    def _less_others(self, node: Node) -> Node:
        free = self._free.get(node.name)
        return node if free is None else replace(node, gpus=int(free.get("GPU", 0.0)), cpus=free.get("CPU", 0.0))

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


def _listing_and_free() -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    return list_nodes(), available()
