"""What follows from a try of a batch that failed: try again, alone or later, set it aside, or end the run.

A pure function that knows neither Ray nor replicas. `tests/runner/test_retry.py` is this page in examples.

Every batch in the line of a replica that dies may have killed it. A batch that was alone there is charged with the
death. If there were several, none is charged, and each is tried again alone, so that a batch is only ever set aside for
what it did itself. Nobody is charged when a replica is lost with its node.

A service that asks for patience gets it: such a try is charged to nobody, and the next one waits
(`seesaw.runner.fleet.backoff`). The run ends if nothing is done for as long as a run may wait. If only this batch is
turned away for so long, while others are done, it is set aside.
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
    LATER = "the service that does the work asks for patience"
    UNFIXABLE = "a wrong setting, or a machine that cannot do it: no retry helps"


class Next(Enum):
    """What is done with a batch after a try that failed."""

    RETRY = "try again, on any replica"
    RETRY_LATER = "try again after a pause, in which the model is left alone"
    RETRY_ALONE = "try again, with no other batch in the replica's line"
    SET_ASIDE = "it has failed for good; the run goes on without it"
    END_RUN = "the run ends"


@dataclass(frozen=True)
class Tries:
    """What has happened to a batch so far."""

    failed: int = 0  #: tries that failed, for whatever reason
    counted: int = 0  #: those that are charged to the batch
    node_losses: int = 0  #: those that nobody is charged with
    waited: float = 0.0  #: seconds that a service asked it to wait
    alone: bool = False  #: it may have killed a replica, so from now on it is tried alone


@dataclass(frozen=True)
class RetryPolicy:
    attempts: int  #: counted tries after which a batch is set aside
    patience: float  #: seconds that a run waits for a service

    def after(
        self, tries: Tries, failure: Failure, alone: bool = True, failures_in_a_row: int = 0, stalled: float = 0.0
    ) -> tuple[Next, Tries]:
        """What to do after one more failed try, and the tries with it counted.

        `alone`: no other batch was in the line of the replica, if that died or was lost. `failures_in_a_row` batches of
        the same pool have been set aside since it last did one. `stalled`: seconds for which the service has done
        nothing and will have, at the end of the pause.
        """
        tries = replace(tries, failed=tries.failed + 1)
        free_losses = NODE_LOSSES_PER_ATTEMPT * self.attempts
        match failure:
            case Failure.UNFIXABLE:
                return Next.END_RUN, replace(tries, counted=tries.counted + 1)
            case Failure.LATER if stalled > self.patience:
                return Next.END_RUN, tries
            case Failure.LATER:
                return (Next.RETRY_LATER if tries.waited <= self.patience else Next.SET_ASIDE), tries
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
