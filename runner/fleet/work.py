"""A batch as a pool sees it, and how a try of it fails."""

from __future__ import annotations

from dataclasses import dataclass

from ray.exceptions import RayError, RayTaskError

from seesaw.results.printable import printable
from seesaw.results.secrets import first_line
from seesaw.runner.fleet.retry import Failure

__all__ = ["TryFailed", "Work", "cause_of", "short_message"]

MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class Work:
    """What a pool needs to know of a batch."""

    label: str  #: unique among the batches of the pool
    stage: str  #: generate or ask
    subject: str = ""


class TryFailed(Exception):
    """A try of a batch failed on a replica. Never leaves the fleet: `ReplicaPool.next_try` says what follows."""

    def __init__(
        self, failure: Failure, replica: str, error: BaseException, alone: bool = True, sent: float = 0.0
    ) -> None:
        """`alone`: no other batch was in the line of the replica, if that died or was lost.

        `sent`: when the batch went to the replica (monotonic).
        """
        super().__init__(str(error))
        self.failure, self.replica, self.error, self.alone, self.sent = failure, replica, error, alone, sent


def cause_of(error: RayError) -> BaseException:
    """What an actor raised, out of Ray's wrapping."""
    return error.cause if isinstance(error, RayTaskError) and error.cause is not None else error


def short_message(error: BaseException) -> str:
    """The first line of an error without secrets and escape codes, at most 300 characters; its type if it is empty."""
    return printable(first_line(error).strip())[:MESSAGE_CHARACTERS]
