"""What a command does between the claim of its run directory and the report: the part in which commands differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from seesaw.experiments.lab import Lab
from seesaw.results.store.store import Store
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import Plan

__all__ = ["Job"]


class Job(Protocol):
    """What a command does. `files` are patterns of what it writes, `shown` says whether the report tells of them."""

    @property
    def experiment(self) -> Experiment:
        """Whose run directory it is."""
        ...

    @property
    def served(self) -> Experiment:
        """The experiment with all models that are observed."""
        ...

    @property
    def command(self) -> str: ...
    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def shown(self) -> bool: ...

    def identity(self) -> Mapping[str, Any]:
        """What of the config, beside the experiment's fingerprint, its run directory is bound to."""
        ...

    def is_cached(self, store: Store) -> bool:
        """Whether the store holds all that a run which came to its end needs, as far as that can be told."""
        ...

    def describe(self, plan: Plan) -> str:
        """What it is about to do, in a line."""
        ...

    async def observe(self, lab: Lab, events: Events) -> None:
        """Observe all that it needs, and keep it. Raises what the Lab raises."""
        ...

    def write(self, events: Events) -> bool:
        """Write the tables of what was observed into the run directory; whether all of it is defined."""
        ...
