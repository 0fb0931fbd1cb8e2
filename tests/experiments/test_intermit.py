"""InterMit against the truth: exact probabilities of whole worlds, and a brute force that never sees a prompt."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from seesaw.actors.pictogram.codes import AXES, SHAPE, read_prompt
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.images import Images
from seesaw.experiments.intermit import Problem, mitigate, required_prompt_sets, step
from seesaw.experiments.lab import Observations
from seesaw.experiments.mitigators import PM, PromptSet
from seesaw.experiments.priorities import draw_priority
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.settings import make_settings
from seesaw.experiments.strategies import ALL, GREEDY, OWN, random_order
from seesaw.experiments.trajectory import State

DATASET = load_dataset("occupation")
SETTINGS = make_settings(DATASET, intervention="target")
NAMES = tuple(AXES)
EDGES = np.cumsum([0, *SHAPE])
VECTORS = 200


def world_of(subject: str) -> str:
    """The subjects are dealt out to the five worlds."""
    return tuple(WORLDS)[DATASET.subjects.index(subject) % len(WORLDS)]


# --- brute force: w of every set of mitigated axes, from a world's joint distribution -------------------------------


@cache
def brute(model: str, subject: str) -> np.ndarray:
    """Shares of all attributes, (256, 26), for each set of mitigated axes as a bit mask; uniform targets.

    Stating every combination of the axes H equally often, a world heeds G of H with the compliances' probability, and
    then weighs p(x) by 1 / (p(x_G) x the number of combinations of G).
    """
    p, compliance = WORLDS[model].joint(subject), np.array([WORLDS[model].compliance[axis] for axis in NAMES])
    heeded = np.empty((256, sum(SHAPE)))
    for mask in range(256):
        given = [i for i in range(8) if mask >> i & 1]
        others = tuple(i for i in range(8) if i not in given)
        even = p / p.sum(axis=others, keepdims=True) / np.prod([SHAPE[i] for i in given])
        heeded[mask] = np.concatenate([even.sum(axis=tuple(i for i in range(8) if i != a)) for a in range(8)])
    for i, c in enumerate(compliance):  # in place: what is stated of axis i is heeded, or it is ignored
        stated = np.array([mask for mask in range(256) if mask >> i & 1])
        heeded[stated] = c * heeded[stated] + (1 - c) * heeded[stated ^ (1 << i)]
    return heeded


@cache
def brute_w(model: str, subject: str) -> np.ndarray:
    """w (256, 8): sum |p - 1/k| / 2, over (k - 1)/k."""
    shares = brute(model, subject)
    return np.stack(
        [np.abs(shares[:, EDGES[i] : EDGES[i + 1]] - 1 / k).sum(1) / 2 / ((k - 1) / k) for i, k in enumerate(SHAPE)],
        axis=1,
    )


def mask_of(axes) -> int:
    return sum(1 << NAMES.index(axis) for axis in axes)


def brute_tau(problem: Problem, axes) -> float:
    w = brute_w(problem.model, problem.subject)[mask_of(axes)]
    return sum(weight * w[NAMES.index(axis)] for axis, weight in problem.priority.items())


def brute_gains(problem: Problem, axes) -> dict[str, float]:
    now = brute_tau(problem, axes)
    return {axis: now - brute_tau(problem, [*axes, axis]) for axis in NAMES if axis not in axes}


@pytest.mark.parametrize("axes", [(), ("age",), ("gender", "environment"), ("clothing", "emotion", "gender")])
def test_the_brute_force_is_the_mean_over_prompts(axes):
    combinations = itertools.product(*(AXES[axis] for axis in axes))
    joints = [WORLDS["cedar"].conditional("chef", dict(zip(axes, values, strict=True))) for values in combinations]
    mean = np.mean(joints, axis=0)
    shares = np.concatenate([mean.sum(axis=tuple(i for i in range(8) if i != a)) for a in range(8)])
    assert brute("cedar", "chef")[mask_of(axes)] == pytest.approx(shares, abs=1e-12)


# --- two Labs over the same truth ------------------------------------------------------------------------------------


class Tables:
    """A world's `shares`, from tables: 30 times as fast, prompt by prompt, as summing a joint distribution."""

    def __init__(self, model: str) -> None:
        self._world = WORLDS[model]
        self._given, self._stated = cache(self._given_), cache(self._stated_)

    def _given_(self, subject: str, axes: tuple[int, ...]) -> np.ndarray:
        """Shares of all attributes given the values of `axes`, (k of each, 26)."""
        parts = []
        for a in range(8):
            keep = sorted({*axes, a})
            table = self._world.joint(subject).sum(axis=tuple(i for i in range(8) if i not in keep))
            if a in axes:
                own = np.eye(SHAPE[a]).reshape([*(SHAPE[a] if i == a else 1 for i in keep), SHAPE[a]])
                parts.append(table[..., None] * own)
            else:
                parts.append(np.moveaxis(table, keep.index(a), -1))
        return np.concatenate([part / part.sum(-1, keepdims=True) if not axes else part for part in parts], -1) / (
            1 if not axes else parts[axes[0]].sum(-1, keepdims=True)
        )

    def _stated_(self, subject: str, axes: tuple[int, ...]) -> np.ndarray:
        total = np.zeros(1)
        for heeded in itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(len(axes) + 1)):
            c = [self._world.compliance[NAMES[a]] for a in axes]
            chance = np.prod([c_a if a in heeded else 1 - c_a for a, c_a in zip(axes, c, strict=True)])
            shape = [SHAPE[a] if a in heeded else 1 for a in axes]
            total = total + chance * self._given(subject, heeded).reshape([*shape, -1])
        return total

    def shares(self, text: str) -> dict[str, np.ndarray]:
        subject, stated = read_prompt(text)
        axes = tuple(i for i, name in enumerate(NAMES) if name in stated)
        where = tuple(AXES[NAMES[a]].index(stated[NAMES[a]]) for a in axes)
        row = self._stated(subject, axes)[where]
        return {name: row[EDGES[i] : EDGES[i + 1]] for i, name in enumerate(NAMES)}


