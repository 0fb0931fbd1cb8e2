"""How many images a prompt has: the forms of the key, what is refused, and which images judge a decision."""

import asyncio

import numpy as np
import pytest

from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.biasconnect import biasconnect
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.images import FRESH, MOST_IMAGES, Images, images_of
from seesaw.experiments.lab import observe_each
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import make_settings
from seesaw.experiments.sweep import sweep
from seesaw.results.errors import ConfigError
from seesaw.results.store.identity import BATCH

DATASET = load_dataset("occupation").select(subjects=["nurse"], axes=["gender", "age"])
LAB = ExactLab(DATASET, {name: world.shares for name, world in WORLDS.items()})


class Counting:
    """A Lab over exact probabilities that remembers which images it was asked for, and has no fresh ones."""

    def __init__(self):
        self.asked: dict[str, int] = {}

    async def observe(self, model, prompts, images):
        for prompt in prompts:
            assert prompt.text not in self.asked, "asked for twice"
            self.asked[prompt.text] = images
        return await LAB.observe(model, prompts, images)


@pytest.mark.parametrize(
    ("value", "initial", "counterfactual"),
    [
        (None, 192, 48),
        (48, 48, 48),
        ("16", 16, 16),
        (16.0, 16, 16),
        ({"initial": 64}, 64, 48),
        ({"counterfactual": 8}, 192, 8),
        ({"initial": 20, "counterfactual": 20}, 20, 20),
        (Images(9, 8), 9, 8),
    ],
)
def test_either_form_of_the_key_is_read_and_what_is_left_out_has_its_default(value, initial, counterfactual):
    assert images_of(value) == Images(initial, counterfactual)
    assert images_of(images_of(value).as_config()) == images_of(value)


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "many", [8], MOST_IMAGES + 1, {"inital": 8}, {"initial": None}])
def test_what_is_no_number_of_images_is_refused(value):
    with pytest.raises(ConfigError, match="images"):
        images_of(value)


def test_equal_numbers_are_written_as_the_number_that_older_run_directories_have():
    assert images_of(48).as_config() == 48
    assert Images().as_config() == {"initial": 192, "counterfactual": 48}


def test_a_sweep_and_biasconnect_ask_for_each_prompt_once_with_its_number_of_images():
    expected = {prompt.text: 12 if prompt.source_axis else 20 for prompt in prompts_of(DATASET, "nurse")}
    images = Images(20, 12)
    swept, connected = Counting(), Counting()
    cells = asyncio.run(sweep(swept, DATASET, ["elm"], images))["elm"]
    assert [cell.prompt for cell in cells] == list(prompts_of(DATASET, "nurse"))
    estimate = asyncio.run(biasconnect(connected, "elm", "nurse", make_settings(DATASET), images))
    assert swept.asked == connected.asked == expected
    assert estimate.n_init.tolist() == [20, 20]
    assert estimate.n_after.tolist() == [[24, 24], [36, 36]]


def test_the_numbers_of_images_change_no_exact_value():
    settings = make_settings(DATASET)
    one, other = (asyncio.run(biasconnect(LAB, "elm", "nurse", settings, n)) for n in (48, Images(192, 48)))
    assert np.allclose(one.sensitivity, other.sensitivity)


def test_a_lab_is_asked_for_fresh_images_by_the_number_of_the_first():
    starts = []

    class Fresh:
        async def observe(self, model, prompts, images, start=0):
            starts.append((images, start))
            return await LAB.observe(model, prompts, images, start)

    first, second, *_ = prompts_of(DATASET, "nurse")
    asyncio.run(observe_each(Fresh(), "elm", [(first, 8), (second, 4)], start=FRESH))
    assert starts == [(4, FRESH), (8, FRESH)]


def test_fresh_images_are_beyond_all_that_a_prompt_can_have_and_begin_with_a_batch():
    assert FRESH >= MOST_IMAGES
    assert FRESH % BATCH == 0
