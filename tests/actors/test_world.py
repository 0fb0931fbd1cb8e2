"""The pictogram world: exact distributions that a sampler follows, and prompts read as their words say."""

import itertools

import numpy as np
import pytest
import scipy.stats

from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS, SHAPE, read_prompt
from seesaw.actors.pictogram.draw import draw
from seesaw.actors.pictogram.engine import PictogramDraw
from seesaw.actors.pictogram.world import WORLDS, World
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import compose, prompts_of
from seesaw.results.errors import ConfigError

DATASET = load_dataset("occupation")
ALDER = WORLDS["alder"]


def test_codes_and_dataset_speak_of_the_same_axes_and_occupations():
    assert {axis.name: axis.attributes for axis in DATASET.axes} == dict(AXES)
    assert DATASET.subjects == OCCUPATIONS
    assert np.prod(SHAPE) == 6912


@pytest.mark.parametrize("subject", OCCUPATIONS)
def test_every_prompt_of_the_paper_is_read_as_what_it_states(subject):
    for prompt in prompts_of(DATASET, subject):
        stated = {prompt.source_axis: prompt.source_value} if prompt.source_axis else {}
        assert read_prompt(prompt.text) == (subject, stated)


def test_prompts_that_state_several_attributes_are_read_whole():
    choices = [
        dict(zip(AXES, values, strict=True))
        for values in itertools.islice(itertools.product(*AXES.values()), 0, 6912, 97)
    ]
    for stated in choices:
        assert read_prompt(compose(DATASET, "nurse", stated)) == ("nurse", stated)


def test_a_subject_of_the_users_own_has_a_bias_of_its_own():
    assert read_prompt("A photo of a female deep-sea diver working outdoors") == (
        "deep-sea diver",
        {"gender": "female", "environment": "outdoor"},
    )
    diver, baker = ALDER.joint("deep-sea diver"), ALDER.joint("baker")
    assert np.abs(diver - baker).sum() / 2 > 0.3


@pytest.mark.parametrize("world", WORLDS.values(), ids=str)
def test_distributions_are_distributions_and_strongly_biased(world):
    for subject in OCCUPATIONS:
        p = world.joint(subject)
        assert p.shape == SHAPE
        assert p.sum() == pytest.approx(1)
    w = [
        np.abs(shares - 1 / len(shares)).sum() / 2 * len(shares) / (len(shares) - 1)
        for subject in OCCUPATIONS
        for shares in world.shares(f"A photo of a {subject}").values()
    ]
    assert np.mean(w) > 0.5


def test_stating_nothing_is_the_joint_and_full_compliance_fixes_the_attribute():
    assert ALDER.conditional("nurse", {}) == pytest.approx(ALDER.joint("nurse"))
    shares = ALDER.conditional("nurse", {"age": "old"}).sum(axis=(0, 2, 3, 4, 5, 6, 7))
    unstated = ALDER.joint("nurse").sum(axis=(0, 2, 3, 4, 5, 6, 7))
    heeded = ALDER.compliance["age"]
    assert shares == pytest.approx(heeded * np.array([0, 0, 1]) + (1 - heeded) * unstated)


def test_compliance_is_imperfect_as_documented():
    values = [c for world in WORLDS.values() for c in world.compliance.values()]
    assert min(values) >= 0.3
    assert max(values) <= 1
    assert np.std(values) > 0.1


@pytest.mark.parametrize("text", ["A photo of a nurse", "A photo of an old musician working outdoors"])
def test_samples_follow_the_exact_shares(text):
    n = 4000
    drawn = [ALDER.sample(text, seed) for seed in range(n)]
    figures = [state for state in drawn if state is not None]
    p_values = [scipy.stats.binomtest(n - len(figures), n, ALDER.absent).pvalue]
    for axis, shares in ALDER.shares(text).items():
        counts = np.array([sum(state[axis] == value for state in figures) for value in AXES[axis]])
        p_values.append(scipy.stats.chisquare(counts, shares * len(figures)).pvalue)
    assert min(p_values) > 0.001  # nine tests: a right sampler fails here once in a hundred worlds, and seeds are fixed


def test_exact_shares_are_frozen():
    """A world is the same under every version of every library: its figures are published."""
    assert ALDER.shares("A photo of a nurse")["gender"] == pytest.approx(GOLDEN_GENDER, abs=1e-12)
    assert ALDER.sample("A photo of a nurse", 1) == GOLDEN_STATE


def test_every_attribute_changes_at_least_100_pixels():
    """No code lies between two others: any two attributes of an axis differ in 100 pixels or more."""
    base = {axis: values[0] for axis, values in AXES.items()}
    for axis, values in AXES.items():
        for one, two in itertools.combinations(values, 2):
            a, b = (np.asarray(draw({**base, axis: v}, "nurse", 5), np.int16) for v in (one, two))
            changed = (np.abs(a - b).sum(-1) > 30).sum()
            # a head's outline is the smallest: a square and a circle differ in their corners
            assert changed >= (50 if axis == "gender" else 100), (axis, one, two, changed)


def test_the_engine_gives_the_same_bytes_alone_or_in_a_batch():
    engine = PictogramDraw({"world": "birch"})
    seeds = [3, 9, 4]
    batch = engine.generate("A photo of a chef", seeds)
    assert batch == [engine.generate("A photo of a chef", [seed])[0] for seed in seeds]
    assert len(set(batch)) == 3


def test_settings_of_the_engine_are_checked_and_part_of_its_identity():
    assert PictogramDraw.identity({"world": "alder"}) != PictogramDraw.identity({"world": "birch"})
    assert PictogramDraw({"world": "mine", "bias": 1, "coupling": 0.5}).world == World("mine", 1.0, 0.5)
    with pytest.raises(ConfigError, match="did you mean 'alder'"):
        PictogramDraw({"world": "aldr"})
    with pytest.raises(ConfigError, match="no setting 'bais'; did you mean 'bias'"):
        PictogramDraw({"world": "alder", "bais": 1})


GOLDEN_GENDER = [0.95599644621158, 0.04400355378842004]
GOLDEN_STATE = {
    "gender": "female",
    "age": "young",
    "ethnicity": "south asian",
    "bodytype": "fat",
    "environment": "outdoor",
    "clothing": "formal",
    "emotion": "sad",
    "disability": "hearing aid",
}
