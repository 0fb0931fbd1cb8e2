"""Where a mitigation ends it is judged on fresh images, which no decision saw; what is reported is theirs."""

import asyncio
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from seesaw.actors.pictogram.codes import AXES, SHAPE, read_prompt
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.images import FRESH
from seesaw.experiments.intermit import Problem, mitigate
from seesaw.experiments.lab import Answers, Observations
from seesaw.experiments.mitigations import Mitigation, matrix_rows, mitigation_rows
from seesaw.experiments.mitigators import PM
from seesaw.experiments.priorities import draw_priority
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.settings import make_settings
from seesaw.experiments.strategies import ALL, GREEDY
from seesaw.experiments.trajectory import State
from seesaw.results.tables.mitigation import probability_reached
from seesaw.results.tables.mitigation_matrices import matrices_of
from seesaw.results.tables.read_mitigation import cases_of
from seesaw.results.tables.schemas import MITIGATION_MATRICES, mitigation_schema
from seesaw.results.tables.write import table_of

DATASET = load_dataset("occupation").select(axes=["gender", "age", "clothing", "environment"])
SETTINGS = make_settings(DATASET, intervention="target")
EXACT = ExactLab(DATASET, {name: world.shares for name, world in WORLDS.items()})


@cache
def cumulative(model: str, text: str):
    return np.cumsum(WORLDS[model].conditional(*read_prompt(text)).ravel())


class Drawn:
    """A Lab over images drawn from a world's joint distribution; `root` decides the draw. It notes what it is asked."""

    def __init__(self, root: int = 0) -> None:
        self.root = root
        self.asked: list[tuple[str, int]] = []  #: text, number of the first image

    async def observe(self, model, prompts, images, start=0):
        self.asked += [(prompt.text, start) for prompt in prompts]
        return [self._cell(model, prompt, images, start) for prompt in prompts]

    def _cell(self, model, prompt, images, start):
        rng = np.random.default_rng([self.root, start, zlib.crc32(f"{model}/{prompt.text}".encode())])
        states = cumulative(model, prompt.text)
        state = np.searchsorted(states, rng.random(images) * states[-1]).clip(max=states.size - 1)
        drawn = dict(zip(AXES, np.unravel_index(state, SHAPE), strict=True))
        values = {
            axis.name: np.array([axis.attributes.index(AXES[axis.name][i]) for i in drawn[axis.name]])
            for axis in DATASET.axes
        }
        counts = {a.name: np.bincount(values[a.name], minlength=len(a.attributes)).astype(float) for a in DATASET.axes}
        index, known = np.arange(start, start + images), np.ones(images)
        answers = Answers(index, index, ("",) * images, known > 0, known, values, dict.fromkeys(values, known))
        return Observations(prompt, counts, asked=images, dropped=0, answers=answers)


class Told:
    """A Lab in which `gender` is as male as it is told, by whether images are fresh; an intervention evens it out."""

    def __init__(self, shared: float, fresh: float, after: float = 0.5) -> None:
        self.male, self.after = {0: shared, FRESH: fresh}, after

    async def observe(self, model, prompts, images, start=0):
        return [self._cell(prompt, images, start) for prompt in prompts]

    def _cell(self, prompt, images, start):
        counts = {axis.name: np.full(len(axis.attributes), images / len(axis.attributes)) for axis in DATASET.axes}
        male = self.after if prompt.stated else self.male[start]
        counts["gender"] = images * np.array([male, 1 - male])
        return Observations(prompt, counts, asked=images, dropped=0)


def solved(lab, problem: Problem, strategy=GREEDY, images: int | dict = 48, **how) -> State:
    return asyncio.run(mitigate(PromptSetObserver(lab, PM(SETTINGS, images)), problem, strategy, **how))


GENDER = Problem("told", "nurse", {"gender": 1.0}, epsilon=0.35)  # w of gender is |2 male - 1|


def test_what_is_reported_is_what_fresh_images_show():
    state = solved(Told(shared=0.6, fresh=0.64), GENDER)
    (step,) = state.steps
    assert (state.outcome, step.judged, step.tau) == ("reached", "fresh", pytest.approx(0.28))
    assert step.w["gender"] == pytest.approx(0.28)
    shared = solved(Told(shared=0.6, fresh=0.64), replace(GENDER, fresh=False))
    assert (shared.outcome, shared.steps[0].judged, shared.steps[0].tau) == ("reached", "shared", pytest.approx(0.2))


def test_it_goes_on_where_fresh_images_are_above_epsilon_after_all_and_chooses_by_the_shared_ones():
    state = solved(Told(shared=0.6, fresh=0.9), GENDER)
    first, second = state.steps
    assert (state.outcome, state.mitigated) == ("reached", ("gender",))
    assert (first.judged, first.tau) == ("fresh", pytest.approx(0.8))
    assert first.w_init["gender"] == pytest.approx(0.2)
    assert first.gamma["gender"] == pytest.approx(0.2)
    assert first.predicted == pytest.approx(0.6)
    assert (second.judged, second.tau) == ("fresh", pytest.approx(0.0))


