"""Many mitigations at once over one Lab, and the tables of their results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from seesaw.experiments.intermit import Problem, mitigate, required_prompt_sets
from seesaw.experiments.lab import all_of
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.strategies import Strategy
from seesaw.experiments.trajectory import State, Step
from seesaw.results.tables.mitigation import probability_reached

__all__ = ["Mitigation", "matrix_rows", "mitigate_all", "mitigation_rows"]

#: (number of axes that a prompt states, images asked for) -> images made: batches are always made whole.
Whole = Callable[[int, int], int]


@dataclass(frozen=True)
class Mitigation:
    """One problem to solve by one strategy.

    Mitigations with the same settings share an `observer`. `case` tells the problem from others of its subject.
    """

    case: str
    problem: Problem
    strategy: Strategy
    observer: PromptSetObserver

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Model, subject, case, strategy: no two mitigations have the same."""
        return self.problem.model, self.problem.subject, self.case, self.strategy.name


async def mitigate_all(
    mitigations: Sequence[Mitigation], on_step: Callable[[Mitigation, State], None] = lambda _, __: None
) -> list[State]:
    """Run all mitigations at once, each to its outcome; none waits for another. Returns their states in order.

    `on_step` is called with every new state of every mitigation. Raises what the Lab raises, after all that was in
    flight has ended.
    """

    async def one(mitigation: Mitigation) -> State:
        return await mitigate(
            mitigation.observer, mitigation.problem, mitigation.strategy, lambda state: on_step(mitigation, state)
        )

    return await all_of(map(one, mitigations))


def mitigation_rows(trajectories: Iterable[tuple[Mitigation, State]], images_made: Whole) -> pd.DataFrame:
    """mitigation.parquet (columns: `mitigation_schema`): the state after every step.

    `axis` and `gamma` of a row belong to the mitigation that led to it. If a step could not be measured, it is the last
    row: its numbers are NaN, its outcome is `undefined`, and its alerts contain the reason. `images` counts the images,
    in whole batches, that the step looks at and that no earlier step of the same case looked at.
    """
    rows: list[dict[str, Any]] = []
    for mitigation, state in trajectories:
        seen: dict[str, int] = {}
        before: Step | None = None
        steps = state.steps
        if state.outcome == "undefined" and not state.measured:
            steps = (*steps, _unmeasured(mitigation))
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            row: dict[str, Any] = dict(zip(("model", "subject", "case", "strategy"), mitigation.key, strict=True))
            row |= {"step": number, "axis": before.axis if before else "", "tau": step.tau, "tau_se": step.tau_error}
            row["gamma"] = before.gamma.get(before.axis, math.nan) if before else math.nan
            row |= {f"w_{axis}": w for axis, w in step.w.items()}
            row |= {"prompts": list(step.prompts), "outcome": state.outcome if last else ""}
            row["alerts"] = [*map(str, step.alerts), *([state.reason] if last and state.reason else [])]
            epsilon = mitigation.problem.epsilon
            row |= {"chosen": json.dumps(dict(mitigation.problem.priority)), "epsilon": epsilon}
            row |= {"judged": step.judged, "p_reached": probability_reached(step.tau, step.tau_error, epsilon)}
            rows.append(row | {"images": _unseen(mitigation, state, number, images_made, seen)})
            before = step
    return pd.DataFrame(rows)


def _unmeasured(mitigation: Mitigation) -> Step:
    """A step without any measurement."""
    undefined = {axis.name: math.nan for axis in mitigation.observer.mitigator.settings.dataset.axes}
    return Step((), (), undefined, undefined, math.nan, math.nan)


def matrix_rows(trajectories: Iterable[tuple[Mitigation, State]]) -> pd.DataFrame:
    """mitigation_matrices.parquet: the IS of every candidate axis, as each step saw it before it chose one.

    Columns: model, subject, case, strategy, step (mitigations done before), source_axis, target_axis, is, w_init,
    w_after. A candidate whose images show no person has no rows.
    """
    rows: list[tuple[object, ...]] = []
    for mitigation, state in trajectories:
        for number, step in enumerate(state.steps):
            for source, row in step.sensitivity.items():
                for (target, w), effect in zip(step.w_init.items(), row, strict=True):
                    rows.append((*mitigation.key, number, source, target, effect, w, w - effect))
    names = ["model", "subject", "case", "strategy", "step", "source_axis", "target_axis", "is", "w_init", "w_after"]
    return pd.DataFrame(rows, columns=names)


def _unseen(mitigation: Mitigation, state: State, number: int, images_made: Whole, seen: dict[str, int]) -> int:
    """The images, in whole batches, that step `number` needs and no earlier step did.

    `seen` has the images of every prompt, by its text, that earlier steps needed; those of this step are added to it.
    No earlier step needed the fresh images that judge this one.
    """
    step, last = (state.steps[number] if number < len(state.steps) else None), number == len(state.steps) - 1
    earlier = state.steps[:number]
    now = State((*earlier, replace(step, axis="")) if step else earlier)
    sets = required_prompt_sets(mitigation.problem, now, mitigation.observer.mitigator, mitigation.strategy)
    looked_at_candidates = step and (
        step.sensitivity or (last and not state.ending and state.outcome in ("no_gain", "undefined"))
    )
    unseen = 0
    if (step and step.judged == "fresh") or (last and state.ending):
        fresh = mitigation.observer.images(mitigation.problem.model, sets[0], fresh=True)
        unseen += sum(images_made(prompt.stated, n) for prompt, n in zip(sets[0].prompts, fresh, strict=True))
    for prompt_set in sets if looked_at_candidates else sets[:1]:
        looked_at = mitigation.observer.images(mitigation.problem.model, prompt_set)
        for prompt, images in zip(prompt_set.prompts, looked_at, strict=True):
            needed = images_made(prompt.stated, images)
            unseen += max(0, needed - seen.get(prompt.text, 0))
            seen[prompt.text] = max(needed, seen.get(prompt.text, 0))
    return unseen
