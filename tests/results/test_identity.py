"""Identity is frozen: a hash that changes makes every stored image unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesaw.results.store.identity import batch_key, batch_size, digest, image_key, image_seed, questionnaire_key

SEEDS = [image_seed(0, i) for i in range(8)]


def test_hashes_are_those_of_the_first_release():
    model = digest("model", {"engine": "pictogram-draw", "settings": {"world": "alder"}, "extra": {}})
    assert (model, SEEDS[:2], image_seed(7, 3)) == GOLDEN["model"]
    assert image_key(model, "A photo of a nurse", "", SEEDS[0]) == GOLDEN["image"]
    assert batch_key(model, "A photo of a nurse", "", SEEDS) == GOLDEN["batch"]
    assert questionnaire_key(model, [("Is there a person?", ("yes", "no"))], True) == GOLDEN["questionnaire"]


def test_equal_numbers_and_any_key_order_have_the_same_hash():
    assert digest("x", {"a": 1.0, "b": [1, 2.0]}) == digest("x", {"b": [1.0, 2], "a": 1})


@pytest.mark.parametrize("other", [{"a": 2}, {"b": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": [1]}])
def test_whatever_differs_has_another_hash(other):
    assert digest("x", {"a": 1}) != digest("x", other)


def test_what_has_no_canonical_form_is_refused():
    with pytest.raises(TypeError, match="set has no identity"):
        digest("x", {"a": {1, 2}})


@given(st.integers(0, 2**40), st.integers(0, 10**6))
def test_seeds_are_exact_in_a_double_and_depend_on_the_index(root, index):
    seed = image_seed(root, index)
    assert 0 <= seed < 2**53
    assert seed == int(float(seed))
    assert seed != image_seed(root, index + 1)


GOLDEN = {
    "model": ("773dbd53a9a61b0a7f5ddee65085d18b", [2569295751529450, 7248023653044268], 7093103552803915),
    "image": "295fb6a53583176d0cc66c135d67ec40",
    "batch": "b184370b63c526c1269b83e6a090d2d2",
    "questionnaire": "50d3832a3fd019a00a6cc6db894b81af",
}


def test_the_cut_into_batches_is_frozen_too():
    assert [batch_size(stated) for stated in range(8)] == [8, 8, 8, 4, 2, 1, 1, 1]
