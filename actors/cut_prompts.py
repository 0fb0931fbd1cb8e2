"""What a pipeline at work cuts off a prompt, whatever its class: its tokenizers are watched.

Before work starts, `seesaw.actors.prompt_length` tells it by rules; this is for pipelines that these do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CutPrompts"]


class CutPrompts:
    """The texts that a pipeline's tokenizers were given since the last look, and which of them cut them."""

    def __init__(self, pipeline: Any) -> None:
        self._cuts: dict[str, dict[str, bool]] = {}  # by text, then by tokenizer: whether it was cut
        tokenizers = {
            id(component): (name, component)
            for owner in (pipeline, getattr(pipeline, "prior_pipe", None))
            for name, component in getattr(owner, "components", {}).items()
            if "tokenizer" in name and hasattr(component, "model_max_length")
        }
        for name, tokenizer in tokenizers.values():
            self._watch(name, tokenizer)

    def look(self) -> list[str]:
        """The texts that every tokenizer which got them has cut; they are forgotten."""
        cut = [text for text, by_tokenizer in self._cuts.items() if all(by_tokenizer.values())]
        self._cuts.clear()
        return cut

    def _watch(self, name: str, tokenizer: Any) -> None:
        """Let calls of `tokenizer` be noted. Calls are of its class, so it gets a class of its own."""
        plain: Any = type(tokenizer)

        def call(self_: Any, text: Any = None, *args: Any, **kwargs: Any) -> Any:
            encoded = plain.__call__(self_, text, *args, **kwargs)
            if kwargs.get("truncation"):
                self._note(name, self_, plain, text, kwargs)
            return encoded

        tokenizer.__class__ = type(plain.__name__, (plain,), {"__call__": call, "__module__": plain.__module__})

    def _note(self, name: str, tokenizer: Any, plain: Any, text: str | Sequence[str], given: Mapping[str, Any]) -> None:
        limit = given.get("max_length") or tokenizer.model_max_length
        texts = [text] if isinstance(text, str) else list(text)
        special = given.get("add_special_tokens", True)
        whole = plain.__call__(
            tokenizer, texts, truncation=False, padding=False, verbose=False, add_special_tokens=special
        )
        for each, tokens in zip(texts, whole["input_ids"], strict=True):
            self._cuts.setdefault(each, {})[name] = len(tokens) > limit
