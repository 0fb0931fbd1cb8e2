"""`transformers`: a VLM in plain PyTorch, for machines without vLLM; its answers are those of vLLM.

It scores choices as `vllm_engine` does with `answers: score`: the same prompts, the same tokens, the same arithmetic.
All questions of an image are one batch, padded on the right, where no real token sees the padding. Nothing is cached
between questions: this is the slow and simple reference.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from seesaw.actors.chat_prompt import CodedQuestion, chat_prompt, code_question
from seesaw.actors.choice_tree import reply
from seesaw.actors.device import torch_device
from seesaw.actors.engines import Reply, VQAQuestion
from seesaw.actors.vlm_settings import VLMSettings, vlm_identity, vlm_preflight
from seesaw.results.errors import ConfigError, EnvironmentFault
from seesaw.results.images import opaque_rgb, open_image
from seesaw.results.secrets import without_secrets

__all__ = ["TransformersEngine"]


class TransformersEngine:
    """A VQA engine; see `VLMSettings` for its settings. `answers: constrain` is vLLM's alone (ConfigError)."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = VLMSettings.read(settings)
        if self.settings.answers != "score":
            raise ConfigError("engine 'transformers' has no constrained decoding; use `answers: score`")
        foreign = sorted(set(self.settings.engine_args) - {"mm_processor_kwargs", "trust_remote_code"})
        if foreign:
            raise ConfigError(f"engine 'transformers' knows no engine_args '{foreign[0]}'; that is vLLM's")
        self.model, self.processor = _load(self.settings)
        self.tokenizer = self.processor.tokenizer
        self.chat = chat_prompt(self._render, {"type": "image"}, self.settings)
        self._coded: dict[VQAQuestion, CodedQuestion] = {}
        self._questions, self._seconds = 0, 0.0

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        return vlm_identity(settings)

    @classmethod
    def preflight(cls, settings: Mapping[str, Any]) -> None:
        vlm_preflight(settings, "transformers", "transformers torch")

    def check(self, questions: Sequence[VQAQuestion]) -> None:
        """Raise EnvironmentFault if choices of a question have the same tokens.

        Asks all questions about an empty image once.
        """
        file = io.BytesIO()
        Image.new("RGB", (64, 64), (255, 255, 255)).save(file, "PNG")
        self.ask([(file.getvalue(), questions)])

    def ask(self, requests: Sequence[tuple[bytes, Sequence[VQAQuestion]]]) -> list[list[Reply]]:
        """Replies in the order of the requests. Raises what torch or PIL raise."""
        began = time.perf_counter()
        replies = [self._ask_image(file, questions) if questions else [] for file, questions in requests]
        self._questions += sum(map(len, replies))
        self._seconds += time.perf_counter() - began
        return replies

    def metrics(self) -> dict[str, float]:
        """Totals since the start: `questions`, and `seconds` in `ask`."""
        return {"questions": self._questions, "seconds": self._seconds}

    def _ask_image(self, file: bytes, questions: Sequence[VQAQuestion]) -> list[Reply]:
        coded = [self._code(question) for question in questions]
        rows = [(c.text, b.prefix, b.tokens) for c in coded for b in c.tree.branchings]
        image = opaque_rgb(open_image(file))
        logprobs = iter(self._logprobs(image, rows))
        return [reply(c.question, c.tree, [next(logprobs) for _ in c.tree.branchings]) for c in coded]

    def _logprobs(
        self, image: Image.Image, rows: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]
    ) -> list[dict[int, float]]:
        """For each row (prompt, tokens written after it, candidates) the candidates' log-probabilities."""
        import torch

        texts = [text for text, _, _ in rows]
        batch = self.processor(
            text=texts, images=[[image]] * len(rows), padding=True, padding_side="right",
            add_special_tokens=self._adds_special(texts[0]), return_tensors="pt",
        )  # fmt: skip
        lengths = batch["attention_mask"].sum(1).tolist()
        batch = _extended(batch, lengths, [prefix for _, prefix, _ in rows])
        ends = [length + len(prefix) - 1 for length, (_, prefix, _) in zip(lengths, rows, strict=True)]
        kept = sorted(set(ends))  # logits of the whole vocabulary are computed only where a row ends
        keep = torch.tensor(kept, device=self.model.device)
        with torch.inference_mode():
            inputs = {k: v.to(self.model.device) if torch.is_tensor(v) else v for k, v in batch.items()}
            logits = self.model(**inputs, logits_to_keep=keep, use_cache=False).logits
        logprobs = []
        for row, (end, (_, _, tokens)) in enumerate(zip(ends, rows, strict=True)):
            scores = logits[row, kept.index(end)].float().log_softmax(-1)
            logprobs.append(dict(zip(tokens, scores[list(tokens)].tolist(), strict=True)))
        return logprobs

    def _code(self, question: VQAQuestion) -> CodedQuestion:
        if question not in self._coded:
            self._coded[question] = code_question(question, self.chat, self._encode, self.settings)
        return self._coded[question]

    def _encode(self, text: str, whole: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=whole and self._adds_special(text)))

    def _adds_special(self, text: str) -> bool:
        bos = self.tokenizer.bos_token
        return not (bos and text.startswith(bos))

    def _render(self, messages: list[dict[str, Any]], generation: bool) -> str:
        return str(self.processor.apply_chat_template(messages, add_generation_prompt=generation, tokenize=False))


def _extended(batch: Mapping[str, Any], lengths: Sequence[int], prefixes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """The batch, (n, length), with each row's prefix written after its prompt; all tensors that are per token grow."""
    import torch

    longest = max(length + len(prefix) for length, prefix in zip(lengths, prefixes, strict=True))
    shape = batch["input_ids"].shape
    grown = dict(batch)
    for key, value in batch.items():
        if torch.is_tensor(value) and value.shape == shape and longest > shape[1]:
            grown[key] = torch.nn.functional.pad(value, (0, longest - shape[1]))
    for row, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
        grown["input_ids"][row, length : length + len(prefix)] = torch.tensor(prefix, dtype=torch.long)
        grown["attention_mask"][row, length : length + len(prefix)] = 1
    return grown


def _load(settings: VLMSettings) -> tuple[Any, Any]:
    source = settings.source
    try:
        from transformers import AutoModelForImageTextToText, AutoProcessor
    except ImportError as error:
        raise EnvironmentFault(f"engine 'transformers' cannot be imported: {without_secrets(str(error))}") from error
    remote = {"revision": settings.revision, "trust_remote_code": settings.engine_args.get("trust_remote_code", False)}
    pixels = settings.engine_args.get("mm_processor_kwargs", {})
    device = torch_device()
    try:
        processor = AutoProcessor.from_pretrained(source, **remote, **pixels)
        model = AutoModelForImageTextToText.from_pretrained(
            source, dtype=settings.precision, use_safetensors=True, **remote
        )
    except (OSError, ValueError, ImportError) as error:  # no such model or access, or its processor lacks a package
        raise EnvironmentFault(f"transformers cannot load '{settings.model}': {without_secrets(str(error))}") from error
    return model.to(device).eval(), processor