LAB = ExactLab(DATASET, {model: Tables(model).shares for model in WORLDS})


class Adapters:
    """A mitigator that changes the model and not the words: one prompt, and an adapter that names the axes."""

    def __init__(self) -> None:
        self.settings, self.images, self._made = SETTINGS, Images(48, 48), {}

    def _set(self, subject: str, mitigated, stated) -> PromptSet:
        key = subject, tuple(mitigated), frozenset(stated)
        if key not in self._made:
            adapter = "+".join(name for name in NAMES if name in stated)
            prompts = (Prompt(f"A photo of a {subject}", subject, adapter=adapter),)
            self._made[key] = PromptSet(subject, tuple(mitigated), prompts, np.ones(1), (48,))
        return self._made[key]

    def initial(self, subject: str) -> PromptSet:
        return self._set(subject, (), ())

    def counterfactuals(self, current: PromptSet, axis: str) -> PromptSet:
        return self._set(current.subject, current.mitigated, (*current.mitigated, axis))

    def mitigate(self, current: PromptSet, axis: str) -> PromptSet:
        assert axis not in current.mitigated
        axes = tuple(name for name in NAMES if name in (*current.mitigated, axis))
        return self._set(current.subject, axes, axes)


class AdapterLab:
    """Answers for `Adapters` from the brute force, so that mitigations run to the last of 8 axes in no time."""

    async def observe(self, model, prompts, images, start=0):
        return [self._cell(model, prompt, images) for prompt in prompts]

    def _cell(self, model, prompt, images):
        row = images * brute(model, prompt.subject)[mask_of(filter(None, prompt.adapter.split("+")))]
        counts = {name: row[EDGES[i] : EDGES[i + 1]] for i, name in enumerate(NAMES)}
        return Observations(prompt, counts, asked=images, dropped=0)


def test_the_tables_are_the_worlds():
    texts = [p.text for axes in (("age",), ("gender", "emotion"), ("clothing", "bodytype", "disability"))
             for p in product_of("farmer", axes).prompts]  # fmt: skip
    for model in ("alder", "elm"):
        tables = Tables(model)
        for text in ["A photo of a farmer", *texts]:
            for axis, shares in WORLDS[model].shares(text).items():
                assert tables.shares(text)[axis] == pytest.approx(shares, abs=1e-12), text


