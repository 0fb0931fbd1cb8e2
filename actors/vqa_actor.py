"""The VQA actor: an engine and its questionnaire in a process of their own, which commits the answers it gives."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from actors.engines import VQA_ENGINES, engine_class
from actors.process import begin
from actors.tti import read_images
from actors.vqa import PERSON, Questionnaire, ask_images
from results.store import ANSWERS, Store

__all__ = ["AnswerBatch", "VQAActor"]


@dataclass(frozen=True)
class AnswerBatch:
    """One batch of images to ask, and the shard that the answers become."""

    shard: str
    images: str  #: the shard that holds the images
    vlm: str
    image_keys: tuple[str, ...]


class VQAActor:
    """Thin, as the TTI actor is: what it knows of vLLM is the engine's name."""

    def __init__(
        self,
        name: str,
        engine: str,
        settings: Mapping[str, Any],
        questionnaire: Questionnaire,
        store: str,
        threads: int,
        log: str,
    ) -> None:
        self._args = name, engine, settings
        self._questionnaire = questionnaire
        self._store = Store(store)
        begin(name, log, threads)

    def load(self) -> dict[str, Any]:
        """Load the engine and check that it can give every answer of the questionnaire."""
        name, engine, settings = self._args
        began = time.monotonic()
        self._engine: Any = engine_class(engine, VQA_ENGINES)(settings)
        self._engine.check(self._questionnaire.all)
        return {"name": name, "pid": os.getpid(), "load_seconds": time.monotonic() - began}

    def answer(self, batch: AnswerBatch, images: Sequence[bytes] | None = None) -> pa.Table:
        """Ask a batch (its encoded images, or None: those of the store) and commit; the answers as stored."""
        if images is None:
            images = read_images(self._store, batch.images, batch.image_keys)
        replies = ask_images(self._engine, images, self._questionnaire)
        table = self._table(batch, replies)
        return table if self._store.commit(batch.shard, table) else self._store.read(batch.shard)

    def metrics(self) -> dict[str, Any]:
        return self._engine.metrics() if hasattr(self._engine, "metrics") else {}

    def _table(self, batch: AnswerBatch, replies: Sequence[Any]) -> pa.Table:
        rows = []
        for key, answers in zip(batch.image_keys, replies, strict=True):
            for number, reply in answers:
                question = self._questionnaire.person if number == PERSON else self._questionnaire.questions[number]
                assert question is not None
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
        return pa.Table.from_pylist(rows, schema=ANSWERS)
