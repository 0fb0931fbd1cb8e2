"""Identity: versioned hashes over everything that changes a pixel or an answer, and over nothing else.

An image is (model identity, prompt text, adapter, seed); a batch is that with a run of seeds; an answer is (image, VLM
identity, question, choices). Worker, rank, time, machine count, concurrency and retries are never part of it. Golden
tests freeze these functions: a change that alters a hash needs a new `VERSION`, since it makes every stored image
unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["BATCH", "VERSION", "batch_key", "batch_size", "digest", "image_key", "image_seed", "questionnaire_key"]

VERSION = 1
BATCH = 8  #: images in a batch: seeds 0-7, 8-15, ...; a constant, since it decides which images are made together
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
_SEED_BITS = 53  # seeds stay exact in JSON, JavaScript and float64


def digest(kind: str, fields: Mapping[str, Any]) -> str:
    """32 hex digits of SHA-256 over canonical JSON. Equal numbers have the same hash (1.0 and 1)."""
    text = _JSON.encode([VERSION, kind, _canonical(fields)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _canonical(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):  # nearly all values: every seed of every batch
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no identity: {value!r}")


@lru_cache(maxsize=100_000)
def image_seed(root: int, index: int) -> int:
    """Seed of the image with number `index`. Counterfactuals share seeds, and with them their initial noise."""
    return int.from_bytes(hashlib.sha256(f"seesaw/seed/{root}/{index}".encode()).digest()[:8], "big") >> (
        64 - _SEED_BITS
    )


def image_key(model: str, prompt: str, adapter: str, seed: int) -> str:
    """Identity of one image; `model` is the model's own digest."""
    return digest("image", {"model": model, "prompt": prompt, "adapter": adapter, "seed": seed})


def batch_size(stated: int) -> int:
    """Images in a batch of a prompt that states `stated` axes: 8; for three axes 4, for four 2, for more 1.

    Mitigating many axes means hundreds of prompts with a few images each.
    """
    return max(1, BATCH >> max(0, stated - 2))


def batch_key(model: str, prompt: str, adapter: str, seeds: Sequence[int]) -> str:
    """Identity of one batch, a fixed run of seeds of one cell: the name of its shard."""
    return digest("batch", {"model": model, "prompt": prompt, "adapter": adapter, "seeds": list(seeds)})


def questionnaire_key(vlm: str, questions: Sequence[tuple[str, Sequence[str]]], person: bool) -> str:
    """Identity of all questions to one VLM about an image. `person`: the first one asks for a person, and filters."""
    asked = [{"text": text, "choices": list(choices)} for text, choices in questions]
    return digest("questionnaire", {"vlm": vlm, "questions": asked, "person": person})
