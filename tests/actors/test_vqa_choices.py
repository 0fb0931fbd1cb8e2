"""Choices as tokens: the arithmetic, the prompt around them, the grammar's mask over them, and the settings."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest

from seesaw.actors.chat_prompt import ChatPrompt, chat_prompt, code_question
from seesaw.actors.choice_tree import choice_tree, reply
from seesaw.actors.engines import VQAQuestion
from seesaw.actors.vlm_settings import VLMSettings, vlm_identity
from seesaw.results.errors import ConfigError, EnvironmentFault


def language(seed, vocabulary=6):
    """A random language: log-probabilities of the next token after any prefix."""

    def after(prefix):
        rng = random.Random(f"{seed}/{prefix}")
        weights = [rng.expovariate(1) for _ in range(vocabulary)]
        return {token: math.log(w / sum(weights)) for token, w in enumerate(weights)}

    return after


@pytest.mark.parametrize("seed", range(50))
def test_weights_are_the_chain_rule_s_over_the_tokens_that_tell_choices_apart(seed):
    rng = random.Random(seed)
    sequences = list({tuple(rng.randrange(3) for _ in range(rng.randint(1, 4))) for _ in range(6)})
    after, tree = language(seed), choice_tree(sequences, range(len(sequences)))
    question = VQAQuestion("?", tuple(map(str, range(len(sequences)))))
    found = reply(question, tree, [after(b.prefix) for b in tree.branchings])

    def weight(sequence):
        total = 1.0
        for n in range(len(sequence) + 1):
            rivals = [s for s in sequences if s[:n] == sequence[:n]]
            nexts = {s[n] for s in rivals if len(s) > n}
            ends = any(len(s) == n for s in rivals)
            if n and len(nexts) + ends < 2:
                continue
            chance = {t: math.exp(after(sequence[:n])[t]) for t in nexts}
            total *= chance[sequence[n]] if len(sequence) > n else 1 - sum(chance.values())
        return total

    weights = [weight(s) for s in sequences]
    assert found.mass == pytest.approx(sum(weights))
    assert found.probabilities == pytest.approx([w / sum(weights) for w in weights])
    assert found.answer == question.choices[weights.index(max(weights))]


def test_distinct_first_tokens_need_one_question_to_the_model():
    assert len(choice_tree([(1, 9), (2, 9, 9), (3,)], range(3)).branchings) == 1


def test_tokens_that_all_choices_share_are_not_asked():
    (root, fork) = choice_tree([(7, 7, 1), (7, 7, 2)], range(2)).branchings
    assert (root.prefix, root.tokens, fork.prefix, fork.tokens) == ((), (7,), (7, 7), (1, 2))


def test_spellings_of_one_choice_add_up():
    tree = choice_tree([(1,), (2,), (3,)], (0, 1, 0))
    found = reply(VQAQuestion("?", ("a", "b")), tree, [{1: math.log(0.2), 2: math.log(0.3), 3: math.log(0.25)}])
    assert found.answer == "a"
    assert found.probabilities == pytest.approx((0.6, 0.4))


def test_improbable_choices_still_have_probabilities():
    found = reply(VQAQuestion("?", ("a", "b")), choice_tree([(1,), (2,)], range(2)), [{1: -2000.0, 2: -2001.0}])
    assert found.probabilities == pytest.approx((1 / (1 + math.exp(-1)), 1 / (1 + math.e)))
    assert found.mass == 0


def test_nan_never_becomes_an_answer():
    tree = choice_tree([(1,), (2,)], range(2))
    for broken in ({1: math.nan, 2: -1.0}, {1: -1.0, 2: math.nan}, {1: -math.inf, 2: -math.inf}):
        with pytest.raises(FloatingPointError):
            reply(VQAQuestion("?", ("a", "b")), tree, [broken])


def idefics(messages, generation):
    """The template of Idefics3 and SmolVLM, in short."""
    text = "<|im_start|>"
    for message in messages:
        parts = "".join("<image>" if p["type"] == "image" else p["text"] for p in message["content"])
        text += (
            f"{message['role'].capitalize()}:{'' if parts.startswith('<image>') else ' '}{parts}<end_of_utterance>\n"
        )
    return text + ("Assistant:" if generation else "")


def qwen(messages, generation):
    text = "".join(
        f"<|im_start|>{m['role']}\n{''.join(p.get('text', '<image>') for p in m['content'])}<|im_end|>\n"
        for m in messages
    )
    return text + ("<|im_start|>assistant\n" if generation else "")


@pytest.mark.parametrize(("render", "lead"), [(idefics, " "), (qwen, "")])
def test_the_chat_template_says_whether_an_answer_begins_with_a_space(render, lead):
    settings = VLMSettings.read({"model": "some/vlm", "system": "Be brief.", "suffix": "\nOne word."})
    chat = chat_prompt(render, {"type": "image"}, settings)
    assert chat.lead == lead
    assert "Be brief." in chat.head
    assert chat.head.endswith("<image>")  # the image first
    assert chat.tail.startswith("\nOne word.")
    forced = VLMSettings.read({"model": "some/vlm", "leading_space": lead == ""})
    assert chat_prompt(render, {"type": "image"}, forced).lead != lead


def test_a_template_that_loses_the_question_is_refused():
    with pytest.raises(EnvironmentFault, match="leaves out the question"):
        chat_prompt(lambda *_: "<image>", {"type": "image"}, VLMSettings.read({"model": "some/vlm"}))


def test_a_choice_that_would_merge_with_the_prompt_is_tokenized_alone():
    merges = {"a b": [5], " b": [6], "a ": [1, 2], "a": [1]}

    def encode(text, whole):
        return merges[text]

    question = VQAQuestion("a", (" b",))
    coded = code_question(question, ChatPrompt("", "", ""), encode, VLMSettings.read({"model": "some/vlm"}))
    assert coded.sequences == ((6,),)


def word_tokenizer(words):
    """A byte-level tokenizer that knows `words` whole."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: n for n, token in enumerate(["<pad>", "<s>", "</s>", *alphabet, *words])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


