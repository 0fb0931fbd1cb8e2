"""Real vLLM in this process, with the embedded VLM: its two ways of answering and plain transformers agree."""

import io
import json
import os
import random
import subprocess
import sys

import pytest
from PIL import Image

from seesaw.actors.engines import VQA_ENGINES, VQAQuestion
from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS
from seesaw.actors.pictogram.draw import draw
from seesaw.actors.plugins import find_plugin
from seesaw.actors.vqa import PERSON, VQAQuestionnaire, ask_images
from seesaw.results.errors import ConfigError, EnvironmentFault

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", exc_type=ImportError)
# vLLM, torch and transformers warn of their own doings while they load.
pytestmark = [
    pytest.mark.slow,  # loads the embedded VLM into vLLM and transformers
    pytest.mark.filterwarnings("ignore"),
]

SETTINGS = {"model": "pictogram"}
PERSON_QUESTION = VQAQuestion("Is there a person in the image (yes or no)?", ("yes", "no"))
#: The paper's appendix, to the letter, and one question with 26 choices.
QUESTIONS = {
    "gender": VQAQuestion("What is the gender (male, female) of the person?", AXES["gender"]),
    "age": VQAQuestion("What is the age group (young, middle, old) of the person?", AXES["age"]),
    "ethnicity": VQAQuestion(
        "What is the ethnicity (white, black, asian, south asian, middle eastern, hispanic) of the person?",
        AXES["ethnicity"],
    ),
    "bodytype": VQAQuestion("What is the body type (fat, slim, muscular) of the person?", AXES["bodytype"]),
    "environment": VQAQuestion("What is the environment (indoor, outdoor) of the person?", AXES["environment"]),
    "clothing": VQAQuestion("What is the attire (formal, informal) of the person?", AXES["clothing"]),
    "emotion": VQAQuestion("What is the emotion (happy, sad, serious, tired) of the person?", AXES["emotion"]),
    "blind": VQAQuestion("Is this person blind (yes or no)?", ("yes", "no")),
    "hearing aid": VQAQuestion("Is this person wearing a hearing aid (yes or no)?", ("yes", "no")),
    "wheelchair": VQAQuestion("Is this person on a wheelchair (yes or no)?", ("yes", "no")),
    "occupation": VQAQuestion("What is the occupation of the person?", OCCUPATIONS),
}
QUESTIONNAIRE = VQAQuestionnaire(PERSON_QUESTION, tuple(QUESTIONS.values()))
IMAGES = 240
COMPARED = 104


def picture(number):
    """An image and its truth by question (None: nobody in it), the same for the same number."""
    rng = random.Random(f"vqa-test/{number}")
    state = {axis: rng.choice(values) for axis, values in AXES.items()} if number % 8 else None
    occupation, file = rng.choice(OCCUPATIONS), io.BytesIO()
    draw(state, occupation, rng.getrandbits(60)).save(file, "PNG")
    if state is None:
        return file.getvalue(), None
    disabilities = {
        name: "yes" if state["disability"] == name else "no" for name in ("blind", "hearing aid", "wheelchair")
    }
    return file.getvalue(), {**state, **disabilities, "occupation": occupation}


def batch(first, n=8):
    return [picture(number)[0] for number in range(first, first + n)]


def plain(answers):
    """Answers as JSON can hold them, floats to the last bit."""
    return [
        [[index, reply.answer, [p.hex() for p in reply.probabilities], reply.mass.hex()] for index, reply in image]
        for image in answers
    ]


def ask_all(engine, images, questionnaire=QUESTIONNAIRE):
    return [a for i in range(0, len(images), 8) for a in ask_images(engine, images[i : i + 8], questionnaire)]


@pytest.fixture(scope="module")
def vllm():
    """A maker of engines. A second one in a process loads in half a second; none may be collected before the last."""
    kept = []

    def make(**settings):
        kept.append(find_plugin("vllm", VQA_ENGINES).load()({**SETTINGS, **settings}))
        return kept[-1]

    yield make
    kept.clear()


@pytest.fixture(scope="module")
def score(vllm):
    engine = vllm()
    engine.check(QUESTIONNAIRE.all)
    return engine


@pytest.fixture(scope="module")
def constrain(vllm, score):
    engine = vllm(answers="constrain")
    engine.check(QUESTIONNAIRE.all)
    return engine


