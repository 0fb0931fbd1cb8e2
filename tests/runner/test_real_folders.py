"""`study target --real FOLDER` before it starts: whose folder is whose, and what a user is told of the files."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seesaw.results.errors import ConfigError
from seesaw.runner.display.events import Events, Note
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.target import TargetJob

CONFIG = {
    "name": "real",
    "models": [{"name": "simt", "engine": "simulated"}],
    "vqa": "simulated",
    "subjects": ["nurse", "computer programmer"],
    "axes": ["gender", "age"],
    "images": 4,
}


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("real.yaml").write_text(json.dumps(CONFIG))
    return load_experiment("real.yaml")


def photos(folder: str, numbers: range | list[int]) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    start = len(list(Path(folder).iterdir()))
    for place, number in enumerate(numbers, start):
        pixels = np.random.default_rng(number).integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"{folder}/{place}.png")


class NoModels:
    """Observes nothing, and remembers how many images it was asked for."""

    def __init__(self):
        self.asked = {}

    async def observe(self, model, prompts, images):
        for prompt in prompts:
            if model == "real":
                self.asked[prompt.subject] = images
        return []


def observed(experiment, real: str) -> tuple[dict[str, int], list[str]]:
    lab, notes = NoModels(), []
    events = Events(lambda event, _: notes.append(event))
    asyncio.run(TargetJob(experiment, real).observe(lab, events))
    return lab.asked, [event.message for event in notes if isinstance(event, Note)]


def test_all_images_are_asked_about_and_a_note_tells_copies_and_files_that_are_none(experiment):
    photos("real/Nurse", range(2))
    photos("real/Nurse/set", [0, 1, 2, 2])
    photos("real/computer-programmer", range(3))
    Path("real/Nurse/list.txt").write_text("0.png")
    Path("real/Nurse/set/page").write_text("<html>")
    asked, notes = observed(experiment, "real")
    assert asked == {"nurse": 6, "computer programmer": 3}
    assert notes == [
        "2 files of nurse/ are not looked at, being no images: list.txt, page",
        "3 files of nurse/ are copies of others, and each of them counts; delete them if not",
    ]


def test_a_folder_that_is_missing_is_named_with_those_that_are_there(experiment):
    photos("real/nurse", range(1))
    photos("real/computer programer", range(1))
    with pytest.raises(ConfigError) as missing:
        TargetJob(experiment, "real")
    assert str(missing.value) == (
        "'real' has no images of computer programmer; its folders are computer programer, nurse; did you mean "
        "'computer programer'? Rename it, add 'real/computer programmer/', or leave them out with subjects=[...]"
    )
    for number in range(30):
        photos(f"other/{number:02}", range(1))
    Path("other/nurse").mkdir()
    with pytest.raises(ConfigError, match=r"folders are 00, 01, .*, 09 and 20 more; rename a folder, add 'other/"):
        TargetJob(experiment, "other")
