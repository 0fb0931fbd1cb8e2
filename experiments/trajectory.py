"""The course of one mitigation: what every step saw and did, written down and read again without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from seesaw.experiments.strategies import TOLERANCE
from seesaw.results.errors import ConfigError

__all__ = ["OUTCOMES", "Alert", "Kind", "Outcome", "State", "Step"]

Outcome = Literal["", "reached", "no_gain", "exhausted", "max_steps", "undefined"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Kind = Literal["worse", "missed", "immovable", "undefined"]


@dataclass(frozen=True)
class Alert:
    """What a user should know of a step; `error` is the standard error of `value`, 0 for exact probabilities.

    `worse`: w of `axis` rose by `value`. `missed`: after mitigating `axis`, tau is `value` above its prediction.
    `immovable`: w of the chosen `axis` is `value`, above epsilon, and no candidate improves it. `undefined`: a
    counterfactual of the candidate `axis` shows no person in any image, so it was left out.
    """

    kind: Kind
    axis: str
    value: float = 0.0
    error: float = 0.0

    def __str__(self) -> str:
        match self.kind:
            case "worse":
                return f"{self.axis} became worse by {self.value:.3f} (standard error {self.error:.3f})"
            case "missed":
                by = f"{abs(self.value):.3f} {'above' if self.value > 0 else 'below'}"
                return f"tau is {by} what mitigating {self.axis} was to give (standard error {self.error:.3f})"
            case "immovable":
                return f"{self.axis} stays at w = {self.value:.3f}: nothing left to mitigate improves it"
            case "undefined":
                return f"{self.axis} could not be a candidate: one of its counterfactuals shows no person"


@dataclass(frozen=True)
class Step:
    """The model after t mitigations, and the one that follows. Numbers by axis are in the dataset's order.

    `prompts`, `images`: the prompt set, m texts. `w`, `tau` with their standard errors. Once an axis is chosen:
    `gamma` of every candidate, `sensitivity` its row of S over all n axes, `axis` the one taken ("" if none gains),
    `predicted` the tau that its gamma predicts (None where a strategy predicts nothing).
    """

    prompts: tuple[str, ...]
    images: tuple[int, ...]
    w: Mapping[str, float]
    w_error: Mapping[str, float]
    tau: float
    tau_error: float
    gamma: Mapping[str, float] = field(default_factory=dict)
    sensitivity: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    axis: str = ""
    predicted: float | None = None
    predicted_error: float | None = None
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True)
class State:
    """A mitigation under way or ended; `State()` is the beginning. `reason` says why an outcome is `undefined`."""

    steps: tuple[Step, ...] = ()
    outcome: Outcome = ""
    reason: str = ""

    @property
    def mitigated(self) -> tuple[str, ...]:
        """Axes in order of mitigation; the last may not be measured yet."""
        return tuple(step.axis for step in self.steps if step.axis)

    @property
    def measured(self) -> bool:
        """Whether the current model's w is known, so that an axis is to be chosen."""
        return bool(self.steps) and not self.steps[-1].axis

    def steps_to(self, epsilon: float) -> int | None:
        """Mitigations after which tau was first at most `epsilon`; None if it never was."""
        return next((t for t, step in enumerate(self.steps) if step.tau <= epsilon + TOLERANCE), None)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data for JSON, which keeps every float to the last bit."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> State:
        """The state that `to_mapping` wrote. Raises ConfigError for what is none."""
        try:
            if mapping["outcome"] not in OUTCOMES:
                raise ValueError(f"outcome '{mapping['outcome']}'")
            return cls(tuple(map(_step, mapping["steps"])), mapping["outcome"], mapping["reason"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"what was written down is no state of a mitigation: {error}") from error


def _step(mapping: Mapping[str, Any]) -> Step:
    return Step(
        **{
            **mapping,
            "prompts": tuple(mapping["prompts"]),
            "images": tuple(mapping["images"]),
            "sensitivity": {axis: tuple(row) for axis, row in mapping["sensitivity"].items()},
            "alerts": tuple(Alert(**alert) for alert in mapping["alerts"]),
        }
    )