@pytest.fixture(scope="module")
def transformers():
    engine = find_plugin("transformers", VQA_ENGINES).load()(SETTINGS)
    engine.check(QUESTIONNAIRE.all)
    return engine


@pytest.fixture(scope="module")
def truth():
    return [picture(number) for number in range(IMAGES)]


@pytest.fixture(scope="module")
def scored(score, truth):
    return ask_all(score, [image for image, _ in truth])


def test_every_question_is_read_right_on_freshly_drawn_images(scored, truth):
    right, asked = dict.fromkeys([PERSON, *QUESTIONS], 0), dict.fromkeys([PERSON, *QUESTIONS], 0)
    for answers, (_, state) in zip(scored, truth, strict=True):
        for index, reply in answers:
            question = PERSON if index == PERSON else list(QUESTIONS)[index]
            expected = ("no" if state is None else "yes") if index == PERSON else state and state[question]
            asked[question] += 1
            right[question] += reply.answer == expected
    assert all(asked.values())
    assert {q: right[q] / asked[q] for q in asked if right[q] < 0.995 * asked[q]} == {}


def test_after_no_person_an_image_is_asked_nothing_more(scored, truth):
    for answers, (_, state) in zip(scored, truth, strict=True):
        assert [index for index, _ in answers] == [PERSON, *(range(len(QUESTIONS)) if state else ())]


def test_answers_are_choices_and_probabilities_sum_to_one(scored):
    for answers in scored:
        for index, reply in answers:
            choices = QUESTIONNAIRE.all[index + 1].choices
            assert reply.answer == choices[max(range(len(choices)), key=reply.probabilities.__getitem__)]
            assert sum(reply.probabilities) == pytest.approx(1, abs=1e-12)
            assert 0 < reply.mass <= 1


@pytest.mark.parametrize("other", ["constrain", "transformers"])
def test_the_ways_of_answering_agree(other, request, scored, truth):
    answers = ask_all(request.getfixturevalue(other), [image for image, _ in truth[:COMPARED]])
    for mine, theirs in zip(scored[:COMPARED], answers, strict=True):
        assert [(i, r.answer) for i, r in mine] == [(i, r.answer) for i, r in theirs]
        for (_, a), (_, b) in zip(mine, theirs, strict=True):
            assert a.probabilities == pytest.approx(b.probabilities, abs=1e-3)
            assert a.mass == pytest.approx(b.mass, abs=1e-3)


def test_all_engines_make_the_same_prompt(score, transformers):
    assert score.chat == transformers.chat
    for question in QUESTIONNAIRE.all:
        assert score._plan(question).coded == transformers._code(question)


def test_a_batch_answers_bit_for_bit_the_same_in_a_fresh_engine(score, vllm):
    """A run that was interrupted goes on in another process, which never saw the batches before."""
    a, b, c = batch(1000), batch(1008), batch(1016)
    for before in (a, c, b[:5], c):
        ask_images(score, before, QUESTIONNAIRE)
    here = plain(ask_images(score, b, QUESTIONNAIRE))
    assert plain(ask_images(score, b, QUESTIONNAIRE)) == here
    assert plain(ask_images(vllm(), b, QUESTIONNAIRE)) == here
    program = "import sys; sys.path[:0] = sys.argv[1:]; import test_vqa_engines as t; t.answer_alone(1008)"
    alone = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, os.path.dirname(__file__), os.getcwd()],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert json.loads(alone.stdout.splitlines()[-1]) == here


def answer_alone(first):
    """What the test above runs in a process of its own."""
    engine = find_plugin("vllm", VQA_ENGINES).load()(SETTINGS)
    print("\n" + json.dumps(plain(ask_images(engine, batch(first), QUESTIONNAIRE))))


