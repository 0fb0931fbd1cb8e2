"""Studies of single mitigations, over exact probabilities and over images drawn from them."""

import asyncio
import zlib
from functools import cache

import numpy as np
import pandas as pd
import pytest

from seesaw.actors.pictogram.codes import AXES, SHAPE, read_prompt
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.biasconnect import biasconnect
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.intermit import Problem, mitigate
from seesaw.experiments.lab import Answers
from seesaw.experiments.mitigators import PM
from seesaw.experiments.prompt_sets import PromptSetObserver, observed_set
from seesaw.experiments.prompts import Prompt
from seesaw.experiments.questionnaire import observations_of
from seesaw.experiments.settings import make_settings
from seesaw.experiments.studies import negatives, single_mitigations, validation
from seesaw.experiments.trajectory import State

DATASET = load_dataset("occupation")
SUBJECTS = ("chef", "nurse", "farmer")
FEW = DATASET.select(subjects=SUBJECTS)
SETTINGS = make_settings(FEW, intervention="target")
EXACT = ExactLab(FEW, {name: world.shares for name, world in WORLDS.items()})


@cache
def cumulative(model: str, text: str) -> np.ndarray:
    return np.cumsum(WORLDS[model].conditional(*read_prompt(text)).ravel())


class Images:
    """A Lab over images that a world drew: figures of its joint distribution, a few images without a person."""

    def __init__(self, root: int) -> None:
        self._root = root

    async def observe(self, model, prompts, images, start=0):
        return [
            observations_of(FEW, prompt, [self._drawn(model, prompt.text, start)], images, start=start)
            for prompt in prompts
        ]

    def _drawn(self, model: str, text: str, start: int) -> Answers:
        rng = np.random.default_rng([self._root + start, zlib.crc32(f"{model}/{text}".encode())])
        states = cumulative(model, text)
        drawn = np.unravel_index(np.searchsorted(states, rng.random(48) * states[-1]), SHAPE)
        person, known = rng.random(48) >= WORLDS[model].absent, np.ones(48)
        values = {axis: np.where(person, value, -1) for axis, value in zip(AXES, drawn, strict=True)}
        index = np.arange(start, start + 48)
        return Answers(index, index, ("",) * 48, person, known, values, dict.fromkeys(AXES, known))


def effects(lab) -> pd.DataFrame:
    return asyncio.run(single_mitigations(PromptSetObserver(lab, PM(SETTINGS, 48)), ["alder", "elm"]))


@pytest.fixture(scope="module")
def exact() -> pd.DataFrame:
    return effects(EXACT)


def test_what_is_foretold_is_the_matrix_of_the_sweep(exact):
    for subject in SUBJECTS:
        found = asyncio.run(biasconnect(EXACT, "elm", subject, SETTINGS, images=48)).sensitivity
        rows = exact[(exact["model"] == "elm") & (exact["subject"] == subject)]
        assert rows["before"].to_numpy() == pytest.approx(found.ravel(), abs=1e-12)
        assert rows["source_axis"].tolist() == np.repeat(list(AXES), 8).tolist()
        assert rows["target_axis"].tolist() == list(AXES) * 8


def test_pm_does_what_exact_probabilities_foretell(exact):
    table = validation(exact)
    assert table[["model", "subject"]].to_numpy().tolist() == [[m, s] for m in ("alder", "elm") for s in SUBJECTS]
    assert table["pairs"].tolist() == [64] * 6
    assert table[["correlation", "others"]].to_numpy() == pytest.approx(1)
    assert (exact["error"] == 0).all()


def test_negatives_count_other_axes_alone(exact):
    table = negatives(exact).set_index("model")
    for model in ("alder", "elm"):
        found = [
            asyncio.run(biasconnect(EXACT, model, subject, SETTINGS, images=48)).sensitivity for subject in SUBJECTS
        ]
        off_diagonal = np.stack(found)[:, ~np.eye(8, dtype=bool)]
        assert table.loc[model, "pairs"] == off_diagonal.size == 168
        assert table.loc[model, "negative"] == (off_diagonal < -1e-9).sum()
        assert table.loc[model, "share"] == table.loc[model, "sure"] == pytest.approx((off_diagonal < -1e-9).mean())
    assert 0.1 < table["share"].mean() < 0.5


def test_of_48_images_a_mitigation_is_foretold_well_and_not_perfectly():
    table = validation(effects(Images(0)))
    assert 0.9 < table["correlation"].mean() < 0.999
    assert table["others"].mean() < table["correlation"].mean()


