"""Whether the grammar's mask lets a VLM write every choice.

xgrammar 0.2.8 masks valid tokens of some vocabularies (with `ph`, `pher` and `philosopher` among the tokens, and the
choice `philosopher`, it allowed `ph` alone). A choice whose tokens are masked is rarely or never the answer, and
nothing says so. Therefore every choice is checked against the mask, token by token, before work starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seesaw.actors.chat_prompt import CodedQuestion
from seesaw.results.errors import EnvironmentFault

__all__ = ["masked_token", "refuse_masked_choices", "vllm_grammar_backend"]


def vllm_grammar_backend(vllm_config: Any, tokenizer: Any) -> Any:
    """xgrammar as vLLM runs it. Raises EnvironmentFault if this vLLM is configured to mask with something else."""
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    name = vllm_config.structured_outputs_config.backend
    if name != "xgrammar":
        raise EnvironmentFault(f"choices cannot be checked against the mask of '{name}'; let vLLM use xgrammar")
    return XgrammarBackend(vllm_config, tokenizer=tokenizer, vocab_size=vllm_config.model_config.get_vocab_size())


def refuse_masked_choices(backend: Any, questions: Sequence[CodedQuestion], tokenizer: Any) -> None:
    """Raise EnvironmentFault that names the first question, choice and token that the mask of `backend` forbids."""
    for coded in questions:
        for spelling, sequence in zip(coded.spellings, coded.sequences, strict=True):
            at = masked_token(backend, coded.spellings, sequence)
            if at is not None:
                raise EnvironmentFault(
                    f"'{coded.question.text}': constrained decoding could not write '{spelling.strip()}', for its mask "
                    f"forbids token {sequence[at]} ({tokenizer.decode([sequence[at]])!r}); use `answers: score`"
                )


def masked_token(backend: Any, spellings: Sequence[str], sequence: Sequence[int]) -> int | None:
    """The position of the first token of `sequence` that the mask forbids, or None if all pass."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions
    from vllm.v1.structured_output.utils import choice_as_grammar

    grammar = backend.compile_grammar(StructuredOutputOptions.GRAMMAR, choice_as_grammar(list(spellings)))
    mask = backend.allocate_token_bitmask(1)
    for position, token in enumerate(sequence):
        mask.fill_(-1)
        grammar.fill_bitmask(mask, 0)
        allowed = (int(mask[0, token // 32]) >> (token % 32)) & 1
        if not allowed or not grammar.accept_tokens("check", [token]):
            return position
    return None
