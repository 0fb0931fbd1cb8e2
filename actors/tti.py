"""The TTI actor: an engine in a process of its own, which commits what it makes before anybody reads it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from actors.engines import TTI_ENGINES, engine_class
from actors.process import begin, mortal
from results.errors import StoreError
from results.store import IMAGES, Store

__all__ = ["ImageBatch", "TTIActor"]


@dataclass(frozen=True)
class ImageBatch:
    """A fixed run of seeds of one cell: what to make, and the shard that it becomes."""

    shard: str
    model: str
    prompt: str
    adapter: str
    seeds: tuple[int, ...]
    image_keys: tuple[str, ...]


class TTIActor:
    """Thin: what it knows of diffusers, pictograms or an API is the engine's name."""

    def __init__(self, name: str, engine: str, settings: Mapping[str, Any], store: str, threads: int, log: str) -> None:
        self._args = name, engine, settings
        self._store = Store(store)
        begin(name, log, threads)

    def load(self) -> dict[str, Any]:
        """Load the engine; a typed error instead of an actor that dies while it is made."""
        name, engine, settings = self._args
        began = time.monotonic()
        self._engine = engine_class(engine, TTI_ENGINES)(settings)
        return {"name": name, "pid": os.getpid(), "load_seconds": time.monotonic() - began}

    def generate(self, batch: ImageBatch) -> tuple[dict[str, Any], list[bytes]]:
        """Make and commit one batch; returns what is known of it, and the encoded images *as the store holds them*."""
        began = time.monotonic()
        with mortal(self._engine):
            images = self._engine.generate(batch.prompt, batch.seeds, batch.adapter)
        seconds = time.monotonic() - began
        if len(images) != len(batch.seeds):
            raise RuntimeError(f"the engine made {len(images)} images for {len(batch.seeds)} seeds")
        for seed, image in zip(batch.seeds, images, strict=True):
            if not isinstance(image, bytes) or not image:
                raise TypeError(
                    f"the engine made no image of seed {seed}: expected encoded bytes, got {type(image).__name__}"
                )
        made = self._store.commit(batch.shard, _table(batch, images))
        if not made:
            images = read_images(self._store, batch.shard, batch.image_keys)
        return {"seconds": seconds, "made": made, "bytes": sum(map(len, images))}, images


def _table(batch: ImageBatch, images: Sequence[bytes]) -> pa.Table:
    n = len(images)
    columns = {
        "image_key": list(batch.image_keys),
        "image": [{"bytes": image, "path": f"{key}.png"} for key, image in zip(batch.image_keys, images, strict=True)],
        "model": [batch.model] * n,
        "prompt": [batch.prompt] * n,
        "adapter": [batch.adapter] * n,
        "seed": list(batch.seeds),
    }
    return pa.table(columns, schema=IMAGES)


def read_images(store: Store, shard: str, image_keys: Sequence[str]) -> list[bytes]:
    """The encoded images of a shard in the order of `image_keys`; StoreError if it holds others."""
    table = store.read(shard)
    held = dict(zip(table.column("image_key").to_pylist(), table.column("image").to_pylist(), strict=True))
    missing = [key for key in image_keys if key not in held]
    if missing:
        raise StoreError(f"shard '{shard}' lacks image {missing[0]}")
    return [held[key]["bytes"] for key in image_keys]