@pytest.mark.filterwarnings("ignore")
def test_a_choice_that_the_grammar_masks_is_refused_and_the_mend_is_named():
    """xgrammar 0.2.8 and the tokens ph, pher, philosopher: the choice `philosopher` may only begin with `ph`."""
    pytest.importorskip("vllm", exc_type=ImportError)
    from seesaw.actors.choice_mask import refuse_masked_choices, vllm_grammar_backend

    def refuse(words):
        tokenizer = word_tokenizer(words)
        config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(backend="xgrammar", disable_any_whitespace=False),
            model_config=SimpleNamespace(
                hf_config=SimpleNamespace(model_type="llama"), get_vocab_size=lambda: len(tokenizer)
            ),
            speculative_config=None,
        )

        question = VQAQuestion("Who is it?", ("nurse", "philosopher"))
        chat, settings = ChatPrompt("", "", ""), VLMSettings.read({"model": "some/vlm"})
        coded = code_question(question, chat, lambda text, _: tokenizer.encode(text), settings)
        refuse_masked_choices(vllm_grammar_backend(config, tokenizer), [coded], tokenizer)

    refuse(["philosopher"])
    with pytest.raises(EnvironmentFault, match=r"Who is it\?.*'philosopher'.*forbids token \d+.*answers: score"):
        refuse(["ph", "pher", "philosopher"])


def test_settings_are_checked():
    for settings, message in [
        ({}, "needs the setting 'model'"),
        ({"model": "a/b", "anwsers": "score"}, "did you mean 'answers'"),
        ({"model": "a/b", "answers": "guess"}, "constrain, score"),
        ({"model": "a/b", "either_case": "yes"}, "either_case must be true or false, got 'yes'"),
        ({"model": "a/b", "engine_args": {"trust_remote_code": True}}, "pin 'revision'"),
        ({"model": "a/b", "revision": "main", "engine_args": {"trust_remote_code": True}}, "pin 'revision'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            VLMSettings.read(settings)
    VLMSettings.read({"model": "a/b", "revision": "0" * 40, "engine_args": {"trust_remote_code": True}})


def test_identity_is_the_folder_s_content_or_the_hub_s_revision(tmp_path):
    folder = tmp_path / "vlm"
    folder.mkdir()
    with pytest.raises(EnvironmentFault, match=r"config\.json is missing"):
        vlm_identity({"model": str(folder)})
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"one")
    seen = [vlm_identity({"model": str(folder)})]
    (folder / "README.md").write_text("words")
    assert vlm_identity({"model": str(folder)}) == seen[0]
    moved = folder.rename(tmp_path / "elsewhere")
    assert vlm_identity({"model": str(moved)}) == seen[0]
    for name, content in [("model.safetensors", b"two"), ("tokenizer.json", b"{}"), ("chat_template.jinja", b"x")]:
        (moved / name).write_bytes(content)
        seen.append(vlm_identity({"model": str(moved)}))
    assert all(a != b for a, b in itertools.combinations(seen, 2))
    assert vlm_identity({"model": "a/b"})["revision"] == "main"
    assert vlm_identity({"model": "a/b", "revision": "x"})["revision"] == "x"
