"""Prompt sets of PM: the paper's example word for word, the same for every order, images shared to the last."""

from itertools import combinations, permutations

import numpy as np
import pytest

from seesaw.actors.pictogram.codes import read_prompt
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.mitigators import PM, PromptSet
from seesaw.experiments.prompts import counterfactual_prompts
from seesaw.experiments.settings import make_settings

DATASET = load_dataset("occupation")
AXES = tuple(axis.name for axis in DATASET.axes)


def pm(images: int = 48, **settings) -> PM:
    return PM(make_settings(DATASET, intervention="target", **settings), images)


def mitigated(mitigator: PM, axes, subject: str = "nurse") -> PromptSet:
    current = mitigator.initial(subject)
    for axis in axes:
        current = mitigator.mitigate(current, axis)
    return current


def texts(prompts: PromptSet) -> list[str]:
    return [prompt.text for prompt in prompts.prompts]


def test_the_nurse_example_of_the_appendix_comes_out_word_for_word():
    mitigator = pm()
    start = mitigator.initial("nurse")
    assert (texts(start), start.images) == (["A photo of a nurse"], (48,))
    first = mitigator.mitigate(start, "environment")
    assert texts(first) == ["A photo of a nurse working indoors", "A photo of a nurse working outdoors"]
    assert first.images == (24, 24)
    assert texts(mitigator.counterfactuals(first, "gender")) == [
        "A photo of a male nurse working indoors",
        "A photo of a male nurse working outdoors",
        "A photo of a female nurse working indoors",
        "A photo of a female nurse working outdoors",
    ]
    second = mitigator.mitigate(first, "clothing")
    assert texts(second) == [
        "A photo of a nurse working indoors dressed formally",
        "A photo of a nurse working outdoors dressed formally",
        "A photo of a nurse working indoors dressed informally",
        "A photo of a nurse working outdoors dressed informally",
    ]
    assert second.images == (12, 12, 12, 12)
    assert second.weights == pytest.approx([0.25] * 4)


def test_step_1_is_the_sweep():
    """The initial prompt's counterfactuals are the sweep's cells; what is mitigated is the first of their images."""
    mitigator = pm()
    start = mitigator.initial("chef")
    for axis in DATASET.axes:
        cells = counterfactual_prompts(DATASET, "chef", axis)
        assert mitigator.counterfactuals(start, axis.name).prompts == cells
        assert set(mitigator.counterfactuals(start, axis.name).images) == {48}
        assert mitigator.mitigate(start, axis.name).prompts == cells
        assert set(mitigator.mitigate(start, axis.name).images) == {48 // len(cells)}


def test_every_order_gives_the_same_set():
    mitigator = pm()
    for order in permutations(("emotion", "gender", "clothing")):
        assert mitigated(mitigator, order) is mitigated(mitigator, ("gender", "clothing", "emotion"))
    assert mitigated(mitigator, ("emotion", "gender")).mitigated == ("gender", "emotion")
    again = mitigated(pm(), ("emotion", "gender"))
    assert again.prompts == mitigated(mitigator, ("gender", "emotion")).prompts


@pytest.mark.parametrize("target", ["uniform", [0.7, 0.1, 0.2]])
def test_what_is_mitigated_was_seen_as_a_counterfactual(target):
    """Every image of the mitigated set is among those that the choice was made from, whatever D*, in every order."""
    mitigator = pm(targets={"age": target})
    for axes in combinations(("gender", "age", "bodytype", "emotion"), 3):
        for *before, last in permutations(axes):
            current = mitigated(mitigator, before)
            candidate = mitigator.counterfactuals(current, last)
            seen = dict(zip(texts(candidate), candidate.images, strict=True))
            after = mitigator.mitigate(current, last)
            assert set(texts(after)) == set(seen)
            assert all(images <= seen[text] for text, images in zip(texts(after), after.images, strict=True))


def test_counterfactuals_at_step_2_are_shared_by_every_order():
    mitigator = pm()
    one = mitigator.counterfactuals(mitigated(mitigator, ("gender", "environment")), "clothing")
    other = mitigator.counterfactuals(mitigated(mitigator, ("clothing", "environment")), "gender")
    by_text = dict(zip(one.prompts, one.images, strict=True))
    assert by_text == dict(zip(other.prompts, other.images, strict=True))
    assert set(one.images) == {12}


def test_images_are_n_in_all_at_least_and_one_each_at_least():
    for axes in (("age",), ("ethnicity", "emotion"), ("ethnicity", "emotion", "age")):
        current = mitigated(pm(), axes)
        assert sum(current.images) >= 48
        assert len(set(current.images)) == 1  # "an equal number of images are generated for each prompt"
    assert mitigated(pm(50), ("ethnicity",)).images == (9,) * 6
    assert mitigated(pm(), ("ethnicity", "emotion")).images == (2,) * 24
    assert mitigated(pm(), ("ethnicity", "emotion", "age")).images == (1,) * 72


def test_images_and_weights_follow_the_target():
    mitigator = pm(targets={"gender": [0.25, 0.75], "age": {"young": 0.5, "middle": 0.5, "old": 0}})
    gender = mitigated(mitigator, ("gender",))
    assert gender.images == (12, 36)
    assert gender.weights.tolist() == [0.25, 0.75]
    both = mitigated(mitigator, ("gender", "age"))
    assert texts(both) == [
        "A photo of a young male nurse",
        "A photo of a young female nurse",
        "A photo of a middle-aged male nurse",
        "A photo of a middle-aged female nurse",
    ]  # no old nurse: the target has none
    assert both.weights == pytest.approx([0.125, 0.375, 0.125, 0.375])
    assert both.images == (6, 18, 6, 18)


def test_uniform_intervention_is_equal_whatever_the_target():
    mitigator = PM(make_settings(DATASET, targets={"gender": [0.25, 0.75]}, intervention="uniform"), 48)
    assert mitigated(mitigator, ("gender",)).weights.tolist() == [0.5, 0.5]
    assert mitigated(mitigator, ("gender",)).images == (24, 24)


def test_no_prompt_of_three_axes_says_two_things_of_one():
    """Read back by the vocabulary's own reader, every prompt states exactly what it was composed of."""
    mitigator = pm()
    for axes in combinations(AXES, 3):
        for prompt in mitigated(mitigator, axes, "farmer").prompts:
            stated = dict(zip(prompt.source_axis.split("+"), prompt.source_value.split("+"), strict=True))
            assert read_prompt(prompt.text) == ("farmer", stated)
            assert set(stated) == set(axes)


def test_an_axis_is_never_stated_twice():
    current = mitigated(pm(), ("gender",))
    with pytest.raises(ValueError, match="mitigated on 'gender' already"):
        pm().mitigate(current, "gender")
    with pytest.raises(ValueError, match="mitigated on 'gender' already"):
        pm().counterfactuals(current, "gender")


def test_weights_sum_to_one():
    for axes in combinations(AXES, 2):
        assert np.sum(mitigated(pm(), axes).weights) == pytest.approx(1, abs=1e-12)
