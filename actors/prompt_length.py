"""How many tokens of a prompt the text encoders of a diffusers pipeline read, and which words they would not read.

Every pipeline cuts a prompt that is too long, most with no more than a line in a log. Its tokenizers are loaded alone
here, without weights, so that this can be told before work starts. `seesaw.actors.cut_prompts` watches a pipeline at
work.

What a tokenizer may give is taken from diffusers: CLIP's encoders read `model_max_length` tokens (77); other encoders
(T5, Qwen) read `max_sequence_length`, an argument of the pipeline's call. A pipeline with several encoders loses no
word as long as one of them reads it all: SD 3 and FLUX get what is behind CLIP's 77 tokens from T5.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from seesaw.actors.diffusers_settings import DiffusersSettings
from seesaw.actors.engines import PromptLength
from seesaw.actors.hub import snapshot
from seesaw.actors.weights import connected_pipelines
from seesaw.results.secrets import first_line

__all__ = ["Tokenizer", "own_prompts", "tokenizers_of", "whole_length"]

log = logging.getLogger(__name__)
_NO_LIMIT = 10**6  #: transformers says 10**30 of a tokenizer without one
#: pipelines that put the prompt into the chat template of their tokenizer, whose tokens count too
_CHAT = ("ZImagePipeline",)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of a pipeline, the tokens that its encoder reads (None: not known), and what surrounds the prompt."""

    name: str  #: of the component: tokenizer, tokenizer_2
    tokenize: Any
    limit: int | None
    in_chat_template: bool = False

    def length(self, prompt: str) -> PromptLength:
        text = self._framed(prompt)
        encoded = self.tokenize(
            text, truncation=False, padding=False, verbose=False, return_special_tokens_mask=True,
            return_offsets_mapping=self.tokenize.is_fast,
        )  # fmt: skip
        used = len(encoded["input_ids"])
        if self.limit is None or used <= self.limit:
            return PromptLength(used, self.limit)
        return PromptLength(used, self.limit, self._lost(prompt, text, encoded))

    def _framed(self, prompt: str) -> str:
        if not self.in_chat_template:
            return prompt
        message = [{"role": "user", "content": prompt}]
        framed: str = self.tokenize.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        return framed

    def _lost(self, prompt: str, text: str, encoded: Any) -> str:
        """The words from the first that is cut; they begin in `text` where the first token begins that is not read."""
        assert self.limit is not None
        special = encoded["special_tokens_mask"]
        ending = next((i for i, mark in enumerate(reversed(special)) if not mark), 0)  # tokens that mark the end
        first = max(self.limit - ending, 0)
        if not self.tokenize.is_fast:
            words: str = self.tokenize.decode(encoded["input_ids"][first:], skip_special_tokens=True)
            return words.strip() or prompt
        before = text[: encoded["offset_mapping"][first][0]]
        partly = "" if not before or before[-1].isspace() else before.split()[-1]  # a word of which a part is read
        lost = text[len(before) - len(partly) :]
        end = text.index(prompt) + len(prompt)
        return lost[: max(len(lost) - (len(text) - end), 0)].strip() or "the end of its template"


def own_prompts(settings: DiffusersSettings) -> dict[str, str]:
    """The prompts in the settings themselves, by name: the negative one, and those in `call` (prompt_2)."""
    given = {"negative_prompt": settings.negative_prompt}
    given |= {f"call.{key}": value for key, value in (settings.call or {}).items() if "prompt" in key}
    return {name: value for name, value in given.items() if isinstance(value, str)}


