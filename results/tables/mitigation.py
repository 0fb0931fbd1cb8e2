"""What mitigation.parquet records: one case for each subject, model, priority vector and strategy, with its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CLOSE",
    "JUDGED",
    "OUTCOMES",
    "STRATEGIES",
    "TOLERANCE",
    "Case",
    "Judged",
    "Key",
    "Outcome",
    "StepRow",
    "is_reached",
    "probability_reached",
    "strategies_among",
    "weighted_sum",
]

Outcome = Literal["reached", "no_gain", "exhausted", "max_steps", "undefined"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Judged = Literal["fresh", "shared"]  #: on images that no decision saw, or on those that the decisions saw
JUDGED: tuple[Judged, ...] = get_args(Judged)
#: Seesaw's own strategies, and which axis each mitigates next. A user's strategy has no such description.
STRATEGIES: Mapping[str, str] = {
    "greedy": "the axis, chosen or not, with the largest predicted gain gamma",
    "all": "every chosen axis, in order, whatever it gains",
    "own": "the chosen axis whose own bias weighs most, whatever this does to the others",
    "random": "the chosen axes in random order",
}
Key = tuple[str, str, str, str]  #: model, subject, case, strategy: unique to a case
CLOSE = 1e-6  #: the rounding error allowed where a figure is computed again from others
TOLERANCE = 1e-9  #: two gains or distances that differ by less are equal: the last bits of a sum decide nothing


@dataclass(frozen=True)
class StepRow:
    """One row of mitigation.parquet. Unknown numbers are NaN."""

    axis: str  #: mitigated at this step; "" at step 0, before any mitigation
    gamma: float  #: predicted gain: the predicted fall of tau
    predicted: float  #: the tau that gamma predicts
    tau: float  #: measured after the step
    tau_se: float  #: its standard error, 0 where tau is exact
    judged: str  #: one of JUDGED: the images that tau and w are of
    p_reached: float  #: the probability that tau is at most epsilon
    w: Mapping[str, float]  #: by axis, measured after the step
    prompts: tuple[str, ...]
    alerts: tuple[str, ...]
    images: float  #: looked at for this step and for no earlier one, in whole batches; new or from the store


@dataclass(frozen=True)
class Case:
    """The mitigation of one subject on one model with one priority vector (`case`, in words) by one strategy."""

    model: str
    subject: str
    case: str
    strategy: str
    chosen: Mapping[str, float]  #: priority by axis
    epsilon: float
    outcome: str  #: one of OUTCOMES; "" while unfinished
    trajectory: tuple[StepRow, ...]  #: its steps, from step 0 on

    @property
    def key(self) -> Key:
        return self.model, self.subject, self.case, self.strategy

    @property
    def vector(self) -> tuple[str, str, str]:
        """The same for this case under every strategy."""
        return self.model, self.subject, self.case

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that have a w, in the order of the table."""
        return tuple(self.trajectory[0].w)

    @property
    def mitigated(self) -> tuple[str, ...]:
        """Axes in the order of their mitigation."""
        return tuple(step.axis for step in self.trajectory[1:])

    @property
    def steps(self) -> int:
        return len(self.trajectory) - 1

    @property
    def tau(self) -> float:
        """tau after the last step."""
        return self.trajectory[-1].tau

    @property
    def judged(self) -> str:
        """The images that tau after the last step is of, one of JUDGED."""
        return self.trajectory[-1].judged

    @property
    def p_reached(self) -> float:
        """The probability that tau after the last step is at most epsilon; NaN where its standard error is unknown."""
        return self.trajectory[-1].p_reached

    @property
    def images(self) -> float:
        """Images that all steps looked at; NaN where that is not recorded."""
        return sum(step.images for step in self.trajectory)

    @property
    def counts(self) -> bool:
        """Whether means include the case: it is finished, and every figure behind its decisions is defined."""
        return self.outcome not in ("", "undefined") and not math.isnan(self.tau)

    @property
    def reached(self) -> bool:
        return is_reached(self.tau, self.epsilon)

    @property
    def priorities(self) -> float:
        """Sum of the priorities; tau is on the scale of w if this is 1."""
        return math.fsum(self.chosen.values())

    @property
    def uneven(self) -> bool:
        """Whether the priorities do not sum to 1, so that tau is on another scale than w."""
        return abs(self.priorities - 1) > CLOSE

    @property
    def outside(self) -> tuple[str, ...]:
        """Mitigated axes that were not chosen."""
        return tuple(axis for axis in self.mitigated if axis not in self.chosen)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to read the figures of this case correctly."""
        return tuple(
            note
            for holds, note in (
                (self.outcome == "", "unfinished: in no mean"),
                (self.outcome != "" and not self.counts, "undefined: in no mean"),
                (self.uneven, f"priorities sum to {self.priorities:.2f}"),
                (self.counts and not self.reached, f"ends above epsilon {self.epsilon:g}"),
                (bool(self.outside), f"outside the chosen axes: {', '.join(self.outside)}"),
            )
            if holds
        )


def weighted_sum(values: ArrayLike, priority: ArrayLike) -> NDArray[np.float64]:
    """<values, priority> of n axes: values (..., n), priority (n,) -> (...). tau is that of w, gamma that of IS."""
    return np.asarray((np.asarray(values, np.float64) * np.asarray(priority, np.float64)).sum(-1), np.float64)


def is_reached(tau: float, epsilon: float) -> bool:
    """Whether tau is at most epsilon."""
    return tau <= epsilon + TOLERANCE


def probability_reached(tau: float, tau_se: float, epsilon: float) -> float:
    """The probability that the true tau is at most epsilon, given a measured tau and its standard error (normal).

    NaN where either is unknown.
    """
    if math.isnan(tau) or math.isnan(tau_se):
        return math.nan
    if not tau_se:
        return float(is_reached(tau, epsilon))
    return NormalDist(tau, tau_se).cdf(epsilon)


def strategies_among(cases: Iterable[Case]) -> list[str]:
    """The strategies of `cases`: first Seesaw's own, in their order, then the user's, by name."""
    names = {case.strategy for case in cases}
    return [*(name for name in STRATEGIES if name in names), *sorted(names - STRATEGIES.keys())]