def product_of(subject: str, axes) -> PromptSet:
    mitigator = PM(SETTINGS, 48)
    current = mitigator.initial(subject)
    for axis in axes:
        current = mitigator.mitigate(current, axis)
    return current


def problems(vectors: int = VECTORS, **how) -> list[Problem]:
    return [
        Problem(world_of(subject), subject, draw_priority(DATASET, subject, seed), **how)
        for subject in DATASET.subjects
        for seed in range(vectors)
    ]


def solve(observer: PromptSetObserver, given, strategy=GREEDY, **how) -> list[State]:
    async def all_of_them():
        return await asyncio.gather(*(mitigate(observer, problem, strategy, **how) for problem in given))

    return asyncio.run(all_of_them())


def one(problem: Problem, strategy=GREEDY, **how) -> State:
    return solve(PromptSetObserver(AdapterLab(), Adapters()), [problem], strategy, **how)[0]


def check_trajectory(problem: Problem, state: State) -> None:
    """Every number and every choice of a greedy trajectory is the brute force's."""
    assert len(set(state.mitigated)) == len(state.mitigated)
    for t, at in enumerate(state.steps):
        before = state.mitigated[:t]
        assert abs(at.tau - brute_tau(problem, before)) < 1e-12
        assert (at.tau <= problem.epsilon) == (state.outcome == "reached" and t == len(state.steps) - 1)
        assert at.tau_error == 0
        if at.gamma:
            gains = brute_gains(problem, before)
            assert at.gamma.keys() == gains.keys()
            assert max(abs(at.gamma[axis] - gain) for axis, gain in gains.items()) < 1e-12
            best = max(gains, key=gains.__getitem__)
            assert at.axis == (best if gains[best] > 1e-9 else "")
            if at.axis:
                assert abs(at.predicted - state.steps[t + 1].tau) < 1e-12
                assert at.predicted_error == 0


@pytest.fixture(scope="module")
def to_the_end() -> list[tuple[Problem, State]]:
    """26 occupations x 200 random priorities with no limit of steps, by a mitigator with adapters."""
    given = problems(max_steps=None)
    return list(zip(given, solve(PromptSetObserver(AdapterLab(), Adapters()), given), strict=True))


@pytest.mark.slow  # 5,200 mitigations
def test_pm_takes_the_axis_of_largest_gain_and_tau_is_exact_for_26_occupations_and_200_priorities():
    given = problems(max_steps=3)
    states = solve(PromptSetObserver(LAB, PM(SETTINGS, 48)), given)
    assert len(states) == 26 * VECTORS
    for problem, state in zip(given, states, strict=True):
        check_trajectory(problem, state)
    assert Counter(len(state.mitigated) for state in states).keys() == {0, 1, 2, 3}


def test_to_the_last_axis_every_choice_is_the_brute_forces(to_the_end):
    for problem, state in to_the_end:
        check_trajectory(problem, state)


def test_all_outcomes_occur_and_are_right(to_the_end):
    for problem, state in to_the_end:
        last = state.steps[-1]
        assert (state.outcome == "reached") == (last.tau <= problem.epsilon)
        if state.outcome == "no_gain":
            assert max(brute_gains(problem, state.mitigated).values()) <= 1e-9
            assert last.gamma.keys() == set(NAMES) - set(state.mitigated)
        if state.outcome == "exhausted":
            assert set(state.mitigated) == set(NAMES)
    assert {state.outcome for _, state in to_the_end} == {"reached", "no_gain", "exhausted"}


def test_max_steps_cuts_the_same_trajectory_short(to_the_end):
    pairs = [(problem, state) for problem, state in to_the_end if len(state.mitigated) > 2][:50]
    cut = solve(PromptSetObserver(AdapterLab(), Adapters()), [replace(problem, max_steps=2) for problem, _ in pairs])
    for (_, whole), short in zip(pairs, cut, strict=True):
        assert (short.outcome, short.mitigated) == ("max_steps", whole.mitigated[:2])
    assert one(replace(pairs[0][0], max_steps=0)).outcome == "max_steps"


def test_axes_outside_the_chosen_ones_are_mitigated_too(to_the_end):
    outside = [axis not in problem.priority for problem, state in to_the_end for axis in state.mitigated]
    assert 0.1 < np.mean(outside) < 0.9


