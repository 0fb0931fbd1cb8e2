"""Mitigations when cells fail or show nobody, and many mitigations at once."""

import asyncio
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.images import FRESH
from seesaw.experiments.intermit import Problem, mitigate
from seesaw.experiments.mitigations import Mitigation, mitigate_all, mitigation_rows
from seesaw.experiments.mitigators import PM
from seesaw.experiments.priorities import draw_priority
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.settings import make_settings
from seesaw.experiments.strategies import ALL
from seesaw.experiments.trajectory import State
from seesaw.results.errors import ConfigError

DATASET = load_dataset("occupation")
SETTINGS = make_settings(DATASET, intervention="target")
LAB = ExactLab(DATASET, {"alder": WORLDS["alder"].shares})


class Broken:
    """A Lab, but texts that `fails` or `nobody` say come back failed, or without a person in the first images."""

    def __init__(self, fails=lambda text: False, nobody=lambda text: 0) -> None:
        self.fails, self.nobody, self.asked = fails, nobody, []

    async def observe(self, model, prompts, images, start=0):
        self.asked += [(prompt.text, images, start) for prompt in prompts]
        return [self._spoilt(cell) for cell in await LAB.observe(model, prompts, images, start)]

    def _spoilt(self, cell):
        if self.fails(cell.prompt.text):
            nothing = {name: np.full_like(counts, np.nan) for name, counts in cell.counts.items()}
            return replace(cell, counts=nothing, asked=0, failures=("images 0-7: the card caught fire",))
        dropped = min(self.nobody(cell.prompt.text), cell.asked)
        left = 1 - dropped / cell.asked
        return replace(cell, counts={name: left * counts for name, counts in cell.counts.items()}, dropped=dropped)


PROBLEM = Problem("alder", "nurse", {"age": 0.5, "gender": 0.5}, epsilon=0.1, max_steps=2)


def broken(lab: Broken, problem: Problem = PROBLEM, **how) -> State:
    return asyncio.run(mitigate(PromptSetObserver(lab, PM(SETTINGS, 48)), problem, **how))


@pytest.mark.parametrize(
    "text",
    ["A photo of a nurse", "A photo of a blind nurse", "A photo of an old male nurse"],
    ids=["now", "row", "next"],
)
def test_a_failed_cell_is_undefined_and_resumes_to_the_same_trajectory_once_it_is_there(text):
    lab = Broken(fails=lambda asked: asked == text)
    state = broken(lab)
    assert state.outcome == "undefined"
    assert state.reason == f"1 prompts failed, the first: {text}: images 0-7: the card caught fire"
    whole = broken(Broken())
    assert whole.outcome == "max_steps"
    assert broken(Broken(), state=state) == whole


def test_what_failed_is_asked_again_of_the_same_observer():
    broke = [True]
    observer = PromptSetObserver(Broken(fails=lambda _: broke[0]), PM(SETTINGS, 48))
    first = asyncio.run(mitigate(observer, PROBLEM))
    broke[0] = False
    second = asyncio.run(mitigate(observer, PROBLEM, state=first))
    assert (first.outcome, second.outcome) == ("undefined", "max_steps")


def test_a_model_that_shows_nobody_is_undefined():
    state = broken(Broken(nobody=lambda text: 48 * (text == "A photo of a nurse")))
    assert (state.outcome, state.reason) == ("undefined", "no image shows a person: A photo of a nurse")
    assert state.steps == ()


def test_a_candidate_that_shows_nobody_is_left_out_with_an_alert():
    best = broken(Broken()).mitigated[0]
    word = {"age": "old", "gender": "female"}[best]
    state = broken(Broken(nobody=lambda text: 48 * (f" {word} " in text)))
    assert best not in state.mitigated
    assert best not in state.steps[0].gamma
    assert [a.axis for a in state.steps[0].alerts if a.kind == "undefined"] == [best]
    assert (
        str(state.steps[0].alerts[0]) == f"{best} could not be a candidate: one of its counterfactuals shows no person"
    )


