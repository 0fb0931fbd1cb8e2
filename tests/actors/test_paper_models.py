"""The shipped models: tiny pipelines of their classes, loaded through their own YAML with the path alone replaced.

Their weights are nobody's; class, components, precision, size, steps and guidance are what a sweep uses.
"""

import functools
import io
import re
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.runner.config import CONFIGS, ModelConfig, load_named
from tests.actors import tiny

# diffusers warns of what it and torch are about to drop; that is theirs to mend
pytestmark = [
    pytest.mark.slow,  # builds a small pipeline of every class that the paper's models use
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

#: Class and call of each model. Source: the paper's section "Models", and for what it leaves to "the default settings
#: provided for these models on Huggingface" their model cards, and the pipelines' defaults where those say nothing.
PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    "sd14": ("StableDiffusionPipeline", {"height": 512, "num_inference_steps": 50, "guidance_scale": 7.5}),
    "sd35-large-turbo": (
        "StableDiffusion3Pipeline",
        {"height": 1024, "num_inference_steps": 4, "guidance_scale": 0.0, "negative_prompt": None},
    ),
    "flux1-dev": ("FluxPipeline", {"height": 1024, "num_inference_steps": 30, "guidance_scale": 3.5}),
    "playground-v2.5": (
        "StableDiffusionXLPipeline",
        {"height": 1024, "num_inference_steps": 50, "guidance_scale": 3.0},
    ),
    "kandinsky-2.2": (
        "KandinskyV22CombinedPipeline",
        {
            "height": 768,
            "num_inference_steps": 100,
            "guidance_scale": 4.0,
            "prior_guidance_scale": 1.0,
            "negative_prompt": "low quality, bad quality",
        },
    ),
}
PROMPT = "A photo of a nurse"


def settings_of(name: str, root: Path, **other: object) -> dict[str, Any]:
    """The settings of configs/models/NAME.yaml with local paths in place of repositories, and `other`."""
    settings = load_named(ModelConfig, "models", name, []).settings
    if "prior" in settings:
        settings["prior"] = {**settings["prior"], "repo": f"{root / name}-prior"}
    return {**settings, "repo": str(root / name), **other}


def small(name: str, root: Path) -> dict[str, Any]:
    """Fast, and precise enough to tell the noise of batching from an image that depends on its neighbours."""
    return settings_of(name, root, size=256, steps=3, dtype="float32")


def pixels(image: Any) -> np.ndarray:
    assert isinstance(image, (bytes, Image.Image)), image
    return np.asarray(Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image, np.int16)


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, dict[str, Any]]]:
    """Every call of a pipeline: its class and its arguments. The real pipeline runs all the same."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def watch(name: str) -> None:
        real = getattr(diffusers, name).__call__

        @functools.wraps(real)
        def call(self, **arguments):
            seen.append((name, arguments))
            return real(self, **arguments)

        monkeypatch.setattr(getattr(diffusers, name), "__call__", call)

    for kind in (*(kind for kind, _ in PAPER.values()), "QwenImagePipeline", "ZImagePipeline"):
        watch(kind)
    return seen


@pytest.mark.parametrize("name", PAPER)
def test_a_models_yaml_calls_the_class_of_the_paper_with_the_settings_of_the_paper(name, root, calls):
    kind, arguments = PAPER[name]
    [image] = DiffusersEngine(settings_of(name, root)).generate(PROMPT, [7])
    assert pixels(image).shape == (arguments["height"], arguments["height"], 3)
    assert pixels(image).std() > 1
    called, given = calls[-1]  # the first was the trial image
    assert called == kind
    assert given["prompt"] == PROMPT
    assert {key: given.get(key) for key in arguments} == arguments
    assert given["width"] == given["height"]


def test_playground_keeps_the_scheduler_of_its_repository(root, monkeypatch):
    steps = []
    real = diffusers.EDMDPMSolverMultistepScheduler.step
    monkeypatch.setattr(
        diffusers.EDMDPMSolverMultistepScheduler, "step", lambda *args, **more: steps.append(1) or real(*args, **more)
    )
    DiffusersEngine(small("playground-v2.5", root)).generate(PROMPT, [7])
    assert len(steps) == 6  # three for the trial image


@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_an_image_is_what_the_pipelines_own_call_makes_of_its_seed(name, root, calls):
    made = DiffusersEngine(small(name, root)).generate(PROMPT, [6, 7])[1]
    _, given = calls[-1]
    for key in ("num_images_per_prompt", "output_type"):
        given.pop(key)
    own = tiny.load(root / name)(**{**given, "generator": torch.Generator().manual_seed(7)}).images[0]
    assert np.abs(pixels(made) - pixels(own)).max() <= 2


@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_an_image_depends_on_its_prompt_and_its_own_seed_alone(name, root):
    engine = DiffusersEngine(small(name, root))
    batch = [pixels(image) for image in engine.generate(PROMPT, [5, 6, 7])]
    for one, other in ((0, 1), (1, 2)):
        assert np.abs(batch[one] - batch[other]).max() > 2
    alone = pixels(engine.generate(PROMPT, [6])[0])
    assert np.abs(alone - batch[1]).max() <= 2  # the numerical noise of batching
    other = [pixels(image) for image in engine.generate("an old librarian", [5, 6, 7])]
    assert any(np.abs(a - b).max() > 0 for a, b in zip(batch, other, strict=True))
    # what the engine remembers of a prompt is as it was: no pipeline writes into it
    again = [pixels(image) for image in engine.generate(PROMPT, [5, 6, 7])]
    assert all(np.array_equal(a, b) for a, b in zip(batch, again, strict=True))


def test_every_model_from_the_hub_is_pinned_to_a_commit():
    for path in sorted((CONFIGS / "models").glob("*.yaml")):
        model = load_named(ModelConfig, "models", path.stem, [])
        sources = [model.settings, *([model.settings["prior"]] if "prior" in model.settings else [])]
        for source in sources if model.engine == "diffusers" else []:
            if "/" in source["repo"]:
                assert re.fullmatch("[0-9a-f]{40}", source["revision"]), path.name
