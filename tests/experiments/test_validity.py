"""The analysis against worlds whose every distribution is known: the cheap core of `python -m benchmarks.validity`."""

import numpy as np
import pytest

from benchmarks.validity.worlds import NULL, chain_of, draw, draw_answers, exact_values, worlds_of
from seesaw.actors.pictogram.codes import AXES, SHAPE
from seesaw.experiments.analysis import analyze
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.images import Images
from seesaw.experiments.settings import make_settings
from seesaw.runner.config import CONFIGS

SETTINGS = make_settings(load_dataset(CONFIGS / "datasets" / "occupation.yaml"))


def test_drawn_images_follow_the_joint_distribution():
    world = worlds_of("embedded")[0]
    p = world.conditional("nurse", {"gender": "male"})
    codes = draw(chain_of(p), np.random.default_rng(0).random((200_000, len(SHAPE))))
    for a in range(len(SHAPE)):
        for b in range(a):
            exact = p.sum(axis=tuple(i for i in range(len(SHAPE)) if i not in (a, b)))
            drawn = np.zeros_like(exact)
            np.add.at(drawn, (codes[:, b], codes[:, a]), 1 / len(codes))
            assert drawn == pytest.approx(exact, abs=0.006), (a, b)


def test_images_of_one_number_share_their_luck_only_if_told():
    world = worlds_of("null-fair")[0]

    def agreement(rho):
        answers = draw_answers(world, SETTINGS.dataset, Images(400, 400), rho, np.random.default_rng(1))
        gender = answers[(answers["axis"] == "gender") & (answers["source_axis"] == "")]
        wide = (gender.assign(male=gender["answer"] == "male")).pivot(index="image", columns="subject", values="male")
        return wide.astype(float).corr().to_numpy()[np.triu_indices(26, 1)].mean()

    assert agreement(0.0) == pytest.approx(0, abs=0.01)
    assert agreement(0.5) == pytest.approx(0.32, abs=0.04)  # of two signs, where the latent variables have 0.5


def test_nothing_interacts_in_null_worlds():
    for kind in NULL:
        exact = exact_values(worlds_of(kind)[0], SETTINGS)
        assert exact.loc[exact["source_axis"] != exact["target_axis"], "exact"].abs().max() < 1e-12


def test_drawn_answers_are_a_table_that_the_analysis_reads():
    world = worlds_of("embedded")[4]
    answers = draw_answers(world, SETTINGS.dataset, Images(200, 100), 0.0, np.random.default_rng(2))
    images = 26 * (200 + 26 * 100)
    no_person = answers["axis"] == "person"
    assert len(answers) == (images - no_person.sum()) * len(AXES) + no_person.sum()
    assert no_person.mean() * len(answers) / images == pytest.approx(world.absent, abs=0.005)
    both = analyze(answers, SETTINGS).matrices.merge(exact_values(world, SETTINGS))
    assert np.corrcoef(both["is"], both["exact"])[0, 1] > 0.9
