"""InterMit (docs/method.md; the paper's algorithm 1): which axes to mitigate, one by one, until tau <= epsilon.

The algorithm is two pure functions. `required_prompt_sets` says which prompt sets have to be observed in a state, and
`step` computes the next state from what they show:

    state = State()
    while not state.outcome:
        state = step(problem, state, observe(required_prompt_sets(problem, state, ...)), ...)

A step measures the current model (w, tau, perhaps the end), or judges an end on fresh images, or chooses the axis to
mitigate next. `mitigate` runs this loop over a Lab.

Which images. The images that a decision saw favour it: the tau at which a mitigation stops is too low if it is read off
the same images. So where the shared images, which all decisions see, say that a mitigation ends, the model is judged on
as many fresh ones (`experiments.images.FRESH`), which no decision saw. These give the tau, w and outcome that are
reported. If their tau is above epsilon after all, and there is something left to do, the mitigation goes on. Judging
ends alone, and not every step, is what makes it cheap.

Strategies are in `experiments.strategies`, mitigators in `experiments.mitigators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.estimation import estimate
from seesaw.experiments.mitigators import Mitigator, PromptSet
from seesaw.experiments.prompt_sets import ObservedSet, PromptSetObserver
from seesaw.experiments.sensitivity import gamma, tau
from seesaw.experiments.strategies import GREEDY, Strategy, View
from seesaw.experiments.trajectory import Alert, State, Step
from seesaw.experiments.uncertainty import Z, tau_error
from seesaw.results.tables.mitigation import TOLERANCE, Judged, Outcome, is_reached

__all__ = ["EPSILON", "MAX_STEPS", "Problem", "mitigate", "required_prompt_sets", "step"]

EPSILON = 0.35  #: the paper's threshold
#: The paper chooses at most five axes and mitigates at most five. A prompt set on all eight would have 6,912 prompts.
MAX_STEPS = 5


@dataclass(frozen=True)
class Problem:
    """One subject on one model to mitigate. `priority` weighs the chosen axes and sums to 1 (`experiments.priorities`).

    The mitigator decides how w is measured and how many images are looked at. `fresh`: an end is judged on images that
    no decision saw. `margin`: epsilon is reached at a tau of epsilon - margin or less.
    """

    model: str
    subject: str
    priority: Mapping[str, float]
    epsilon: float = EPSILON
    max_steps: int | Literal["chosen"] | None = MAX_STEPS  #: axes mitigated at most; as many as were chosen; None: all
    fresh: bool = True
    margin: float = 0.0

    @property
    def most(self) -> float:
        """How many axes are mitigated at most."""
        if self.max_steps is None:
            return math.inf
        return len(self.priority) if self.max_steps == "chosen" else self.max_steps


def required_prompt_sets(
    problem: Problem, state: State, mitigator: Mitigator, strategy: Strategy
) -> tuple[PromptSet, ...]:
    """The prompt sets that `step` needs: the current model, then the counterfactuals of each candidate axis.

    Counterfactuals are needed only if the next step chooses an axis and the strategy looks at them. After an outcome
    nothing is needed. If there is an `ending` to judge, the current model is needed in fresh images.
    """
    if state.outcome:
        return ()
    current = _current(problem, state, mitigator)
    if not state.measured or state.ending or not strategy.looks:
        return (current,)
    candidates = _candidates(problem, state, mitigator, strategy)
    return (current, *(mitigator.counterfactuals(current, axis) for axis in candidates))


def step(
    problem: Problem, state: State, observed: Sequence[ObservedSet], mitigator: Mitigator, strategy: Strategy = GREEDY
) -> State:
    """The state after `state`; `observed` is what the sets of `required_prompt_sets` show, in their order.

    Outcomes: `reached` (tau <= epsilon - margin), `exhausted` (no axis is left), `max_steps`, `no_gain` (no gamma is
    above 0), and `undefined`. The state is undefined if a cell of the current model failed or shows no person, or if a
    cell of a candidate failed, since the largest gamma is then unknown, or if every candidate shows no person. A single
    candidate that shows no person is left out, with an alert.
    """
    if state.outcome:
        return state
    if state.ending:
        return _judge(problem, state, observed[0], mitigator, strategy)
    if not state.measured:
        return _measure(problem, state, observed[0], mitigator, strategy)
    return _choose(problem, state, observed[0], observed[1:], mitigator, strategy)


async def mitigate(
    observer: PromptSetObserver,
    problem: Problem,
    strategy: Strategy = GREEDY,
    on_step: Callable[[State], None] | None = None,
    state: State | None = None,
) -> State:
    """Run one problem from `state` (None: the beginning) to its outcome; `on_step` is called with every new state.

    Any number of problems may run over the same `observer` at once; none waits for another. If `state` ended
    `undefined`, its last step is tried again. Raises what the Lab raises.
    """
    state = State() if state is None else state
    if state.outcome == "undefined":
        state = replace(state, outcome="", reason="")
    while not state.outcome:
        sets = required_prompt_sets(problem, state, observer.mitigator, strategy)
        judging = bool(state.ending)
        observed = await observer.observe(problem.model, sets, judging)
        observer.count(problem.model, sets[1:] if state.measured and not judging else sets, judging)
        state = step(problem, state, observed, observer.mitigator, strategy)
        if on_step is not None:
            on_step(state)
    return state


def _measure(problem: Problem, state: State, observed: ObservedSet, mitigator: Mitigator, strategy: Strategy) -> State:
    """Record w and tau of the current model, and whether this is the end."""
    if not observed.defined:
        return replace(state, outcome="undefined", reason=observed.why_undefined)
    state = State((*state.steps, _measured(problem, state, observed, mitigator, "shared")))
    return _ended(problem, state, _outcome(problem, state, mitigator, strategy))


def _judge(problem: Problem, state: State, observed: ObservedSet, mitigator: Mitigator, strategy: Strategy) -> State:
    """Put what fresh images show in the place of what the shared ones did, and decide whether this is the end."""
    if not observed.defined:
        return replace(state, outcome="undefined", reason=f"in fresh images: {observed.why_undefined}")
    earlier, now = state.steps[:-1], state.steps[-1]
    fresh = _measured(problem, State(earlier), observed, mitigator, "fresh")
    chosen = tuple(alert for alert in now.alerts if alert.kind in ("immovable", "undefined"))
    fresh = replace(
        fresh, gamma=now.gamma, sensitivity=now.sensitivity, w_init=now.w_init, alerts=(*fresh.alerts, *chosen)
    )
    judged = State((*earlier, fresh))
    outcome = _outcome(problem, judged, mitigator, strategy)
    return replace(judged, outcome=outcome or ("no_gain" if state.ending == "no_gain" else ""))


def _measured(problem: Problem, state: State, observed: ObservedSet, mitigator: Mitigator, judged: Judged) -> Step:
    """The model after the steps of `state`, as `observed` shows it."""
    axes, current = _axes(mitigator), _current(problem, state, mitigator)
    priority = _priority(problem, axes)
    measured = Step(
        prompts=tuple(prompt.text for prompt in current.prompts),
        images=current.images,
        w=_by_axis(axes, observed.w),
        w_error=_by_axis(axes, observed.error),
        tau=float(tau(observed.w, priority)),
        tau_error=tau_error(observed.covariance, priority),
        judged=judged,
    )
    return replace(measured, alerts=_alerts_after(state.steps[-1], measured)) if state.steps else measured


def _ended(problem: Problem, state: State, outcome: Outcome | Literal[""]) -> State:
    """`state` with the outcome; it is the `ending` as long as fresh images have yet to judge it."""
    if outcome and problem.fresh and state.steps[-1].judged == "shared":
        return replace(state, ending=outcome)
    return replace(state, outcome=outcome)


def _outcome(
    problem: Problem, state: State, mitigator: Mitigator, strategy: Strategy
) -> Literal["", "reached", "exhausted", "max_steps"]:
    """The outcome of a state that was just measured, "" if it goes on. `reached` comes before all other outcomes."""
    candidates = _candidates(problem, state, mitigator, strategy)
    at_limit = len(state.mitigated) >= problem.most
    if is_reached(state.steps[-1].tau, problem.epsilon - problem.margin) and (
        strategy.stops or not candidates or at_limit
    ):
        return "reached"
    if not candidates:
        return "exhausted"
    return "max_steps" if at_limit else ""


def _choose(
    problem: Problem,
    state: State,
    current: ObservedSet,
    observed: Sequence[ObservedSet],
    mitigator: Mitigator,
    strategy: Strategy,
) -> State:
    """Choose the axis to mitigate next, from what the counterfactuals of every candidate show."""
    axes, now = _axes(mitigator), state.steps[-1]
    priority = _priority(problem, axes)
    candidates = _candidates(problem, state, mitigator, strategy) if strategy.looks else ()
    by_candidate = dict(zip(candidates, observed, strict=True))
    undefined = [prompt_set for prompt_set in (current, *by_candidate.values()) if prompt_set.failed]
    if by_candidate and not any(prompt_set.defined for prompt_set in by_candidate.values()):
        undefined += by_candidate.values()
    if undefined:
        return replace(state, outcome="undefined", reason=undefined[0].why_undefined)
    counts = {axis: prompt_set.counts for axis, prompt_set in by_candidate.items() if prompt_set.defined}
    estimated = estimate(current.counts, counts, mitigator.settings)
    gains = dict(zip(estimated.sources, gamma(estimated.sensitivity, priority).tolist(), strict=True))
    view = View(problem.model, problem.subject, axes, problem.priority, current.w, gains, state.mitigated)
    axis = strategy.choose(view)
    rows = {source: _by_axis(axes, row) for source, row in zip(estimated.sources, estimated.sensitivity, strict=True)}
    alerts = [Alert("undefined", name) for name, prompt_set in by_candidate.items() if not prompt_set.defined]
    if strategy.looks and len(counts) == len(by_candidate):
        alerts += _immovable(problem, now, rows)
    chosen = replace(
        now,
        gamma=gains,
        sensitivity={source: tuple(row.values()) for source, row in rows.items()},
        w_init=_by_axis(axes, current.w),
        axis=axis,
        predicted=now.tau - gains[axis] if axis in gains else None,
        predicted_error=_prediction_error(now, current, by_candidate[axis], priority) if axis in gains else None,
        alerts=(*now.alerts, *alerts),
    )
    return _ended(problem, State((*state.steps[:-1], chosen)), "" if axis else "no_gain")


def _prediction_error(
    now: Step, current: ObservedSet, counterfactuals: ObservedSet, priority: NDArray[np.float64]
) -> float:
    """The standard error of tau - gamma: that of the counterfactuals' tau, since what `gamma` starts from cancels out.

    If fresh images gave tau, it does not cancel out.
    """
    error = tau_error(counterfactuals.covariance, priority)
    if now.judged == "shared":
        return error
    return float(np.hypot(error, np.hypot(now.tau_error, tau_error(current.covariance, priority))))


def _alerts_after(before: Step, now: Step) -> tuple[Alert, ...]:
    """Axes that became worse, and a prediction that missed, by more than sampling explains (1.96 standard errors)."""
    alerts = []
    for axis, w in now.w.items():
        increase, error = w - before.w[axis], float(np.hypot(now.w_error[axis], before.w_error[axis]))
        if increase > max(TOLERANCE, Z * error):
            alerts.append(Alert("worse", axis, increase, error))
    if before.predicted is not None and before.predicted_error is not None:
        excess, error = now.tau - before.predicted, float(np.hypot(now.tau_error, before.predicted_error))
        if abs(excess) > max(TOLERANCE, Z * error):
            alerts.append(Alert("missed", before.axis, excess, error))
    return tuple(alerts)


def _immovable(problem: Problem, now: Step, rows: Mapping[str, Mapping[str, float]]) -> list[Alert]:
    """Chosen axes above epsilon that no candidate improves. The alert has w and the standard error of w."""
    return [
        Alert("immovable", axis, now.w[axis], now.w_error[axis])
        for axis in problem.priority
        if now.w[axis] > problem.epsilon and all(row[axis] <= TOLERANCE for row in rows.values())
    ]


def _axes(mitigator: Mitigator) -> tuple[str, ...]:
    return tuple(axis.name for axis in mitigator.settings.dataset.axes)


def _current(problem: Problem, state: State, mitigator: Mitigator) -> PromptSet:
    """The current model: the subject's initial prompt set after the mitigations of `state`."""
    current = mitigator.initial(problem.subject)
    for axis in state.mitigated:
        current = mitigator.mitigate(current, axis)
    return current


def _candidates(problem: Problem, state: State, mitigator: Mitigator, strategy: Strategy) -> tuple[str, ...]:
    """Axes that the strategy may mitigate and that are not mitigated yet."""
    allowed = strategy.candidates(_axes(mitigator), problem.priority)
    return tuple(axis for axis in allowed if axis not in state.mitigated)


def _priority(problem: Problem, axes: Sequence[str]) -> NDArray[np.float64]:
    """The priority vector over all axes, (n,); 0 for an axis that is not chosen."""
    return np.array([problem.priority.get(axis, 0.0) for axis in axes])


def _by_axis(axes: Sequence[str], values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(axes, values.tolist(), strict=True))