def test_alerts_name_what_became_worse_and_what_nothing_moves(to_the_end):
    seen = Counter()
    for problem, state in to_the_end:
        w = brute_w(problem.model, problem.subject)
        for t, at in enumerate(state.steps):
            now = w[mask_of(state.mitigated[:t])]
            worse = {a.axis: a.value for a in at.alerts if a.kind == "worse"}
            rose = now - w[mask_of(state.mitigated[: t - 1])] if t else np.zeros(8)
            assert worse == pytest.approx({NAMES[i]: rose[i] for i in range(8) if rose[i] > 1e-9})
            if at.gamma:
                after = [w[mask_of([*state.mitigated[:t], axis])] for axis in at.gamma]
                stuck = {
                    axis for axis in problem.priority
                    if now[(i := NAMES.index(axis))] > problem.epsilon and min(row[i] for row in after) >= now[i] - 1e-9
                }  # fmt: skip
                assert {a.axis for a in at.alerts if a.kind == "immovable"} == stuck
            seen.update(a.kind for a in at.alerts)
    assert seen["worse"] > 100
    assert seen["immovable"] > 10
    assert seen["missed"] == 0  # counterfactuals of exact probabilities foretell exactly


def test_a_prediction_that_missed_is_an_alert():
    class Weak(Adapters):
        """Mitigating age does nothing, whatever its counterfactuals foretold."""

        def mitigate(self, current, axis):
            after = super().mitigate(current, axis)
            stated = [name for name in after.mitigated if name != "age"]
            return self._set(after.subject, after.mitigated, stated)

    problem = Problem("alder", "computer programmer", {"age": 1.0}, max_steps=1)
    (state,) = solve(PromptSetObserver(AdapterLab(), Weak()), [problem])
    assert state.mitigated == ("age",)
    (alert,) = [a for a in state.steps[1].alerts if a.kind == "missed"]
    assert (alert.axis, alert.value) == ("age", pytest.approx(state.steps[0].gamma["age"]))
    assert str(alert).startswith(f"tau is {alert.value:.3f} above its prediction for mitigating age")


def test_a_mitigation_resumed_from_any_state_goes_the_same_way(to_the_end):
    observer = PromptSetObserver(AdapterLab(), Adapters())
    for problem, state in to_the_end[::40]:
        states = [State()]
        assert solve(observer, [problem], on_step=states.append)[0] == state
        judged = sum(step.judged == "fresh" for step in state.steps)
        assert len(states) == 1 + len(state.steps) + len(state.mitigated) + (state.outcome == "no_gain") + judged
        for earlier in states:
            assert solve(observer, [problem], state=earlier)[0] == state


def test_a_tie_goes_to_the_first_axis_of_the_dataset():
    """In this model an intervention on an axis evens out that axis and no other, and three axes are alike."""

    class Independent:
        async def observe(self, model, prompts, images, start=0):
            return [self._cell(p, images) for p in prompts]

        def _cell(self, prompt, images):
            _, stated = read_prompt(prompt.text)
            first = {axis.name: stated.get(axis.name, axis.attributes[0]) for axis in DATASET.axes}
            counts = {
                a.name: images * np.array([float(v == first[a.name]) for v in a.attributes]) for a in DATASET.axes
            }
            return Observations(prompt, counts, asked=images, dropped=0)

    problem = Problem("m", "nurse", {"clothing": 0.25, "environment": 0.25, "gender": 0.25, "age": 0.25}, epsilon=0.1)
    (state,) = solve(PromptSetObserver(Independent(), PM(SETTINGS, 48)), [problem])
    assert state.mitigated == ("gender", "age", "environment", "clothing")
    assert [at.tau for at in state.steps] == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_tau_at_epsilon_is_reached_and_needs_no_step():
    problem = Problem("alder", "nurse", {"gender": 1.0})
    at_epsilon = replace(problem, epsilon=brute_tau(problem, ()))
    state = one(at_epsilon)
    assert (state.outcome, state.mitigated, len(state.steps)) == ("reached", (), 1)
    assert required_prompt_sets(at_epsilon, state, Adapters(), GREEDY) == ()
    assert step(at_epsilon, state, (), Adapters()) == state


