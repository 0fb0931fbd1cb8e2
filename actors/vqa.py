"""Asking a questionnaire about images: first whether they show a person, then the rest about those that do.

The VQA actor commits its answers before anything reads them, as the TTI actor does with images.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from seesaw.actors.engine_errors import plain_errors
from seesaw.actors.engines import Reply, VQAEngine, VQAQuestion, Withheld
from seesaw.actors.plugins import Plugin
from seesaw.actors.process import exit_if_engine_died, forget_after, set_up_process
from seesaw.actors.tti import read_images
from seesaw.results.store.store import ANSWER_SHARD, Store

__all__ = ["PERSON", "AnswerBatch", "VQAActor", "VQAQuestionnaire", "ask_images"]

PERSON = -1  #: the index of the person question among the answers about an image


@dataclass(frozen=True)
class VQAQuestionnaire:
    """What is asked about every image. If the answer to `person` is no, nothing more is asked about it."""

    person: VQAQuestion | None
    questions: tuple[VQAQuestion, ...]

    @property
    def all(self) -> tuple[VQAQuestion, ...]:
        return ((self.person,) if self.person else ()) + self.questions


def ask_images(
    engine: VQAEngine, images: Sequence[bytes | Withheld], questionnaire: VQAQuestionnaire
) -> list[list[tuple[int, Reply]]]:
    """For each image its (index of the question, reply), in order; PERSON (-1) is the index of the person question.

    The engine is called twice: with the person question about all images, then with all questions about the images that
    show a person. Nothing is asked about a withheld image.
    """
    answers: list[list[tuple[int, Reply]]] = [[] for _ in images]
    encoded = {i: image for i, image in enumerate(images) if not isinstance(image, Withheld)}
    asked = list(encoded)
    if questionnaire.person is not None and asked:
        first = _checked_replies(engine, [(encoded[i], (questionnaire.person,)) for i in asked])
        for i, (reply,) in zip(asked, first, strict=True):
            answers[i].append((PERSON, reply))
        asked = [i for i in asked if answers[i][0][1].answer.casefold() != "no"]
    if questionnaire.questions and asked:
        replies = _checked_replies(engine, [(encoded[i], questionnaire.questions) for i in asked])
        for i, of_image in zip(asked, replies, strict=True):
            answers[i].extend(enumerate(of_image))
    return answers


def _checked_replies(engine: VQAEngine, requests: Sequence[tuple[bytes, Sequence[VQAQuestion]]]) -> list[list[Reply]]:
    """The engine's replies. Raises ValueError for one that answers no question: an error never becomes an answer."""
    replies = engine.ask(requests)
    if [len(of_image) for of_image in replies] != [len(questions) for _, questions in requests]:
        raise ValueError("the VQA engine's replies are not one for every question")
    for (_, questions), of_image in zip(requests, replies, strict=True):
        for question, reply in zip(questions, of_image, strict=True):
            if reply.answer not in question.choices:
                raise ValueError(f"the VQA engine answered '{reply.answer}' to '{question.text}', which is no choice")
            p = reply.probabilities
            if len(p) != len(question.choices) or not math.isclose(math.fsum(p), 1, abs_tol=1e-3) or min(p) < 0:
                raise ValueError(f"the probabilities of '{question.text}' do not sum to 1: {p}")
            if not 0 <= reply.mass <= 1 + 1e-3:
                raise ValueError(f"the mass of '{question.text}' is no probability: {reply.mass}")
    return replies


@dataclass(frozen=True)
class AnswerBatch:
    """One batch of images to ask about, and the shard that the answers are committed as."""

    shard: str
    images: str  #: the shard that holds the images
    vlm: str
    image_keys: tuple[str, ...]


class VQAActor:
    """An engine and its questionnaire in a process of their own. All that it knows of vLLM is where the engine is."""

    def __init__(
        self,
        name: str,
        engine: Plugin,
        settings: Mapping[str, Any],
        questionnaire: VQAQuestionnaire,
        store: str,
        threads: int,
        log: str,
        gpus: float = 0.0,
    ) -> None:
        self._args = name, engine, settings
        self._store = Store(store, exists=True)
        self.questionnaire = questionnaire
        self._uncommitted: dict[str, pa.Table] = {}  # answers by shard
        set_up_process(name, log, threads, gpus)

    def load(self) -> dict[str, Any]:
        """Load the engine and check that it can give every answer of the questionnaire. Raises what these raise."""
        name, engine, settings = self._args
        began = time.monotonic()
        with plain_errors():
            self.engine: Any = engine.load()(settings)
            self.engine.check(self.questionnaire.all)
        return {"name": name, "pid": os.getpid(), "load_seconds": time.monotonic() - began}

    def answer(self, batch: AnswerBatch, images: Sequence[bytes | Withheld] | None = None) -> pa.Table:
        """Ask about a batch (its encoded images, or with None those in the store), commit, and return what is stored.

        If the store is full or unavailable the answers are kept, and the same call commits them later.
        """
        if batch.shard not in self._uncommitted:
            if images is None:
                images = read_images(self._store, batch.images, batch.image_keys)
            self._uncommitted[batch.shard] = _table(batch, images, self.questionnaire, self.ask(images))
        with forget_after(self._uncommitted, batch.shard):
            return self._store.commit_or_keep(batch.shard, self._uncommitted[batch.shard])

    def ask(self, images: Sequence[bytes | Withheld]) -> list[list[tuple[int, Reply]]]:
        """`ask_images`; the process ends if the engine dies."""
        with exit_if_engine_died(self.engine):
            return ask_images(self.engine, images, self.questionnaire)

    def metrics(self) -> dict[str, Any]:
        return self.engine.metrics() if hasattr(self.engine, "metrics") else {}


def _table(
    batch: AnswerBatch,
    images: Sequence[bytes | Withheld],
    questionnaire: VQAQuestionnaire,
    answers: Sequence[Sequence[tuple[int, Reply]]],
) -> pa.Table:
    """The answers as a shard. A withheld image has one row, without a question, whose answer is the reason."""
    rows: list[dict[str, Any]] = []
    for key, image, of_image in zip(batch.image_keys, images, answers, strict=True):
        if isinstance(image, Withheld):
            nothing = {"question": "", "choices": [], "probabilities": [], "mass": 0.0}
            rows.append({"image_key": key, **nothing, "answer": image.reason, "vlm": batch.vlm})
        for number, reply in of_image:
            question = questionnaire.person if number == PERSON else questionnaire.questions[number]
            assert question is not None  # PERSON comes from a questionnaire that has the question
            rows.append(
                {
                    "image_key": key,
                    "question": question.text,
                    "choices": list(question.choices),
                    "answer": reply.answer,
                    "probabilities": list(reply.probabilities),
                    "mass": reply.mass,
                    "vlm": batch.vlm,
                }
            )
    return pa.Table.from_pylist(rows, schema=ANSWER_SHARD)
