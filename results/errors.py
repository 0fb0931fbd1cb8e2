"""Every error that Seesaw raises on purpose, in one tree.

::

    SeesawError                    what is wrong, where, what would be right; never shown with a traceback
    ├── InputError                 exit 2   the user's words: command line, config, dataset, answers table
    │   ├── ConfigError                     a config key, its type or its value
    │   ├── DatasetError                    a dataset YAML that contradicts itself (names the line)
    │   ├── AnswersError                    an answers table that cannot be read as one
    │   ├── LabelsError                     labels that cannot be read, or do not belong to the run
    │   └── RunDirectoryError               a run directory that belongs to another experiment or driver
    ├── EnvironmentFault           exit 4   the machine cannot do it: no such GPU, weights, package, space
    ├── Interrupted                exit 3   stopped on request, or no node was left; the same command resumes
    │   └── HeadLost                        Ray's head no longer answers: no function of Ray may be called
    ├── StoreUnavailable           exit 4   the store is full or cannot be reached; work waits for it
    ├── TryLater                   exit 4   a service asks to be tried later; work waits for it
    ├── StoreError                 exit 4   a shard that is unreadable, cut short or altered
    └── BatchFailed                         one batch failed for good; the sweep goes on without it

What no code above is for, and any other exception, is an error of Seesaw's own: exit 70. This module sits in the
lowest room because every room raises from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AnswersError",
    "BatchFailed",
    "ConfigError",
    "DatasetError",
    "EnvironmentFault",
    "HeadLost",
    "InputError",
    "Interrupted",
    "LabelsError",
    "RunDirectoryError",
    "SeesawError",
    "StoreError",
    "StoreUnavailable",
    "TryLater",
    "nearest",
]


class SeesawError(Exception):
    """Base of all deliberate errors. `exit_code` is the exit code of the command."""

    exit_code = 70


class InputError(SeesawError):
    exit_code = 2


class ConfigError(InputError):
    pass


class DatasetError(InputError):
    pass


class AnswersError(InputError):
    pass


class LabelsError(InputError):
    pass


class RunDirectoryError(InputError):
    pass


class EnvironmentFault(SeesawError):
    exit_code = 4


class Interrupted(SeesawError):
    exit_code = 3


class HeadLost(Interrupted):
    pass


class StoreUnavailable(SeesawError):
    """The store cannot do this now. The same call may succeed later, once there is room or a connection."""

    exit_code = 4


class TryLater(SeesawError):
    """What an engine raises if the service that it calls asks for patience, as with HTTP status 429.

    `seconds` are those that the service asks for (`Retry-After`); None if it does not say. The batch is tried again
    after a pause, which does not count as one of its attempts; meanwhile the model is sent no other batch.

    Example::

        raise seesaw.TryLater("the quota of this minute is used up", seconds=20)
    """

    exit_code = 4

    def __init__(self, message: str = "the service asks to be tried later", seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[TryLater], tuple[str, float | None]]:
        return type(self), (str(self), self.seconds)


class StoreError(SeesawError):
    exit_code = 4


class BatchFailed(SeesawError):
    """A batch that used up its attempts. `stage` is `generate` or `ask`, `error` the kind of the last failure."""

    def __init__(self, message: str, *, stage: str, error: str, attempts: int) -> None:
        super().__init__(message)
        self.stage, self.error, self.attempts = stage, error, attempts


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest known name, else the known names; the end of an error message."""
    names = sorted({str(k) for k in known})
    lowered = {n.lower(): n for n in reversed(names)}
    close = difflib.get_close_matches(str(name).lower(), list(lowered), n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{lowered[close[0]]}'?"
    return f"; known: {', '.join(names)}" if names else ""
