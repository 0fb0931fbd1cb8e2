"""What a command does after it claimed its run directory and before the report: the part in which commands differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from seesaw.experiments.lab import Lab
from seesaw.results.store.store import Store
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import Plan

__all__ = ["Job", "ReadTwice"]


class Job(Protocol):
    """What a command does. `files` are patterns of the files that it writes; `shown`: the report shows them."""

    @property
    def experiment(self) -> Experiment:
        """The experiment that the run directory belongs to."""
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

    @property
    def stated(self) -> int:
        """How many axes its prompts state at most, as far as is known beforehand."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """The parts of the config, besides the experiment's fingerprint, that must stay the same in a run directory."""
        ...

    def is_cached(self, store: Store) -> bool:
        """Whether the store holds everything that a finished run of this job needs, as far as is known beforehand."""
        ...

    def describe(self, plan: Plan) -> str:
        """What the job is about to do, in one line."""
        ...

    async def observe(self, lab: Lab, events: Events) -> None:
        """Observe everything that the job needs, and keep it for `write`. Raises what the Lab raises."""
        ...

    def write(self, events: Events) -> bool:
        """Write the tables into the run directory. Returns whether everything in them is defined."""
        ...


@runtime_checkable
class ReadTwice(Protocol):
    """A job whose images a second VLM reads as well, after the first has read them all."""

    @property
    def second(self) -> Experiment | None:
        """The experiment as the second VLM reads it; None if there is only one."""
        ...

    async def observe_second(self, lab: Lab, events: Events) -> None:
        """As `Job.observe`, over the second VLM."""
        ...