def test_an_image_s_questions_share_its_prefix_and_a_new_call_starts_from_nothing(vllm):
    """With a prompt longer than a block of vLLM's cache, all but its last tokens are computed once an image."""
    engine = vllm(prefix="Is this person blind (yes or no)? " * 8)
    images = batch(2000, 4)
    engine.ask([(image, QUESTIONNAIRE.all) for image in images])
    first = engine.metrics()
    assert 0.5 < first["hit_rate"] < 1
    assert first["cached_tokens"] >= 4 * 11 * 2 * first["cache_block"]  # 4 images, 11 of 12 questions, 2 blocks each
    engine.ask([(image, QUESTIONNAIRE.all) for image in images])
    assert engine.metrics()["cached_tokens"] == 2 * first["cached_tokens"]  # not a token from the call before
    engine.ask([(image, (PERSON_QUESTION,)) for image in images])
    assert engine.metrics()["cached_tokens"] == 2 * first["cached_tokens"]
    engine.ask([(image, QUESTIONNAIRE.questions) for image in images])  # further questions about the same images do
    assert engine.metrics()["cached_tokens"] == pytest.approx(3 * first["cached_tokens"], rel=0.1)


def test_choices_that_share_their_first_tokens_are_told_apart(score, transformers, truth):
    """The engines' weights are the chain rule's, and the answers those of the whole choices' log-likelihoods."""
    question = VQAQuestion(
        QUESTIONS["ethnicity"].text,
        ("south asian", "south african", "south", "white", "middle", "middle eastern", "black"),
    )
    coded = score._plan(question).coded
    assert len(coded.tree.branchings) > 2
    images = [
        image for image, state in truth if state and state["ethnicity"] in ("south asian", "middle eastern", "white")
    ][:12]
    for image, [by_vllm], [by_transformers] in zip(
        images,
        score.ask([(i, [question]) for i in images]),
        transformers.ask([(i, [question]) for i in images]),
        strict=True,
    ):
        assert by_vllm.probabilities == pytest.approx(by_transformers.probabilities, abs=1e-3)
        whole = {}
        for choice, tokens in zip(question.choices, coded.sequences, strict=True):
            rows = [(coded.text, tokens[:n], (tokens[n],)) for n in range(len(tokens))]
            steps = transformers._logprobs(Image.open(io.BytesIO(image)).convert("RGB"), rows)
            whole[choice] = sum(step[token] for step, token in zip(steps, tokens, strict=True))
        longest = [
            c for c in question.choices if c not in ("south", "middle")
        ]  # a likelihood of a beginning says nothing
        likeliest = max(longest, key=whole.__getitem__)
        assert by_vllm.answer == likeliest
        assert by_vllm.probabilities[question.choices.index(likeliest)] > 0.95


def test_choices_in_either_case_are_one_choice(score, vllm, truth):
    engine = vllm(either_case=True)
    images = [image for image, state in truth if state][:4]
    for [one], [both] in zip(
        score.ask([(i, [QUESTIONS["gender"]]) for i in images]),
        engine.ask([(i, [QUESTIONS["gender"]]) for i in images]),
        strict=True,
    ):
        assert one.answer == both.answer
        assert both.mass >= one.mass - 1e-9
        assert len(both.probabilities) == 2


def test_a_prompt_that_does_not_fit_is_refused_before_work_starts(score):
    long = VQAQuestion("Is this person blind (yes or no)? " * 60, ("yes", "no"))
    with pytest.raises(EnvironmentFault, match=r"max_model_len .* is 512"):
        score.check([long])


def test_equal_choices_are_refused(score):
    with pytest.raises(EnvironmentFault, match="cannot tell the choices"):
        score.check([VQAQuestion("Is it?", ("yes", "yes"))])


def test_an_unreadable_image_is_an_error_and_leaves_the_engine_alive(score):
    with pytest.raises(OSError, match="cannot identify image"):
        score.ask([(b"not an image", [PERSON_QUESTION])])
    assert score.alive
    assert len(score.ask([(batch(0, 1)[0], [PERSON_QUESTION])])[0]) == 1


def test_a_failure_amid_requests_marks_the_engine_dead(vllm):
    engine = vllm()

    def broken():
        raise RuntimeError("device lost")

    engine.llm.llm_engine.step = broken
    with pytest.raises(RuntimeError, match="device lost"):
        engine.ask([(batch(0, 1)[0], [PERSON_QUESTION])])
    assert not engine.alive
    with pytest.raises(RuntimeError, match="died in an earlier call"):
        engine.ask([(batch(0, 1)[0], [PERSON_QUESTION])])


def test_transformers_has_no_constrained_decoding():
    with pytest.raises(ConfigError, match="answers: score"):
        find_plugin("transformers", VQA_ENGINES).load()({**SETTINGS, "answers": "constrain"})