def test_standard_errors_are_those_of_images_drawn_again(exact):
    """Over 20 draws of the images, IS after mitigation spreads as its standard error says, give or take a third."""
    draws = [effects(Images(root)) for root in range(20)]
    spread = np.std([draw["after"] for draw in draws], axis=0)
    stated = np.mean([draw["error"] for draw in draws], axis=0)
    assert 0.8 < np.median(stated[spread > 0] / spread[spread > 0]) < 1.35
    assert stated.min() > 0  # 48 of 48 are not certain
    sure = [negatives(draw)["sure"].mean() for draw in draws]
    truly = negatives(exact)["share"].mean()
    assert np.mean(sure) < truly < np.mean([negatives(draw)["share"].mean() for draw in draws]) + 0.1


def test_sampling_alone_raises_few_alerts_of_missed_predictions():
    """PM's counterfactuals foretell exactly but for sampling: 1 alert in 20 at the most, on the average."""
    missed = steps = 0
    for root in range(6):
        observer = PromptSetObserver(Images(root), PM(SETTINGS, 48))
        for subject in SUBJECTS:
            problem = Problem("alder", subject, {"gender": 0.5, "clothing": 0.5}, epsilon=0.0, max_steps=2)
            state = asyncio.run(mitigate(observer, problem))
            check_errors(observer, problem, state)
            for alert in (alert for at in state.steps for alert in at.alerts if alert.kind in ("worse", "missed")):
                assert abs(alert.value) > 1.96 * alert.error > 0
            missed += sum(alert.kind == "missed" for at in state.steps for alert in at.alerts)
            steps += len(state.mitigated)
    assert steps > 20
    assert missed / steps <= 0.1


def check_errors(observer: PromptSetObserver, problem: Problem, state: State) -> None:
    """Standard errors of tau and of its prediction are those of the sets behind them."""
    current = observer.mitigator.initial(problem.subject)
    priority = np.array([problem.priority.get(axis, 0.0) for axis in AXES])
    for at in state.steps:
        (seen,) = asyncio.run(observer.observe(problem.model, [current], fresh=at.judged == "fresh"))
        assert 0 < at.tau_error == pytest.approx(np.sqrt(priority @ seen.covariance @ priority))
        if at.axis:
            (seen,) = asyncio.run(
                observer.observe(problem.model, [observer.mitigator.counterfactuals(current, at.axis)])
            )
            assert 0 < at.predicted_error == pytest.approx(np.sqrt(priority @ seen.covariance @ priority))
            current = observer.mitigator.mitigate(current, at.axis)


@pytest.mark.parametrize(
    ("n", "m"), [((40,), (1.0,)), ((400,), (1.0,)), ((20, 200), (0.5, 0.5)), ((20, 200), (0.1, 0.9))]
)
def test_a_standard_error_follows_the_images_of_every_prompt(n, m):
    """w of gender is |2p - 1|: its standard error is twice that of p, a weighted mean over cells of n images."""
    cells = []
    for images in n:
        male = np.arange(images) < 0.3 * images
        values = {axis: np.where(male, 0, 1) for axis in AXES}
        known = np.ones(images)
        probability = dict.fromkeys(AXES, known)
        answers = Answers(np.arange(images), np.arange(images), ("",) * images, known > 0, known, values, probability)
        cells.append(observations_of(FEW, Prompt("A photo of a nurse", "nurse"), [answers], images))
    found = observed_set(SETTINGS, np.array(m), cells)
    expected = 2 * np.sqrt(sum(weight**2 * 0.3 * 0.7 / images for weight, images in zip(m, n, strict=True)))
    assert found.w[0] == pytest.approx(0.4)
    assert found.error[0] == pytest.approx(expected, rel=0.1)


def test_what_is_undefined_is_left_out_and_counted():
    rows = [("m", "nurse", "age", target, before, after, 0.01)
            for target, before, after in [("age", 0.5, 0.4), ("gender", 0.1, -0.1), ("emotion", 0.2, np.nan),
                                          ("clothing", -0.2, -0.001)]]  # fmt: skip
    rows += [("n", "nurse", "age", "gender", np.nan, np.nan, np.nan)]
    names = ["model", "subject", "source_axis", "target_axis", "before", "after", "error"]
    table = pd.DataFrame(rows, columns=names)
    found = validation(table).set_index("model")
    assert found["pairs"].to_dict() == {"m": 3, "n": 0}
    assert found.loc["m", "correlation"] == pytest.approx(np.corrcoef([0.5, 0.1, -0.2], [0.4, -0.1, -0.001])[0, 1])
    assert found[["others"]].isna().all(axis=None)
    counted = negatives(table).set_index("model")
    assert counted.loc["m"].tolist() == [2, 2, 1.0, 0.5]
    assert counted.loc["n", ["pairs", "negative"]].tolist() == [0, 0]
    assert np.isnan(counted.loc["n", "share"])