def test_a_target_of_ones_own_weighs_prompts_and_distances():
    settings = make_settings(DATASET, targets={"gender": [0.25, 0.75]}, intervention="target")
    problem = Problem("alder", "chef", {"gender": 0.5, "age": 0.5}, epsilon=0.0, max_steps=1)
    (state,) = solve(PromptSetObserver(LAB, PM(settings, 48)), [problem], OWN)
    (axis,) = state.mitigated
    weights = [0.25, 0.75] if axis == "gender" else [1 / 3] * 3
    shares = [WORLDS["alder"].shares(text) for text in state.steps[1].prompts]
    gender, age = (np.average([row[name] for row in shares], axis=0, weights=weights) for name in ("gender", "age"))
    w_gender, w_age = np.abs(gender - [0.25, 0.75]).sum() / 2 / 0.5, np.abs(age - 1 / 3).sum() / 2 / (2 / 3)
    assert state.steps[1].tau == pytest.approx((w_gender + w_age) / 2, abs=1e-12)
    assert state.steps[1].w["gender"] == pytest.approx(w_gender, abs=1e-12)


# --- strategies ------------------------------------------------------------------------------------------------------


def test_all_goes_on_to_the_last_chosen_axis():
    given = problems(20)
    for problem, state in zip(given, solve(PromptSetObserver(AdapterLab(), Adapters()), given, ALL), strict=True):
        assert state.mitigated == tuple(problem.priority)
        assert state.outcome == ("reached" if state.steps[-1].tau <= problem.epsilon else "exhausted")
        taus = [brute_tau(problem, state.mitigated[:t]) for t in range(len(state.steps))]
        assert [at.tau for at in state.steps] == pytest.approx(taus, abs=1e-12)


@pytest.mark.parametrize("strategy", [OWN, random_order(3)], ids=lambda strategy: strategy.name)
def test_baselines_mitigate_chosen_axes_alone_and_stop_at_epsilon(strategy):
    given = problems(20)
    states = solve(PromptSetObserver(AdapterLab(), Adapters()), given, strategy)
    for problem, state in zip(given, states, strict=True):
        assert set(state.mitigated) <= set(problem.priority)
        assert all(at.tau > problem.epsilon for at in state.steps[:-1])
        assert state.outcome == ("reached" if state.steps[-1].tau <= problem.epsilon else "exhausted")
        if strategy is OWN:
            for t, axis in enumerate(state.mitigated):
                w = brute_w(problem.model, problem.subject)[mask_of(state.mitigated[:t])]
                left = [name for name in problem.priority if name not in state.mitigated[:t]]
                assert axis == max(left, key=lambda name: w[NAMES.index(name)] * problem.priority[name])
    assert states == solve(PromptSetObserver(AdapterLab(), Adapters()), given, strategy)


def test_own_weighs_an_axis_by_its_priority():
    problem = Problem("alder", "computer programmer", {"environment": 0.2, "age": 0.8})
    w = brute_w(problem.model, problem.subject)[0]
    assert w[NAMES.index("environment")] > w[NAMES.index("age")]
    assert one(problem, OWN).mitigated[0] == "age"


def test_random_orders_differ_by_seed_and_subject():
    priority = dict.fromkeys(NAMES[:5], 0.2)
    orders = {one(Problem("elm", subject, priority, 0.0), random_order(seed)).mitigated
              for subject in ("nurse", "chef") for seed in range(20)}  # fmt: skip
    assert len(orders) > 25


def test_interplay_pays_greedy_reaches_epsilon_wherever_all_does_with_fewer_steps_than_any_baseline():
    given = problems(20)
    observer = PromptSetObserver(AdapterLab(), Adapters())
    trajectories = {s.name: solve(observer, given, s) for s in (GREEDY, ALL, OWN, random_order(0))}
    where = [i for i, state in enumerate(trajectories["all"]) if state.outcome == "reached"]
    assert all(trajectories["greedy"][i].outcome == "reached" for i in where)
    steps = {name: np.mean([len(states[i].mitigated) for i in where]) for name, states in trajectories.items()}
    assert steps["greedy"] < 0.93 * min(steps["all"], steps["own"], steps["random"])
