"""The TTI actor: an engine in a process of its own, which commits what it makes before anybody reads it."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from PIL import Image

from seesaw.actors.engines import BLANK, REASONS, Withheld
from seesaw.actors.plugins import Plugin
from seesaw.actors.process import begin, kept, mortal
from seesaw.results.errors import StoreError
from seesaw.results.images import opaque_rgb, open_image
from seesaw.results.store.store import IMAGE_SHARD, Store

__all__ = ["BLANK", "ImageBatch", "TTIActor", "read_images"]

VAIN = 3  #: batches in a row that were made once more and were blank again, before that is given up
EVEN = 2  #: grey levels between the darkest and the lightest pixel of an image that shows nothing
log = logging.getLogger(__name__)


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
    """Thin: what it knows of diffusers, pictograms or an API is the engine's name.

    A batch takes two calls: `generate` keeps the device busy, `commit` encodes and writes while the next batch is
    already being made (the fleet runs it in a concurrency group, that is a thread, of its own).
    """

    def __init__(
        self, name: str, engine: Plugin, settings: Mapping[str, Any], store: str, threads: int, log: str
    ) -> None:
        self._args = name, engine, settings
        self._store = Store(store, exists=True)
        self._vain = 0
        self._made: dict[str, list[bytes | Image.Image | Withheld]] = {}  # what waits for its commit
        begin(name, log, threads)

    def load(self) -> dict[str, Any]:
        """Load the engine; a typed error instead of an actor that dies while it is made."""
        name, engine, settings = self._args
        began = time.monotonic()
        self._engine = engine.load()(settings)
        return {"name": name, "pid": os.getpid(), "load_seconds": time.monotonic() - began}

    def generate(self, batch: ImageBatch) -> float:
        """Make one batch and keep it for `commit`; returns the seconds that it took.

        A batch with a blank image is made once more, whole: what was a hiccup of the device goes away, what belongs to
        prompt and seed comes again and is recorded as blank.
        """
        began = time.monotonic()
        made = self._attempt(batch)
        if _blanks(made) and self._vain < VAIN:
            log.warning("%d blank images in %s; made once more", _blanks(made), batch.shard)
            made = self._attempt(batch)
            self._vain = self._vain + 1 if _blanks(made) else 0
        self._made[batch.shard] = made
        return time.monotonic() - began

    def _attempt(self, batch: ImageBatch) -> list[bytes | Image.Image | Withheld]:
        with mortal(self._engine):
            made: list[Any] = list(self._engine.generate(batch.prompt, batch.seeds, batch.adapter))
        if len(made) != len(batch.seeds):
            raise RuntimeError(f"the engine made {len(made)} images for {len(batch.seeds)} seeds")
        return [_sound(seed, image) for seed, image in zip(batch.seeds, made, strict=True)]

    def commit(self, batch: ImageBatch) -> tuple[tuple[int, int], list[bytes | Withheld]]:
        """Encode and commit what `generate` made: (blank images, bytes of all), and all *as the store holds them*.

        What was made is kept until it is committed: where the store is full or away, the same call goes on later.
        """
        with kept(self._made, batch.shard):
            table = _table(batch, self._made[batch.shard])
            if not self._store.commit(batch.shard, table):
                table = self._store.read(batch.shard)
        images = _images(table, batch.shard, batch.image_keys)
        return (_blanks(images), sum(len(image) for image in images if isinstance(image, bytes))), images


def _blanks(images: Sequence[bytes | Image.Image | Withheld]) -> int:
    return sum(isinstance(image, Withheld) and image.reason == BLANK for image in images)


def _sound(seed: int, made: Any) -> bytes | Image.Image | Withheld:
    """What an engine made of one seed, withheld as blank if it shows one even colour; TypeError if it is no image."""
    if isinstance(made, Withheld):
        if made.reason not in REASONS:
            raise TypeError(
                f"the engine withheld the image of seed {seed} for '{made.reason}'; known: {', '.join(REASONS)}"
            )
        _sound(seed, made.image)  # an image it must be
        return made
    if isinstance(made, Image.Image):
        image = made
    elif isinstance(made, bytes) and made:
        try:
            image = open_image(made)
            image.load()
        except OSError as error:  # Pillow's own are of this kind
            raise TypeError(f"the engine made no image of seed {seed}: {error}") from None
    else:
        kind = type(made).__name__
        raise TypeError(f"the engine made no image of seed {seed}: expected encoded bytes or a PIL image, got {kind}")
    extrema: Any = opaque_rgb(image).getextrema()
    return Withheld(made, BLANK) if all(high - low <= EVEN for low, high in extrema) else made


def encoded(image: bytes | Image.Image) -> bytes:
    """An image as it is kept: the bytes that an engine gave, or a PNG."""
    if isinstance(image, bytes):
        return image
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _table(batch: ImageBatch, made: Sequence[bytes | Image.Image | Withheld]) -> pa.Table:
    n = len(made)
    images = [encoded(image.image if isinstance(image, Withheld) else image) for image in made]
    columns = {
        "image_key": list(batch.image_keys),
        "image": [{"bytes": image, "path": f"{key}.png"} for key, image in zip(batch.image_keys, images, strict=True)],
        "model": [batch.model] * n,
        "prompt": [batch.prompt] * n,
        "adapter": [batch.adapter] * n,
        "seed": list(batch.seeds),
        "withheld": [image.reason if isinstance(image, Withheld) else "" for image in made],
    }
    return pa.table(columns, schema=IMAGE_SHARD)


def read_images(store: Store, shard: str, image_keys: Sequence[str]) -> list[bytes | Withheld]:
    """The encoded images of a shard in the order of `image_keys`; StoreError if it holds others.

    Of a withheld image only the reason comes along: its pixels stay in the store.
    """
    return _images(store.read(shard), shard, image_keys)


def _images(table: pa.Table, shard: str, image_keys: Sequence[str]) -> list[bytes | Withheld]:
    names = ("image_key", "image", "withheld")
    if "withheld" not in table.column_names:  # stores from before images could be withheld
        table = table.append_column("withheld", pa.array([""] * table.num_rows))
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    held = {key: Withheld(b"", reason) if reason else image["bytes"] for key, image, reason in rows}
    missing = [key for key in image_keys if key not in held]
    if missing:
        raise StoreError(f"shard '{shard}' lacks image {missing[0]}")
    return [held[key] for key in image_keys]
