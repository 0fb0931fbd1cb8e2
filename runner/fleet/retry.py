"""What follows from a try of a batch that failed: try again, try again alone, set it aside, or end the run.

A pure function that knows neither Ray nor replicas. `tests/runner/test_retry.py` is this page in examples.

Every batch in the line of a replica that dies may have killed it. A batch that was alone there is charged with the
death. If there were several, none is charged, and each is tried again alone, so that a batch is only ever set aside for
what it did itself. Nobody is charged when a replica is lost with its node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["FAILURES_IN_A_ROW", "Failure", "Next", "RetryPolicy", "Tries"]

FAILURES_IN_A_ROW = 5  #: batches set aside in a row, after which each is tried only once: calls may cost money
NODE_LOSSES_PER_ATTEMPT = 3  #: so many losses with a node, for each attempt, are free; later ones count as deaths


class Failure(Enum):
    """How a try failed."""

    NODE_LOST = "its replica was lost with its node"
    DIED = "its replica died"
    ERROR = "the work raised an error"
    UNFIXABLE = "a wrong setting, or a machine that cannot do it: no retry helps"


class Next(Enum):
    """What is done with a batch after a try that failed."""

    RETRY = "try again, on any replica"
    RETRY_ALONE = "try again, with no other batch in the replica's line"
    SET_ASIDE = "it has failed for good; the run goes on without it"
    END_RUN = "the run ends"


@dataclass(frozen=True)
class Tries:
    """What has happened to a batch so far."""

    failed: int = 0  #: tries that failed, for whatever reason
    counted: int = 0  #: those that are charged to the batch
    node_losses: int = 0  #: those that nobody is charged with
    alone: bool = False  #: it may have killed a replica, so from now on it is tried alone


@dataclass(frozen=True)
class RetryPolicy:
    attempts: int  #: counted tries after which a batch is set aside

    def after(
        self, tries: Tries, failure: Failure, alone: bool = True, failures_in_a_row: int = 0
    ) -> tuple[Next, Tries]:
        """What to do after one more failed try, and the tries with it counted.

        `alone`: no other batch was in the line of the replica, if that died or was lost. `failures_in_a_row` batches of
        the same pool have been set aside since it last did one.
        """
        tries = replace(tries, failed=tries.failed + 1)
        free_losses = NODE_LOSSES_PER_ATTEMPT * self.attempts
        match failure:
            case Failure.UNFIXABLE:
                return Next.END_RUN, replace(tries, counted=tries.counted + 1)
            case Failure.ERROR:
                tries = replace(tries, counted=tries.counted + 1)
            case Failure.NODE_LOST if tries.node_losses < free_losses:
                tries = replace(tries, node_losses=tries.node_losses + 1)
            case _:
                tries = replace(tries, counted=tries.counted + alone, alone=True)
        limit = 1 if failures_in_a_row >= FAILURES_IN_A_ROW else self.attempts
        if tries.counted >= limit:
            return Next.SET_ASIDE, tries
        return (Next.RETRY_ALONE if tries.alone else Next.RETRY), tries
