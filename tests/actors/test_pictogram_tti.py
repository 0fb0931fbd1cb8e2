"""The trained pictogram pipeline that is shipped: what it is, and that it draws what its world says."""

import itertools

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from transformers import AutoTokenizer, CLIPTokenizer, Idefics3ForConditionalGeneration

from benchmarks.fidelity import NAMES, shares_of
from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS, read_prompt
from seesaw.actors.pictogram.train_tti import TTI, captions
from seesaw.actors.pictogram.train_vlm import VLM, Packed, answers
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import compose, prompts_of
from seesaw.runner.config import CONFIGS, ModelConfig, load_named

pytestmark = [
    pytest.mark.slow,  # draws hundreds of images with the embedded pipeline
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
IMAGES = 48


@pytest.fixture(scope="module")
def engine() -> DiffusersEngine:
    return DiffusersEngine(load_named(ModelConfig, "models", "pictogram-sd", []).settings)


@pytest.fixture(scope="module")
def read(engine):
    """Answers (n, 12) of the VLM to n images of a prompt; those that show no person have all the same columns."""
    vlm, packed = Idefics3ForConditionalGeneration.from_pretrained(VLM), Packed(AutoTokenizer.from_pretrained(VLM))

    def look(text: str, images: int = IMAGES) -> np.ndarray:
        made = [image for i in range(0, images, 8) for image in engine.generate(text, range(i, i + 8))]
        pixels = torch.from_numpy(np.stack([np.asarray(image) for image in made]).transpose(0, 3, 1, 2).copy())
        return answers(vlm, packed, pixels).numpy()

    return look


def test_it_is_an_ordinary_pipeline_of_at_most_15_mb():
    assert sum(path.stat().st_size for path in TTI.rglob("*") if path.is_file()) <= 15e6
    assert not [path for path in TTI.rglob("*") if path.suffix in (".bin", ".py", ".ckpt")]
    assert type(StableDiffusionPipeline.from_pretrained(TTI)).__name__ == "StableDiffusionPipeline"


def test_captions_say_what_they_state_and_their_words_are_those_of_the_dataset():
    made = captions(np.random.default_rng(1))
    seen = {
        caption for _, (subject, caption) in zip(range(4000), made, strict=False) if read_prompt(caption)[0] == subject
    }
    assert len(seen) > 2000
    dataset = load_dataset(CONFIGS / "datasets" / "occupation.yaml")
    tokenizer = CLIPTokenizer.from_pretrained(TTI / "tokenizer")
    words = {token for caption in seen for token in tokenizer.tokenize(caption)}
    pairs = [
        compose(dataset, "nurse", {a: x, b: y})
        for (a, xs), (b, ys) in itertools.combinations(AXES.items(), 2)
        for x in xs
        for y in ys
    ]
    singles = [prompt.text for subject in OCCUPATIONS for prompt in prompts_of(dataset, subject)]
    for text in singles + pairs:
        tokens = tokenizer.tokenize(text)
        assert set(tokens) <= words, text
        assert len(tokens) == len(text.replace("-", " - ").split()) <= 30  # a word is a token, and none is cut off


def test_an_image_is_the_same_again_and_nearly_the_same_alone(engine):
    text, seeds = "A photo of a nurse", list(range(8))
    batch = [np.asarray(image, np.int16) for image in engine.generate(text, seeds)]
    again = [np.asarray(image, np.int16) for image in engine.generate(text, seeds)]
    assert all((one == two).all() for one, two in zip(batch, again, strict=True))
    alone = [np.asarray(engine.generate(text, [seed])[0], np.int16) for seed in seeds]
    assert max(np.abs(one - two).max() for one, two in zip(batch, alone, strict=True)) <= 3


def test_it_draws_people_of_the_occupation_and_shifts_its_marginals_as_the_world_does(read):
    world, dataset = WORLDS["alder"], load_dataset(CONFIGS / "datasets" / "occupation.yaml")
    persons, right, total, shifts, truth, kept = 0, 0, 0, [], [], []
    for occupation, stated in (
        ("nurse", {"age": "old"}),
        ("farmer", {"disability": "wheelchair"}),
        ("chef", {"emotion": "sad"}),
        ("lawyer", {"bodytype": "slim", "age": "young"}),
    ):
        start, text = compose(dataset, occupation, {}), compose(dataset, occupation, stated)
        found = {}
        for prompt in (start, text):
            seen = read(prompt)
            shown = seen[seen[:, 0] == 0]
            total, persons = total + len(seen), persons + len(shown)
            right += int((shown[:, NAMES.index("occupation")] == OCCUPATIONS.index(occupation)).sum())
            found[prompt] = shares_of(shown)
        for axis in AXES:
            shifts += list(found[text][axis] - found[start][axis])
            truth += list(world.shares(text)[axis] - world.shares(start)[axis])
        for axis, value in stated.items():
            at = AXES[axis].index(value)
            kept.append(found[text][axis][at] / world.shares(text)[axis][at])
    assert persons / total >= 0.93  # 98 in the world
    assert right / persons >= 0.98
    assert min(kept) >= 0.7
    assert np.mean(kept) >= 0.85
    assert np.corrcoef(shifts, truth)[0, 1] >= 0.8