def test_a_prompt_whose_few_images_show_nobody_is_asked_for_more():
    """Of 24 prompts with 2 images each, one shows nobody in its first 5: asked for 2, 4 and 8, and so in fresh ones."""
    text = "A photo of a hispanic nurse who is sad"
    problem = Problem("alder", "nurse", {"ethnicity": 0.5, "emotion": 0.5}, epsilon=0.0)
    lab = Broken(nobody=lambda asked: 5 * (asked == text))
    state = broken(lab, problem, strategy=ALL)
    assert state.outcome == "exhausted"
    assert [asked[1:] for asked in lab.asked if asked[0] == text] == [
        *((images, 0) for images in (2, 4, 8)), *((images, FRESH) for images in (2, 4, 8))
    ]  # fmt: skip
    assert state.steps[2].tau == pytest.approx(broken(Broken(), problem, strategy=ALL).steps[2].tau, abs=1e-12)


def test_none_waits_for_another_and_no_cell_is_asked_twice():
    """One subject's images never come; all the others end."""

    class Stuck(Broken):
        async def observe(self, model, prompts, images, start=0):
            if prompts[0].subject == "nurse":
                await asyncio.Event().wait()
            await asyncio.sleep(0.001)
            return await super().observe(model, prompts, images, start)

    lab = Stuck()
    many = [
        replace(PROBLEM, subject=subject, priority=draw_priority(DATASET, subject, seed))
        for subject in DATASET.subjects
        for seed in range(3)
    ]

    async def race():
        observer = PromptSetObserver(lab, PM(SETTINGS, 48))
        tasks = [asyncio.create_task(mitigate(observer, replace(p, max_steps=1))) for p in many]
        async with asyncio.timeout(60):
            while sum(task.done() for task in tasks) < 75:
                await asyncio.sleep(0.01)
        waiting = [task for task in tasks if not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return [task.result() for task in tasks if task not in waiting]

    done = asyncio.run(race())
    assert len(done) == 75
    assert all(state.outcome for state in done)
    assert max(Counter(lab.asked).values()) == 1


def test_one_that_is_cancelled_takes_nothing_from_another_that_waits_for_the_same_images():
    class Slow(Broken):
        async def observe(self, model, prompts, images, start=0):
            await asyncio.sleep(0.05)
            return await super().observe(model, prompts, images, start)

    async def race():
        observer = PromptSetObserver(Slow(), PM(SETTINGS, 48))
        first, second = (asyncio.create_task(mitigate(observer, PROBLEM)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(race()) == broken(Broken())


def test_a_lab_that_raises_ends_the_mitigation_with_its_error():
    with pytest.raises(ConfigError, match="no model 'aldr'"):
        asyncio.run(mitigate(PromptSetObserver(LAB, PM(SETTINGS, 48)), replace(PROBLEM, model="aldr")))


def test_where_no_candidate_shows_anybody_nothing_is_known_and_nothing_is_said_to_be_immovable():
    lab = Broken(nobody=lambda text: 0 if text == "A photo of a nurse" else 48)
    state = broken(lab)
    assert state.outcome == "undefined"
    assert "no image shows a person" in state.reason
    assert all(alert.kind != "immovable" for step in state.steps for alert in step.alerts)


def test_images_that_took_the_place_of_ones_without_a_person_are_counted():
    """Of a set of six prompts two images each; where they show nobody, four are looked at, then eight."""
    lab = Broken(nobody=lambda text: 7 if text == "A photo of an old male nurse" else 0)
    observer = PromptSetObserver(lab, PM(SETTINGS, 12))
    problem = Problem("alder", "nurse", {"age": 0.5, "gender": 0.5}, epsilon=0.0, max_steps=2)
    mitigation = Mitigation("case", problem, ALL, observer)
    states = asyncio.run(mitigate_all([mitigation]))
    rows = mitigation_rows(list(zip([mitigation], states, strict=True)), lambda stated, images: images)
    assert rows["images"].tolist() == [12, 3 * 4, 2 * (5 * 2 + 8)]  # the end is judged on as many fresh ones
    assert observer.asked == {(0, 12): 1, (1, 4): 3, (2, 2): 2 * 5, (2, 8): 2 * 1}
