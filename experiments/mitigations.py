"""Many mitigations at once over one Lab, and the tables that they make."""

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

__all__ = ["Mitigation", "matrix_rows", "mitigate_all", "mitigation_rows"]

#: (axes that a prompt states, images asked for) -> images made, for batches are whole.
Whole = Callable[[int, int], int]


@dataclass(frozen=True)
class Mitigation:
    """One problem by one strategy, over the pools of its settings; `case` names it beside others of its subject."""

    case: str
    problem: Problem
    strategy: Strategy
    observer: PromptSetObserver

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.problem.model, self.problem.subject, self.case, self.strategy.name


async def mitigate_all(
    mitigations: Sequence[Mitigation], on_step: Callable[[Mitigation, State], None] = lambda _, __: None
) -> list[State]:
    """Bring all of `mitigations` to their outcomes, in their order; none waits for another.

    `on_step` is shown every state on the way. Raises what the Lab raises, after all that was in flight has ended.
    """

    async def one(each: Mitigation) -> State:
        return await mitigate(each.observer, each.problem, each.strategy, lambda state: on_step(each, state))

    return await all_of(map(one, mitigations))


def mitigation_rows(trajectories: Iterable[tuple[Mitigation, State]], whole: Whole) -> pd.DataFrame:
    """mitigation.parquet (`results.tables.mitigation.mitigation_schema`): the state after every step.

    `axis` and `gamma` of a row are those of the mitigation that led to it. A step that could not be measured is the
    last, its numbers NaN, its outcome `undefined` and the reason among its alerts. `images` counts, in `whole` batches,
    what the step looks at and no earlier step of the same case did.
    """
    rows: list[dict[str, Any]] = []
    for each, state in trajectories:
        seen: dict[str, int] = {}
        before: Step | None = None
        steps = (
            (*state.steps, _unmeasured(each)) if state.outcome == "undefined" and not state.measured else state.steps
        )
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            row: dict[str, Any] = dict(zip(("model", "subject", "case", "strategy"), each.key, strict=True))
            row |= {"step": number, "axis": before.axis if before else "", "tau": step.tau, "tau_se": step.tau_error}
            row["gamma"] = before.gamma.get(before.axis, math.nan) if before else math.nan
            row |= {f"w_{axis}": w for axis, w in step.w.items()}
            row |= {"prompts": list(step.prompts), "outcome": state.outcome if last else ""}
            row["alerts"] = [*map(str, step.alerts), *([state.reason] if last and state.reason else [])]
            row |= {"chosen": json.dumps(dict(each.problem.priority)), "epsilon": each.problem.epsilon}
            rows.append(row | {"images": _unseen(each, state, number, whole, seen)})
            before = step
    return pd.DataFrame(rows)


def _unmeasured(each: Mitigation) -> Step:
    nothing = {axis.name: math.nan for axis in each.observer.mitigator.settings.dataset.axes}
    return Step((), (), nothing, nothing, math.nan, math.nan)


def matrix_rows(trajectories: Iterable[tuple[Mitigation, State]]) -> pd.DataFrame:
    """mitigation_matrices.parquet: what every step saw of the axes that it could mitigate next.

    Columns: model, subject, case, strategy, step (mitigations done), source_axis, target_axis, is, w_init, w_after.
    A candidate that shows nobody has no row.
    """
    rows: list[tuple[object, ...]] = []
    for each, state in trajectories:
        for number, step in enumerate(state.steps):
            for source, row in step.sensitivity.items():
                for (target, w), effect in zip(step.w.items(), row, strict=True):
                    rows.append((*each.key, number, source, target, effect, w, w - effect))
    names = ["model", "subject", "case", "strategy", "step", "source_axis", "target_axis", "is", "w_init", "w_after"]
    return pd.DataFrame(rows, columns=names)


def _unseen(each: Mitigation, state: State, number: int, whole: Whole, seen: dict[str, int]) -> int:
    """Images, in whole batches, that step `number` needs beyond those `seen` of every prompt, which it adds to."""
    step = state.steps[number] if number < len(state.steps) else None
    earlier = state.steps[:number]
    now = State((*earlier, replace(step, axis="")) if step else earlier)
    sets = required_prompt_sets(each.problem, now, each.observer.mitigator, each.strategy)
    looked = step and (
        step.sensitivity or (number == len(state.steps) - 1 and state.outcome in ("no_gain", "undefined"))
    )
    new = 0
    for prompts in sets if looked else sets[:1]:
        looked_at = each.observer.images(each.problem.model, prompts)
        for prompt, images in zip(prompts.prompts, looked_at, strict=True):
            made = whole(prompt.stated, images)
            new += max(0, made - seen.get(prompt.text, 0))
            seen[prompt.text] = max(made, seen.get(prompt.text, 0))
    return new