@pytest.mark.parametrize(
    ("shared", "fresh", "after", "how", "outcome"),
    [
        (0.9, 0.9, 0.9, {}, "no_gain"),
        (0.9, 0.6, 0.9, {}, "reached"),  # nothing gains, and nothing has to
        (0.9, 0.9, 0.75, {"max_steps": 1}, "max_steps"),
        (0.9, 0.9, 0.6, {"max_steps": 1}, "reached"),
        (0.6, 0.9, 0.5, {"max_steps": 0}, "max_steps"),
    ],
)
def test_every_end_is_judged(shared, fresh, after, how, outcome):
    state = solved(Told(shared, fresh, after), replace(GENDER, **how))
    assert state.outcome == outcome
    assert [step.judged for step in state.steps] == ["shared"] * (len(state.steps) - 1) + ["fresh"]
    assert state.ending == ""


def test_a_strategy_that_goes_to_the_last_axis_is_judged_once_at_the_end():
    state = solved(Told(0.6, 0.6), replace(GENDER, priority={"gender": 0.5, "age": 0.5}), ALL)
    assert [step.judged for step in state.steps] == ["shared", "shared", "fresh"]


def test_a_margin_stops_later():
    told = Told(shared=0.65, fresh=0.66, after=0.5)  # tau 0.30 and 0.32
    assert solved(told, GENDER).mitigated == ()
    later = solved(told, replace(GENDER, margin=0.1))
    assert (later.outcome, later.mitigated) == ("reached", ("gender",))
    stuck = solved(Told(0.65, 0.66, 0.66), replace(GENDER, margin=0.1))
    assert stuck.outcome == "no_gain"  # below epsilon, but not by the margin
    assert stuck.steps[-1].tau < GENDER.epsilon


def test_chosen_allows_as_many_steps_as_axes_were_chosen():
    courses = {
        limit: [solved(EXACT, replace(problem, epsilon=0.0, max_steps=limit)) for problem in problems()[:26]]
        for limit in ("chosen", None)
    }
    for problem, cut, free in zip(problems(), courses["chosen"], courses[None], strict=False):
        assert cut.mitigated == free.mitigated[: len(problem.priority)]
        assert (cut.outcome == "max_steps") == (len(cut.mitigated) == len(problem.priority) < len(DATASET.axes))
    assert any(len(free.mitigated) > len(cut.mitigated) for cut, free in zip(*courses.values(), strict=True))


def problems(epsilon: float = 0.35) -> list[Problem]:
    few = [axis.name for axis in DATASET.axes]
    drawn = []
    for model in ("alder", "cedar", "elm"):
        for subject in DATASET.subjects:
            priority = draw_priority(DATASET, subject, zlib.crc32(model.encode()))
            assert set(priority) <= set(few)
            drawn.append(Problem(model, subject, priority, epsilon))
    return drawn


@pytest.fixture(scope="module")
def ends() -> list[tuple[Problem, State, State]]:
    """Problems with how they end where ends are judged on fresh images, and where they are not."""
    observer = PromptSetObserver(Drawn(3), PM(SETTINGS, 48))

    async def both(problem: Problem) -> tuple[State, State]:
        return await mitigate(observer, problem), await mitigate(observer, replace(problem, fresh=False))

    return [(problem, *asyncio.run(both(problem))) for problem in problems()]


def test_no_choice_depends_on_fresh_images(ends):
    """Judged or not, the steps are the same as far as both go; judging only makes some go on."""
    for _, judged, not_judged in ends:
        assert judged.mitigated[: len(not_judged.mitigated)] == not_judged.mitigated
        for one, other in zip(judged.steps, not_judged.steps[:-1], strict=False):
            assert (one.axis, one.gamma, one.sensitivity) == (other.axis, other.gamma, other.sensitivity)
    assert sum(judged.mitigated != plain.mitigated for _, judged, plain in ends) > 3


def exact_tau(problem: Problem, state: State) -> float:
    """tau of the last model of `state` under the exact probabilities."""
    course = list(state.mitigated)

    class Again:
        name, looks, stops = "again", False, False

        def candidates(self, axes, priority):
            return tuple(course)

        def choose(self, view):
            return course[len(view.mitigated)]

    return solved(EXACT, replace(problem, max_steps=None, fresh=False), Again()).steps[-1].tau


def test_the_tau_reported_leans_by_less_than_a_hundredth_and_shared_images_by_more(ends):
    fresh = np.mean([judged.steps[-1].tau - exact_tau(problem, judged) for problem, judged, _ in ends])
    shared = np.mean([plain.steps[-1].tau - exact_tau(problem, plain) for problem, _, plain in ends])
    assert abs(fresh) < 0.01
    assert shared < -0.02