def whole_length(prompt: str, tokenizers: Sequence[Tokenizer], truncate: bool) -> PromptLength:
    """How much of a prompt a pipeline with these tokenizers (one or more) reads: as much as the one that reads most."""
    lengths = [tokenizer.length(prompt) for tokenizer in tokenizers]
    whole = [length for length in lengths if not length.lost]
    if not whole:
        best = min(lengths, key=lambda length: len(length.lost))
        return PromptLength(best.used, best.limit, best.lost, is_cut_on_purpose=truncate)
    best = max(whole, key=lambda length: length.limit or _NO_LIMIT)
    cut_by = tuple(t.name for t, length in zip(tokenizers, lengths, strict=True) if length.lost)
    return PromptLength(best.used, best.limit, cut_by=cut_by)


def tokenizers_of(settings: DiffusersSettings) -> tuple[Tokenizer, ...] | None:
    """The tokenizers of a pipeline from its folder, or from the hub's cache; None if they cannot be loaded here.

    Raises ConfigError and EnvironmentFault as `DiffusersSettings.folder` does. What keeps them from being loaded is
    told where the pipeline as a whole is looked at.
    """
    home = settings.folder or snapshot(settings.repo, settings.revision, "model_index.json")
    if home is None or importlib.util.find_spec("diffusers") is None:
        return None
    asked = (settings.call or {}).get("max_sequence_length")
    homes = [home, *_priors(settings, home)]
    try:
        return _loaded(tuple(homes), tuple(settings.without), asked)
    except Exception as error:  # of a file that is damaged the tokenizers library raises a plain Exception
        log.info("the tokenizers of '%s' cannot be loaded: %s", settings.repo, first_line(error))
        return None


def _priors(settings: DiffusersSettings, home: Path) -> Iterator[Path]:
    """The folders of the prior, whose tokenizer reads the prompt: what the settings or the model card name."""
    if settings.prior:
        named = [(settings.prior["repo"], settings.prior.get("revision", "main"))]
    else:
        named = [(repo, "main") for repo in connected_pipelines(home)]
    for repo, revision in named:
        folder = settings.folder_of(repo) or snapshot(repo, revision, "model_index.json")
        if folder is not None:
            yield folder


@lru_cache(maxsize=8)
def _loaded(homes: tuple[Path, ...], without: tuple[str, ...], asked: int | None) -> tuple[Tokenizer, ...]:
    import transformers

    tokenizers: list[Tokenizer] = []
    for home in homes:
        index: dict[str, Any] = json.loads((home / "model_index.json").read_text())
        pipeline = str(index.get("_class_name"))
        for name, entry in index.items():
            if not _reads_prompts(name, entry, index, without):
                continue
            # AutoTokenizer imports torch, which takes seconds
            kind = getattr(transformers, entry[1], None) or transformers.AutoTokenizer
            tokenizer: Any = kind.from_pretrained(home / name, local_files_only=True)
            tokenizers.append(_limited(name, tokenizer, pipeline, asked))
    return tuple(tokenizers)


def _reads_prompts(name: str, entry: Any, index: Mapping[str, Any], without: Sequence[str]) -> bool:
    """Whether a component is a tokenizer whose text encoder is there too."""
    if "tokenizer" not in name or not isinstance(entry, list) or entry[:1] != ["transformers"]:
        return False
    encoder = name.replace("tokenizer", "text_encoder")
    return not {name, encoder}.intersection(without) and index.get(encoder) != [None, None]


def _limited(name: str, tokenizer: Any, pipeline: str, asked: int | None) -> Tokenizer:
    own = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    in_chat_template = pipeline in _CHAT
    if "CLIP" in type(tokenizer).__name__:
        return Tokenizer(name, tokenizer, own)
    return Tokenizer(name, tokenizer, asked or _sequence_length(pipeline) or own, in_chat_template)


@lru_cache
def _sequence_length(pipeline: str) -> int | None:
    """The default of `max_sequence_length` of a pipeline's call; None if it has none, or the class is not known."""
    import diffusers

    kind = getattr(diffusers, pipeline, None)
    parameters = inspect.signature(kind.__call__).parameters if kind else {}
    default = parameters["max_sequence_length"].default if "max_sequence_length" in parameters else None
    return default if isinstance(default, int) else None
