"""Which batches are known to be left, by what they still need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from seesaw.runner.plan import Batch

__all__ = ["Backlog", "Need"]

Need = Literal["images", "answers"]  #: what a batch still lacks; one without images lacks answers, too


class Backlog:
    """Batches that are left, wherever they are: waiting, in a line, or at work. Each counts once."""

    def __init__(self, models: Iterable[str]) -> None:
        self._need_images: dict[str, set[str]] = {model: set() for model in models}
        self._need_answers: set[str] = set()

    def update(self, batch: Batch, need: Need | None) -> None:
        """`batch` now needs this; None: it needs nothing more."""
        self._need_images[batch.model].discard(batch.answers)
        self._need_answers.discard(batch.answers)
        if need == "images":
            self._need_images[batch.model].add(batch.answers)
        elif need == "answers":
            self._need_answers.add(batch.answers)

    def without_images(self, model: str) -> int:
        """Batches of a model whose images are still to be made."""
        return len(self._need_images[model])

    @property
    def without_answers(self) -> int:
        """Batches whose images the store has and that are still to be asked."""
        return len(self._need_answers)
