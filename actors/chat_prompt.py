"""A question as a VLM's prompt: the image first, then the question, in the words of the model's own chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seesaw.actors.choice_tree import ChoiceTree, choice_tree
from seesaw.actors.engines import VQAQuestion
from seesaw.actors.vlm_settings import VLMSettings
from seesaw.results.errors import EnvironmentFault

__all__ = ["ChatPrompt", "CodedQuestion", "chat_prompt", "code_question"]

QUESTION, ANSWER = "QUESTION-0f5c", "ANSWER-0f5c"
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt is `head` + question + `tail`; an answer follows after `lead` (a space, or nothing)."""

    head: str
    tail: str
    lead: str


@dataclass(frozen=True)
class CodedQuestion:
    """A question in one model's tokens. `tokens` is the prompt with one placeholder an image, not yet expanded.

    `spellings[s]` is a text that a reply may consist of, `sequences[s]` its tokens after the prompt, and
    `tree.owners[s]` the choice that it means.
    """

    question: VQAQuestion
    text: str
    tokens: tuple[int, ...]
    spellings: tuple[str, ...]
    sequences: tuple[tuple[int, ...], ...]
    tree: ChoiceTree


def chat_prompt(render: Callable[[Messages, bool], str], image: Mapping[str, Any], settings: VLMSettings) -> ChatPrompt:
    """The prompt of a model, found by rendering its template once.

    `render(messages, add_generation_prompt)` applies the template, `image` is the message part that stands for an
    image. What the template writes between its generation prompt and an assistant's message is the lead.
    """
    system = [{"role": "system", "content": [{"type": "text", "text": settings.system}]}] if settings.system else []
    asked = f"{settings.prefix}{QUESTION}{settings.suffix}"
    user = {"role": "user", "content": [dict(image), {"type": "text", "text": asked}]}
    prompt = render([*system, user], True)
    head, found, tail = prompt.partition(QUESTION)
    if not found:
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

    A choice's tokens are what it adds to the tokens of the prompt. Where the tokenizer would merge the two (the prompt
    no longer ends where it ended), the model sees the choice on its own, for it writes after the prompt as it stands.
    EnvironmentFault if two choices come to the same tokens.
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
        whole = tuple(encode(text + spelling, True))
        sequences.append(whole[len(tokens) :] if whole[: len(tokens)] == tokens else tuple(encode(spelling, False)))
    if not all(sequences) or len(set(sequences)) != len(sequences):
        raise EnvironmentFault(
            f"'{settings.model}' cannot tell the choices of '{question.text}' apart: they come to the tokens "
            f"{dict(zip((s for s, _ in spellings), sequences, strict=True))}; reword the choices"
        )
    tree = choice_tree(sequences, [owner for _, owner in spellings])
    return CodedQuestion(question, text, tokens, tuple(s for s, _ in spellings), tuple(sequences), tree)
