"""`study target --real PATH` before it starts: whose folder is whose, notes about files, and the kinds of tables."""

import asyncio
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seesaw.experiments.lab import Observations
from seesaw.results.errors import AnswersError, ConfigError
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
    """Its images show nothing; it remembers how many images it was asked for."""

    def __init__(self):
        self.asked = {}

    async def observe(self, model, prompts, images):
        for prompt in prompts:
            if model == "real":
                self.asked[prompt.subject] = images
        return [Observations(prompt, {}, asked=images, dropped=0) for prompt in prompts]


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


SHARES = "subject,axis,attribute,share\n" + "".join(
    f"{subject},gender,{word},0.5\n" for subject in CONFIG["subjects"] for word in ("male", "female")
)
ANSWERS = "model,subject,source_axis,source_value,image,axis,answer\n" + "".join(
    f"m,{subject},,,{image},gender,{word}\n"
    for subject in CONFIG["subjects"]
    for image, word in enumerate(("male", "female"))
)


@pytest.mark.parametrize("text", [SHARES, ANSWERS, "sep=;\n" + SHARES.replace(",", ";")])
@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.txt", "a", "a.tsv"])
def test_a_table_is_told_apart_by_its_header_whatever_its_name(experiment, name, text):
    Path(name).write_text(text)
    real = TargetJob(experiment, name).identity()["real"]
    assert real == {subject: {"gender": [0.5, 0.5]} for subject in CONFIG["subjects"]}


def test_answers_that_are_zipped_or_have_excels_first_line_are_answers(experiment):
    Path("a.csv").write_bytes(gzip.compress(ANSWERS.encode()))
    Path("b.csv").write_text("sep=;\n" + ANSWERS.replace(",", ";"))
    identities = [TargetJob(experiment, name).identity()["real"] for name in ("a.csv", "b.csv")]
    assert identities[0] == identities[1] == {subject: {"gender": [0.5, 0.5]} for subject in CONFIG["subjects"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", SHARES.replace(",", "\t").encode(), "columns are separated by tabs"),
        ("a.csv", ANSWERS.replace(",", "\t").encode(), "columns are separated by tabs"),
        ("a.csv", SHARES.replace(",", ";").encode(), "columns are separated by ';'"),
        ("a.json", b'{"nurse": {"gender": {"male": 0.1}}}', "is JSON"),
        ("a.csv", b'[{"subject": "nurse"}]', "is JSON"),
        ("a.csv", SHARES.encode("utf-16"), "UTF-16.*save it as CSV UTF-8"),
        ("a.csv", ANSWERS.replace("answer", "anwser").encode(), "no column 'answer'; did you mean 'anwser'"),
        ("a.txt", SHARES.replace("share", "shar").encode(), "unknown column 'shar'; did you mean 'share'"),
    ],
)
def test_a_file_that_is_no_table_of_commas_is_named_as_what_it_is(experiment, name, content, message):
    Path(name).write_bytes(content)
    with pytest.raises((AnswersError, ConfigError), match=message):
        TargetJob(experiment, name)
