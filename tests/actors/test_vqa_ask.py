"""The order of asking, and an actor whose engine dies: engines here are made up."""

import subprocess
import sys
from pathlib import Path

import pytest

from seesaw.actors.engine_errors import EngineError
from seesaw.actors.engines import VQA_ENGINES, Reply, VQAQuestion
from seesaw.actors.plugins import find_plugin
from seesaw.actors.process import ENGINE_DIED
from seesaw.actors.vqa import PERSON, AnswerBatch, VQAActor, VQAQuestionnaire, ask_images
from seesaw.results.errors import ConfigError
from seesaw.results.store.store import Store

PERSON_QUESTION = VQAQuestion("a person?", ("yes", "no"))
QUESTIONNAIRE = VQAQuestionnaire(
    PERSON_QUESTION, (VQAQuestion("old?", ("yes", "no")), VQAQuestion("sad?", ("no", "yes")))
)


class Parrot:
    """Says yes to everything, but `no` of a person in an image `empty`; remembers its calls."""

    def __init__(self, settings=None):
        self.calls = []
        self.settings = settings or {}

    def check(self, questions):
        self.checked = questions

    def ask(self, requests):
        self.calls.append(requests)
        if "raises" in self.settings:
            raise self.settings["raises"]
        return [
            [Reply("no" if image == b"empty" and q == PERSON_QUESTION else "yes", (0.5, 0.5), 1.0) for q in questions]
            for image, questions in requests
        ]


class EngineDeadError(Exception):
    pass


class Dying(Parrot):
    """Dies as `settings["death"]` says."""

    def ask(self, requests):
        if self.settings["death"] == "engine":
            raise EngineDeadError("EngineCore encountered an issue")
        if self.settings["death"] == "device":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.alive = False
        raise KeyError("half done")


def test_the_person_question_is_one_call_and_the_rest_of_the_people_another():
    parrot = Parrot()
    answers = ask_images(parrot, [b"a", b"empty", b"b"], QUESTIONNAIRE)
    assert [[index for index, _ in image] for image in answers] == [[PERSON, 0, 1], [PERSON], [PERSON, 0, 1]]
    assert [[image for image, _ in call] for call in parrot.calls] == [[b"a", b"empty", b"b"], [b"a", b"b"]]
    assert [{questions for _, questions in call} for call in parrot.calls] == [
        {(PERSON_QUESTION,)},
        {QUESTIONNAIRE.questions},
    ]


def test_nobody_anywhere_is_one_call():
    parrot = Parrot()
    assert [len(image) for image in ask_images(parrot, [b"empty"] * 3, QUESTIONNAIRE)] == [1, 1, 1]
    assert len(parrot.calls) == 1


def test_without_a_person_question_all_images_are_asked_all():
    parrot = Parrot()
    answers = ask_images(parrot, [b"empty", b"a"], VQAQuestionnaire(None, QUESTIONNAIRE.questions))
    assert [[index for index, _ in image] for image in answers] == [[0, 1], [0, 1]]
    assert ask_images(parrot, [], QUESTIONNAIRE) == []
    assert len(parrot.calls) == 1


def actor(engine: str, settings: dict, store="unused") -> VQAActor:
    return VQAActor("vlm-1", find_plugin(engine, VQA_ENGINES), settings, QUESTIONNAIRE, str(store), 1, "")


HERE = f"{__name__}:" if __name__ in sys.modules else "test_vqa_ask:"


def test_the_actor_checks_its_questionnaire_and_tells_ordinary_errors_as_text():
    vqa = actor(f"{HERE}Parrot", {})
    assert vqa.load()["load_seconds"] >= 0
    assert vqa.engine.checked == QUESTIONNAIRE.all
    vqa.engine.settings["raises"] = OSError("cannot identify image file")
    with pytest.raises(EngineError, match="cannot identify") as raised:
        vqa.ask([b"a"])
    assert raised.value.kind == "OSError"
    with pytest.raises(ConfigError, match="unknown"):
        actor("vlm", {}).load()


def test_answers_are_committed_and_the_first_commit_is_what_counts(tmp_path):
    Store(tmp_path).probe()
    vqa = actor(f"{HERE}Parrot", {}, tmp_path)
    vqa.load()
    shard = f"answers/parrot-{'0' * 16}/{'1' * 32}-{'2' * 32}.parquet"
    batch = AnswerBatch(shard, "images/none.parquet", "parrot", ("k1", "k2"))
    answers = vqa.answer(batch, [b"a", b"empty"])
    assert answers.select(["image_key", "question", "answer"]).to_pylist() == [
        {"image_key": "k1", "question": "a person?", "answer": "yes"},
        {"image_key": "k1", "question": "old?", "answer": "yes"},
        {"image_key": "k1", "question": "sad?", "answer": "yes"},
        {"image_key": "k2", "question": "a person?", "answer": "no"},
    ]
    assert Store(tmp_path).read(shard).equals(answers)
    assert vqa.answer(batch, [b"empty", b"empty"]).equals(answers)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply("perhaps", (0.5, 0.5), 1.0), "answered 'perhaps' to 'a person"),
        (Reply("yes", (float("nan"), 1.0), 1.0), "do not sum to 1"),
        (Reply("yes", (1.0,), 1.0), "do not sum to 1"),
    ],
)
def test_what_is_no_answer_is_an_error_and_never_an_answer(reply, message):
    class Odd(Parrot):
        def ask(self, requests):
            return [[reply for _ in questions] for _, questions in requests]

    with pytest.raises(ValueError, match=message):
        ask_images(Odd(), [b"a"], QUESTIONNAIRE)


@pytest.mark.parametrize("death", ["engine", "device", "half done"])
def test_an_actor_whose_engine_died_ends_its_process(death, tmp_path):
    program = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import test_vqa_ask as t\n"
        "vqa = t.actor('test_vqa_ask:Dying', {'death': sys.argv[3]}); vqa.load()\n"
        "try:\n    vqa.ask([b'a'])\nfinally:\n    print('still here')"
    )
    here, root = str(Path(__file__).parent), str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", program, here, root, death], capture_output=True, text=True)
    assert done.returncode == ENGINE_DIED
    assert done.stdout == ""
    assert "the engine died" in done.stderr
