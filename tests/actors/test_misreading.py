"""The engine `misreading` misreads as often as it is told, always alike, and under an identity of its own."""

from collections import Counter

import pytest

from seesaw.actors.engines import VQAQuestion
from seesaw.actors.misreading import MisreadingVQA
from seesaw.actors.pictogram.codes import AXES
from seesaw.actors.simulated import SimulatedVQA
from seesaw.results.errors import ConfigError

GENDER, EMOTION = (VQAQuestion(f"What is the {axis}?", AXES[axis]) for axis in ("gender", "emotion"))
IMAGES = [f"image {i}".encode() for i in range(4000)]
BEHIND = SimulatedVQA({})


def engine(misread, **settings):
    return MisreadingVQA({"engine": "simulated", "misread": misread, **settings})


def pairs(misread, question):
    """How often each true answer is given as each answer."""
    requests = [(image, (question,)) for image in IMAGES]
    truths, given = BEHIND.ask(requests), engine(misread).ask(requests)
    return Counter((one.answer, other.answer) for (one,), (other,) in zip(truths, given, strict=True))


def test_a_rate_spreads_evenly_over_the_other_attributes():
    counts = pairs({"emotion": 0.3}, EMOTION)
    for truth in EMOTION.choices:
        total = sum(counts[truth, answer] for answer in EMOTION.choices)
        assert counts[truth, truth] / total == pytest.approx(0.7, abs=0.05)
        for other in EMOTION.choices:
            if other != truth:
                assert counts[truth, other] / total == pytest.approx(0.1, abs=0.04)


def test_rows_say_which_attribute_is_read_as_which():
    counts = pairs({"emotion": {"sad": {"tired": 0.5, "happy": 0.1}}}, EMOTION)
    total = sum(counts["sad", answer] for answer in EMOTION.choices)
    assert counts["sad", "tired"] / total == pytest.approx(0.5, abs=0.06)
    assert counts["sad", "happy"] / total == pytest.approx(0.1, abs=0.04)
    assert not counts["sad", "serious"]
    assert {truth for truth, answer in counts if truth != answer} == {"sad"}


def test_other_questions_are_answered_as_the_vlm_behind_does_and_probabilities_follow_the_answer():
    requests = [(image, (GENDER, EMOTION)) for image in IMAGES[:100]]
    for truths, given in zip(BEHIND.ask(requests), engine({"gender": 1}).ask(requests), strict=True):
        assert given[1] == truths[1]
        assert given[0].answer != truths[0].answer
        assert given[0].probabilities == truths[0].probabilities[::-1]


def test_the_same_image_is_always_misread_alike_and_another_seed_misreads_others():
    requests = [(image, (GENDER,)) for image in IMAGES[:200]]
    once = engine({"gender": 0.3}).ask(requests)
    assert engine({"gender": 0.3}).ask(requests[::-1])[::-1] == once
    assert engine({"gender": 0.3}, seed=1).ask(requests) != once


def test_what_the_vlm_behind_adds_is_part_of_the_identity():
    settings = {"engine": "vllm", "settings": {"model": "pictogram"}, "misread": {"gender": 0.1}}
    assert MisreadingVQA.identity(settings)["behind"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "misread"),
        ({"misread": {}}, "misread"),
        ({"misread": {"gendre": 0.1}}, "no axis 'gendre' that can be misread; did you mean 'gender'?"),
        ({"misread": {"disability": 0.1}}, "it has three questions, not one"),
        ({"misread": {"gender": 1.5}}, "misread.gender is 1.5; it must be a probability"),
        ({"misread": {"gender": True}}, "misread.gender is True"),
        ({"misread": {"gender": {"mail": {"female": 0.1}}}}, "no attribute 'mail'; did you mean 'male'?"),
        ({"misread": {"gender": {"male": {"male": 0.1}}}}, "'male' cannot be read as 'male'"),
        ({"misread": {"gender": {"male": 0.1}}}, "misread.gender.male is 0.1; it must be a mapping"),
        ({"misread": {"emotion": {"sad": {"happy": 0.6, "tired": 0.6}}}}, "misread.emotion.sad sums to 1.2"),
        ({"misread": {"gender": 0.1}, "engine": "misreading"}, "no engine 'misreading' behind it"),
        ({"misread": {"gender": 0.1}, "engine": "vlm"}, "did you mean 'vllm'?"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_starts(settings, message):
    with pytest.raises(ConfigError) as error:
        MisreadingVQA.identity(settings)
    assert message in str(error.value)
