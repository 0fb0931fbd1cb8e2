"""A question as a prompt for a VLM: first the image, then the question, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seesaw.actors.choice_tree import ChoiceTree, choice_tree
from seesaw.actors.engines import VQAQuestion
from seesaw.actors.vlm_settings import VLMSettings
from seesaw.results.errors import EnvironmentFault

__all__ = ["ChatPrompt", "CodedQuestion", "chat_prompt", "code_question"]

QUESTION, ANSWER = "QUESTION-0f5c", "ANSWER-0f5c"  #: placeholders, which no template writes
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt is `head` + question + `tail`. An answer follows it after `lead`, which is a space or nothing."""

    head: str
    tail: str
    lead: str


@dataclass(frozen=True)
class CodedQuestion:
    """A question in the tokens of one model.

    `tokens` is the prompt, with one placeholder for the image that is not yet expanded. `spellings[s]` is a text that a
    reply may be, `sequences[s]` are its tokens after the prompt, and `tree.owners[s]` is the choice that it means.
    """

    question: VQAQuestion
    text: str
    tokens: tuple[int, ...]
    spellings: tuple[str, ...]
    sequences: tuple[tuple[int, ...], ...]
    tree: ChoiceTree


def chat_prompt(render: Callable[[Messages, bool], str], image: Mapping[str, Any], settings: VLMSettings) -> ChatPrompt:
    """The prompt of a model, read from its rendered template.

    `render(messages, add_generation_prompt)` applies the template, `image` is the message part that stands for an
    image. The lead is what the template writes between its generation prompt and an assistant's message.

    Raises EnvironmentFault if the template leaves the question out.
    """
    system = [{"role": "system", "content": [{"type": "text", "text": settings.system}]}] if settings.system else []
    text = f"{settings.prefix}{QUESTION}{settings.suffix}"
    user = {"role": "user", "content": [dict(image), {"type": "text", "text": text}]}
    prompt = render([*system, user], True)
    head, separator, tail = prompt.partition(QUESTION)
    if not separator:
        raise EnvironmentFault(f"the chat template of '{settings.model}' leaves out the question: {prompt!r}")
    if settings.leading_space is not None:
        return ChatPrompt(head, tail, " " if settings.leading_space else "")
    assistant = {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}
    dialogue = render([*system, user, assistant], False)
    between = dialogue.removeprefix(prompt).partition(ANSWER)[0] if dialogue.startswith(prompt) else ""
    return ChatPrompt(head, tail, between if between.isspace() else "")


def code_question(
    question: VQAQuestion, chat: ChatPrompt, encode: Callable[[str, bool], Sequence[int]], settings: VLMSettings
) -> CodedQuestion:
    """`question` in tokens; `encode(text, whole)` tokenizes a whole prompt, or a piece without special tokens.

    The tokens of a choice are those that it adds to the prompt. Where the tokenizer would merge the end of the prompt
    with the choice, the choice is tokenized by itself, since the model writes after the prompt as it is.

    Raises EnvironmentFault if two choices have the same tokens.
    """
    text = f"{chat.head}{question.text}{chat.tail}"
    tokens = tuple(encode(text, True))
    spellings = [(chat.lead + choice, owner) for owner, choice in enumerate(question.choices)]
    if settings.either_case:
        written = set(question.choices)
        capital = [(choice[:1].upper() + choice[1:], owner) for owner, choice in enumerate(question.choices)]
        spellings += [(chat.lead + c, owner) for c, owner in capital if c not in written]
    sequences = []
    for spelling, _ in spellings:
        joined = tuple(encode(text + spelling, True))
        apart = joined[: len(tokens)] == tokens
        sequences.append(joined[len(tokens) :] if apart else tuple(encode(spelling, False)))
    if not all(sequences) or len(set(sequences)) != len(sequences):
        raise EnvironmentFault(
            f"'{settings.model}' cannot tell the choices of '{question.text}' apart: they come to the tokens "
            f"{dict(zip((s for s, _ in spellings), sequences, strict=True))}; reword the choices"
        )
    tree = choice_tree(sequences, [owner for _, owner in spellings])
    return CodedQuestion(question, text, tokens, tuple(s for s, _ in spellings), tuple(sequences), tree)