def test_epsilon_is_reached_in_truth_more_often_where_it_is_judged(ends):
    wrong = {
        name: np.mean([exact_tau(problem, state) > problem.epsilon for problem, state in states])
        for name, states in {
            "fresh": [(problem, judged) for problem, judged, _ in ends if judged.outcome == "reached"],
            "shared": [(problem, plain) for problem, _, plain in ends if plain.outcome == "reached"],
        }.items()
    }
    assert wrong["fresh"] < 0.12 < 0.24 < wrong["shared"]


def test_a_mitigation_resumed_from_any_state_goes_the_same_way_also_while_it_is_judged():
    seen = 0
    for problem in problems()[:12]:
        states = [State()]
        whole = solved(Drawn(3), problem, on_step=states.append)
        seen += sum(bool(state.ending) for state in states)
        for earlier in states:
            assert solved(Drawn(3), problem, state=earlier) == whole
    assert seen >= 12


def test_a_failure_among_fresh_images_is_undefined_and_mended():
    problem = problems()[0]

    class Broken(Drawn):
        async def observe(self, model, prompts, images, start=0):
            cells = await super().observe(model, prompts, images, start)
            if not start:
                return cells
            nothing = {axis.name: np.full(len(axis.attributes), np.nan) for axis in DATASET.axes}
            return [Observations(cell.prompt, nothing, 0, 0, failures=("the card caught fire",)) for cell in cells]

    state = solved(Broken(3), problem)
    assert (state.outcome, state.steps[-1].judged) == ("undefined", "shared")
    assert state.reason.startswith("in fresh images: ")
    assert solved(Drawn(3), problem, state=state) == solved(Drawn(3), problem)


def test_fresh_images_are_asked_for_where_it_ends_and_nowhere_else():
    lab = Drawn(3)
    state = solved(lab, problems()[0])
    fresh = {text for text, start in lab.asked if start}
    assert {start for _, start in lab.asked} == {0, FRESH}
    assert fresh == {text for step in state.steps if step.judged == "fresh" for text in step.prompts}
    unjudged = Drawn(3)
    solved(unjudged, replace(problems()[0], fresh=False))
    assert {start for _, start in unjudged.asked} == {0}


def test_tables_tell_what_was_judged_on_what_and_count_its_images():
    observer = PromptSetObserver(Drawn(3), PM(SETTINGS, 48))
    done = []
    for problem in problems():
        mitigation = Mitigation("drawn", problem, GREEDY, observer)
        done.append((mitigation, asyncio.run(mitigate(observer, problem))))
    went_on = [i for i, (_, state) in enumerate(done) if any(s.judged == "fresh" for s in state.steps[:-1])]
    assert went_on
    frame = mitigation_rows(done, lambda stated, images: images)
    table = table_of(frame, mitigation_schema(axis.name for axis in DATASET.axes))
    cases = cases_of(table)
    matrices_of(table_of(matrix_rows(done), MITIGATION_MATRICES), cases, "matrices")  # contradicts itself nowhere
    for case, (_, state) in zip(cases, done, strict=True):
        assert [step.judged for step in case.trajectory] == [step.judged for step in state.steps]
        assert case.judged == "fresh"
        for row, step in zip(case.trajectory, state.steps, strict=True):
            assert row.p_reached == probability_reached(step.tau, step.tau_error, case.epsilon)
    for mitigation, state in (done[i] for i in went_on[:2]):
        plain = asyncio.run(mitigate(observer, replace(mitigation.problem, fresh=False)))
        few = mitigation_rows([(replace(mitigation, problem=replace(mitigation.problem, fresh=False)), plain)], whole)
        all_of_it = mitigation_rows([(mitigation, state)], whole)
        last = len(plain.steps) - 1
        judged = state.steps[last]
        assert all_of_it["images"][last] >= few["images"][last] + sum(judged.images)

    older = table.drop_columns(["judged", "p_reached"])
    for case, now in zip(cases_of(older), cases, strict=True):
        assert case.judged == "shared"
        assert case.p_reached == now.p_reached


def whole(stated: int, images: int) -> int:
    return images


def test_the_probability_that_epsilon_is_reached_follows_the_standard_error():
    assert probability_reached(0.35, 0.1, 0.35) == pytest.approx(0.5)
    assert probability_reached(0.25, 0.1, 0.35) == pytest.approx(0.841, abs=0.001)
    assert (probability_reached(0.35, 0, 0.35), probability_reached(0.36, 0, 0.35)) == (1, 0)
    assert np.isnan([probability_reached(np.nan, 0.1, 0.35), probability_reached(0.3, np.nan, 0.35)]).all()


def test_the_public_function_reports_what_was_judged_on_what():
    import seesaw

    subject = seesaw.mitigate(Drawn(3), DATASET, "alder", "nurse", {"gender": 0.5, "age": 0.5}, images=48)
    assert isinstance(subject.steps, pd.DataFrame)
    assert subject.steps["judged"].iloc[-1] == "fresh"
    assert subject.steps["p_reached"].between(0, 1).all()
    again = seesaw.mitigate(Drawn(3), DATASET, "alder", "nurse", {"gender": 0.5, "age": 0.5}, images=48, fresh=False)
    assert set(again.steps["judged"]) == {"shared"}
