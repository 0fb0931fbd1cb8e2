"""InterMit (paper, algorithm 1; DESIGN section 5): which axes to mitigate, one after the other, until tau <= epsilon.

The algorithm is two pure functions. `required_prompt_sets` says which prompt sets a state must see, `step` what follows from them:

    state = State()
    while not state.outcome:
        state = step(problem, state, observe(needs(problem, state, ...)), ...)

A step either measures the current model (w, tau, perhaps an outcome) or chooses the axis to mitigate next. A state can
be written down between any two and read again. `mitigate` drives this over a Lab; strategies are in
`experiments.strategies`, mitigators in `experiments.mitigators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.mitigators import Mitigator, PromptSet
from seesaw.experiments.prompt_sets import Pooled, PromptSetObserver
from seesaw.experiments.sensitivity import gamma, intersectional_sensitivity, tau
from seesaw.experiments.strategies import GREEDY, TOLERANCE, Strategy, View
from seesaw.experiments.trajectory import Alert, State, Step

__all__ = ["EPSILON", "MAX_STEPS", "Problem", "mitigate", "required_prompt_sets", "step"]

EPSILON = 0.35  #: the paper's threshold
#: The paper chooses five axes at most and mitigates five at most. A set on all eight would have 6,912 prompts.
MAX_STEPS = 5
_Z = 1.96  #: standard errors by which an alert's value exceeds what sampling alone does 19 times in 20


@dataclass(frozen=True)
class Problem:
    """One subject on one model. `priority` weighs the chosen axes and sums to 1 (`experiments.priorities`).

    How w is measured, and how many images are looked at, is the mitigator's.
    """

    model: str
    subject: str
    priority: Mapping[str, float]
    epsilon: float = EPSILON
    max_steps: int | None = MAX_STEPS  #: axes mitigated at most; None: all


def required_prompt_sets(
    problem: Problem, state: State, mitigator: Mitigator, strategy: Strategy
) -> tuple[PromptSet, ...]:
    """The prompt sets that `step` must be given: the current model, then the counterfactuals of each candidate.

    Counterfactuals only if an axis is to be chosen and the strategy looks at them. Nothing after an outcome.
    """
    if state.outcome:
        return ()
    current = _current(problem, state, mitigator)
    if not state.measured or not strategy.looks:
        return (current,)
    left = _candidates(problem, state, mitigator, strategy)
    return (current, *(mitigator.counterfactuals(current, axis) for axis in left))


def step(
    problem: Problem, state: State, seen: Sequence[Pooled], mitigator: Mitigator, strategy: Strategy = GREEDY
) -> State:
    """The state after `state`, given what the sets of `required_prompt_sets` show, in their order.

    Outcomes: `reached` (tau <= epsilon), `exhausted` (no axis left), `max_steps`, `no_gain` (no gamma above 0), and
    `undefined`: the current model has a cell that failed or shows nobody, or a candidate's failed, so that it is not
    known which gamma is the largest. A candidate that shows nobody is left out, with an alert.
    """
    if state.outcome:
        return state
    if not state.measured:
        return _measure(problem, state, seen[0], mitigator, strategy)
    return _choose(problem, state, seen[0], seen[1:], mitigator, strategy)


async def mitigate(
    pools: PromptSetObserver,
    problem: Problem,
    strategy: Strategy = GREEDY,
    on_step: Callable[[State], None] | None = None,
    state: State | None = None,
) -> State:
    """Run one problem from `state` (None: the beginning) to its outcome; `on_step` is shown every state on the way.

    Any number may run over the same `pools` at once and none waits for another. A state that ended `undefined` is
    looked at again. Raises what the Lab raises.
    """
    state = State() if state is None else state
    if state.outcome == "undefined":
        state = replace(state, outcome="", reason="")
    while not state.outcome:
        sets = required_prompt_sets(problem, state, pools.mitigator, strategy)
        seen = await pools.observe(problem.model, sets)
        pools.count(problem.model, sets[1:] if state.measured else sets)
        state = step(problem, state, seen, pools.mitigator, strategy)
        if on_step is not None:
            on_step(state)
    return state


def _measure(problem: Problem, state: State, seen: Pooled, mitigator: Mitigator, strategy: Strategy) -> State:
    if not seen.defined:
        return replace(state, outcome="undefined", reason=_undefined(seen))
    axes, current = _axes(mitigator), _current(problem, state, mitigator)
    priority = _priority(problem, axes)
    measured = Step(
        prompts=tuple(prompt.text for prompt in current.prompts),
        images=current.images,
        w=_by_axis(axes, seen.w),
        w_error=_by_axis(axes, seen.error),
        tau=float(tau(seen.w, priority)),
        tau_error=_tau_error(seen, priority),
    )
    if state.steps:
        measured = replace(measured, alerts=_alerts_after(state.steps[-1], measured))
    state = State((*state.steps, measured))
    return replace(state, outcome=_outcome(problem, state, mitigator, strategy))


def _outcome(
    problem: Problem, state: State, mitigator: Mitigator, strategy: Strategy
) -> Literal["", "reached", "exhausted", "max_steps"]:
    """How a state that was just measured ends, "" if it goes on. tau <= epsilon comes before all else."""
    left = _candidates(problem, state, mitigator, strategy)
    full = problem.max_steps is not None and len(state.mitigated) >= problem.max_steps
    if state.steps[-1].tau <= problem.epsilon + TOLERANCE and (strategy.stops or not left or full):
        return "reached"
    if not left:
        return "exhausted"
    return "max_steps" if full else ""


def _choose(
    problem: Problem,
    state: State,
    current: Pooled,
    seen: Sequence[Pooled],
    mitigator: Mitigator,
    strategy: Strategy,
) -> State:
    axes, now = _axes(mitigator), state.steps[-1]
    priority = _priority(problem, axes)
    sets = dict(zip(_candidates(problem, state, mitigator, strategy), seen, strict=True)) if strategy.looks else {}
    failed = [each for each in (current, *sets.values()) if each.failed]
    if failed:
        return replace(state, outcome="undefined", reason=_undefined(failed[0]))
    if sets and not any(each.defined for each in sets.values()):
        return replace(state, outcome="undefined", reason=_undefined(next(iter(sets.values()))))
    before = np.array([now.w[axis] for axis in axes])
    rows = {axis: intersectional_sensitivity(before, each.w) for axis, each in sets.items() if each.defined}
    gains = {axis: float(gamma(row, priority)) for axis, row in rows.items()}
    axis = strategy.choose(View(problem.model, problem.subject, axes, problem.priority, before, gains, state.mitigated))
    alerts = [Alert("undefined", name) for name, each in sets.items() if not each.defined]
    if strategy.looks and len(rows) == len(sets):
        alerts += _immovable(problem, now, {name: _by_axis(axes, row) for name, row in rows.items()})
    chosen = replace(
        now,
        gamma=gains,
        sensitivity={name: tuple(row.tolist()) for name, row in rows.items()},
        axis=axis,
        predicted=now.tau - gains[axis] if axis in gains else None,
        predicted_error=_tau_error(sets[axis], priority) if axis in gains else None,
        alerts=(*now.alerts, *alerts),
    )
    return State((*state.steps[:-1], chosen), outcome="" if axis else "no_gain")


def _alerts_after(before: Step, now: Step) -> tuple[Alert, ...]:
    """Axes that the last mitigation made worse, and a prediction that missed, by more than sampling explains."""
    alerts = []
    for axis, w in now.w.items():
        worse, error = w - before.w[axis], float(np.hypot(now.w_error[axis], before.w_error[axis]))
        if worse > max(TOLERANCE, _Z * error):
            alerts.append(Alert("worse", axis, worse, error))
    if before.predicted is not None and before.predicted_error is not None:
        missed, error = now.tau - before.predicted, float(np.hypot(now.tau_error, before.predicted_error))
        if abs(missed) > max(TOLERANCE, _Z * error):
            alerts.append(Alert("missed", before.axis, missed, error))
    return tuple(alerts)


def _immovable(problem: Problem, now: Step, rows: Mapping[str, Mapping[str, float]]) -> list[Alert]:
    """Chosen axes above epsilon that no candidate improves; `error` is that of w itself."""
    return [
        Alert("immovable", axis, now.w[axis], now.w_error[axis])
        for axis in problem.priority
        if now.w[axis] > problem.epsilon and all(row[axis] <= TOLERANCE for row in rows.values())
    ]


def _undefined(seen: Pooled) -> str:
    if seen.failed:
        return f"{len(seen.failed)} prompts failed, the first: {seen.failed[0]}"
    return f"no image shows a person: {seen.empty[0]}"


def _axes(mitigator: Mitigator) -> tuple[str, ...]:
    return tuple(axis.name for axis in mitigator.settings.dataset.axes)


def _current(problem: Problem, state: State, mitigator: Mitigator) -> PromptSet:
    current = mitigator.initial(problem.subject)
    for axis in state.mitigated:
        current = mitigator.mitigate(current, axis)
    return current


def _candidates(problem: Problem, state: State, mitigator: Mitigator, strategy: Strategy) -> tuple[str, ...]:
    """Axes that are not mitigated yet, of those that the strategy would."""
    axes, mitigated = strategy.candidates(_axes(mitigator), problem.priority), state.mitigated
    return tuple(axis for axis in axes if axis not in mitigated)


def _priority(problem: Problem, axes: Sequence[str]) -> NDArray[np.float64]:
    """The priority vector over all axes, (n,), 0 where one is not chosen."""
    return np.array([problem.priority.get(axis, 0.0) for axis in axes])


def _tau_error(seen: Pooled, priority: NDArray[np.float64]) -> float:
    """Standard error of tau, the errors of its axes taken as independent."""
    return float(np.sqrt(((priority * seen.error) ** 2).sum()))


def _by_axis(axes: Sequence[str], values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(axes, values.tolist(), strict=True))
