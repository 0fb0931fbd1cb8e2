"""How much of a prompt a pipeline reads: counted with its own tokenizers, before work starts and at work."""

import shutil
from pathlib import Path

import pytest

from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.actors.engines import PromptLength
from seesaw.results.errors import ConfigError

# diffusers warns of what it and torch are about to drop; that is theirs to mend
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

#: The tiny tokenizers have a token for each letter. CLIP adds two, the others one or none; T5 counts blanks too.
SHORT = "A photo of a nurse"
LETTERS = "photo of a nurse " + "ab " * 40  # more than 77 tokens of CLIP, fewer than 256 of T5
BOOK = "photo of a nurse " + "ab " * 300


def settings(root: Path, name: str, **more: object) -> dict[str, object]:
    given = {"repo": str(root / name), **more}
    return given | ({"prior": {"repo": f"{root / name}-prior"}} if name == "kandinsky-2.2" else {})


def length(root: Path, name: str, prompt: str, **more: object) -> PromptLength:
    [counted] = DiffusersEngine.prompt_lengths(settings(root, name, **more), [prompt])
    return counted


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("sd14", 77), ("playground-v2.5", 77), ("kandinsky-2.2", 77), ("sd35-large-turbo", 256), ("flux1-dev", 512),
        ("z-image-turbo", 512), ("qwen-image", 512),
    ],
)  # fmt: skip
def test_a_pipeline_reads_as_many_tokens_as_its_roomiest_text_encoder(root, name, limit):
    assert length(root, name, SHORT).limit == limit
    assert not length(root, name, SHORT).lost
    assert length(root, name, BOOK).lost.endswith("ab")


def test_the_words_that_are_lost_are_told_whole_from_the_first_that_is_cut():
    embedded = {"repo": "pictogram"}
    prompt = "A photo of a nurse, standing in a bright hospital corridor, highly detailed, solo working outdoors"
    [counted] = DiffusersEngine.prompt_lengths(embedded, [prompt])
    assert counted.limit == 32
    assert counted.used > 32
    assert prompt.endswith(counted.lost)
    assert counted.lost.split()[-2:] == ["working", "outdoors"]
    assert not counted.lost.startswith(("orking", "orridor"))


def test_exactly_as_many_tokens_as_are_read_lose_nothing_and_one_more_does(root):
    fits = "a" * 75  # one token each, and the two that mark beginning and end
    assert length(root, "sd14", fits) == PromptLength(77, 77)
    assert length(root, "sd14", fits + " b") == PromptLength(78, 77, lost="b")


def test_what_clip_cuts_t5_reads_and_so_no_word_is_lost(root):
    assert length(root, "flux1-dev", LETTERS).cut_by == ("tokenizer",)
    assert length(root, "sd35-large-turbo", LETTERS).cut_by == ("tokenizer", "tokenizer_2")
    assert not length(root, "sd35-large-turbo", LETTERS).lost


def test_without_t5_what_clip_cuts_is_lost(root):
    bare = length(root, "sd35-large-turbo", LETTERS, without=["text_encoder_3", "tokenizer_3"])
    assert (bare.limit, bool(bare.lost)) == (77, True)
    assert length(root, "sd35-large-turbo", LETTERS, without=["text_encoder_3"]).limit == 77


def test_the_call_of_a_config_says_how_much_t5_reads(root):
    asked = length(root, "flux1-dev", LETTERS, call={"max_sequence_length": 64})
    assert (asked.limit, bool(asked.lost)) == (77, True)


def test_a_negative_prompt_that_is_too_long_is_refused_like_any_other(root):
    with pytest.raises(ConfigError, match=r"settings.negative_prompt: a prompt of \d+ tokens is longer than the 77"):
        length(root, "sd14", SHORT, negative_prompt=LETTERS)
    with pytest.raises(ConfigError, match=r"settings.call.prompt_2: a prompt"):
        length(root, "flux1-dev", SHORT, call={"prompt_2": BOOK})
    assert not length(root, "sd14", SHORT, negative_prompt=LETTERS, truncate=True).lost


def test_a_prompt_is_cut_only_on_purpose_and_then_its_identity_says_so(root):
    assert length(root, "sd14", LETTERS, truncate=True).is_cut_on_purpose
    plain = settings(root, "sd14")
    assert DiffusersEngine.identity({**plain, "truncate": False}) == DiffusersEngine.identity(plain)
    assert DiffusersEngine.identity({**plain, "truncate": True}) == {
        **DiffusersEngine.identity(plain),
        "truncate": True,
    }


def test_it_is_not_told_where_the_tokenizers_are_not(root, tmp_path):
    assert DiffusersEngine.prompt_lengths({"repo": "nobody/nothing", "revision": "v1"}, [SHORT]) is None
    shutil.copytree(root / "sd14", tmp_path / "broken")
    (tmp_path / "broken/tokenizer/tokenizer.json").write_text("{")
    assert DiffusersEngine.prompt_lengths({"repo": str(tmp_path / "broken")}, [SHORT]) is None


@pytest.fixture(scope="module")
def engine(root) -> DiffusersEngine:
    return DiffusersEngine(settings(root, "sd14", size=256, steps=1))


def test_an_engine_at_work_refuses_what_it_would_cut_by_the_rules_and_without_them(engine):
    for rules in (engine._tokenizers, ()):
        engine._tokenizers = rules
        for _ in range(2):  # the second time the pipeline has encoded it already
            with pytest.raises(ValueError, match=r"words at its end were lost|lost would be 'ab"):
                engine.generate(LETTERS, [1])
        assert len(engine.generate(SHORT, [1])) == 1


def test_an_engine_told_to_cut_cuts(root, engine):
    cutting = DiffusersEngine(settings(root, "sd14", size=256, steps=1, truncate=True))
    assert len(cutting.generate(LETTERS, [1])) == 1


def test_what_only_one_of_several_encoders_cuts_is_made(root):
    sd3 = DiffusersEngine(settings(root, "sd35-large-turbo", size=256, steps=1, guidance=0.0))
    assert len(sd3.generate(LETTERS, [1])) == 1
    with pytest.raises(ValueError, match="256"):
        sd3.generate(BOOK, [1])
