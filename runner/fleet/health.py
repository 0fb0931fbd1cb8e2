"""What went wrong in a pool since something last went right, and when that is too much. Knows no Ray."""

from __future__ import annotations

from collections import Counter

from seesaw.runner.fleet.retry import FAILURES_IN_A_ROW

__all__ = ["DEATHS_WHILE_LOADING", "PoolHealth"]

DEATHS_WHILE_LOADING = 3  #: replicas in a row that may die on a node while they load, before the node is avoided


class PoolHealth:
    """Counts failures and deaths in a row, so that a cluster does not crash in a loop for days."""

    def __init__(self, attempts: int, in_flight: int) -> None:
        """`attempts` of a batch, and batches `in_flight` at one replica, as the config says."""
        self._attempts, self._in_flight = attempts, in_flight
        self.failures_in_a_row = 0  #: batches set aside since one was done
        self.unblamed_deaths = 0  #: replicas that died, with no one batch to blame, since a batch was done
        self._killers: set[str] = set()  # subjects whose batches killed their replicas since a batch was done
        self._deaths_while_loading: Counter[str] = Counter()  # by node, since a replica loaded there

    def batch_done(self) -> None:
        self.failures_in_a_row = self.unblamed_deaths = 0
        self._killers.clear()

    def batch_set_aside(self, subject: str, killed: bool) -> bool:
        """A batch failed for good; `killed` says whether it killed its replica. Whether the model itself is at fault.

        Batches of one subject may be deadly. If those of two are, in a row, it is the model that crashes.
        """
        self.failures_in_a_row += 1
        if killed:
            self._killers.add(subject)
        return len(self._killers) > 1 and self.failures_in_a_row >= FAILURES_IN_A_ROW

    def loaded(self, node: str) -> None:
        self._deaths_while_loading.pop(node, None)

    def died_while_loading(self, node: str) -> bool:
        """Whether so many replicas died on this node while they loaded that it is to be avoided."""
        self._deaths_while_loading[node] += 1
        return self._deaths_while_loading[node] >= DEATHS_WHILE_LOADING

    def died_unblamed(self, replicas_left: int) -> bool:
        """A replica died, and no one batch can be blamed. Whether that happens too often to start further replicas.

        All batches that were in flight may each die once more, alone, before one is set aside.
        """
        self.unblamed_deaths += 1
        return self.unblamed_deaths >= 2 * self._attempts + (replicas_left + 1) * self._in_flight
