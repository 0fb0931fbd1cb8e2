"""The trajectory of one mitigation: what every step measured, and which axis it chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from seesaw.results.tables.mitigation import Judged, Outcome

__all__ = ["Alert", "Kind", "State", "Step"]

Kind = Literal["worse", "missed", "immovable", "undefined"]


@dataclass(frozen=True)
class Alert:
    """What a user should know about a step; `error` is the standard error of `value`, 0 for exact probabilities.

    - `worse`: w of `axis` rose by `value`.
    - `missed`: after mitigating `axis`, tau is `value` above its prediction (below it, if `value` is negative).
    - `immovable`: w of the chosen `axis` is `value`, which is above epsilon, and no candidate improves it.
    - `undefined`: no image of a counterfactual of the candidate `axis` shows a person, so the axis was left out.
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
                return f"tau is {by} its prediction for mitigating {self.axis} (standard error {self.error:.3f})"
            case "immovable":
                return f"{self.axis} stays at w = {self.value:.3f}: nothing left to mitigate improves it"
            case "undefined":
                return f"{self.axis} could not be a candidate: one of its counterfactuals shows no person"


@dataclass(frozen=True)
class Step:
    """The model after t mitigations, and the mitigation that follows. Numbers by axis are in the dataset's order.

    `prompts` and `images` describe the prompt set: m texts, and the number of images of each. `w` and `tau` have their
    standard errors beside them, and `judged` tells which images they are of: `shared` with the decision that led here,
    or `fresh`, which no decision saw. The other fields are filled once the next axis is chosen: `gamma` of every
    candidate; `sensitivity`, each candidate's row of S over all n axes, and `w_init`, the w that S starts from, of the
    shared images; `axis`, the chosen one ("" if no axis gains); `predicted`, the tau that its gamma predicts, with its
    standard error (None if the strategy predicts nothing).
    """

    prompts: tuple[str, ...]
    images: tuple[int, ...]
    w: Mapping[str, float]
    w_error: Mapping[str, float]
    tau: float
    tau_error: float
    judged: Judged = "shared"
    gamma: Mapping[str, float] = field(default_factory=dict)
    sensitivity: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    w_init: Mapping[str, float] = field(default_factory=dict)
    axis: str = ""
    predicted: float | None = None
    predicted_error: float | None = None
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True)
class State:
    """A mitigation that is in progress or has ended; `State()` is the beginning.

    `outcome` is "" while it is in progress. `reason` says why an outcome is `undefined`. `ending` is the outcome that
    the shared images suggest, as long as fresh images have not judged it; "" if there is nothing to judge.
    """

    steps: tuple[Step, ...] = ()
    outcome: Outcome | Literal[""] = ""
    reason: str = ""
    ending: Outcome | Literal[""] = ""

    @property
    def mitigated(self) -> tuple[str, ...]:
        """The axes in order of mitigation. The model after the last of them may not have been measured yet."""
        return tuple(step.axis for step in self.steps if step.axis)

    @property
    def measured(self) -> bool:
        """Whether w of the current model has been measured, so that the next step chooses an axis."""
        return bool(self.steps) and not self.steps[-1].axis
