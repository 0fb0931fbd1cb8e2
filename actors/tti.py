"""The TTI actor: an engine in a process of its own, whose images are committed before anything reads them."""

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

from seesaw.actors.engine_errors import plain_errors
from seesaw.actors.engines import BLANK, REASONS, Withheld
from seesaw.actors.plugins import Plugin
from seesaw.actors.process import exit_if_engine_died, forget_after, set_up_process
from seesaw.results.errors import StoreError
from seesaw.results.images import opaque_rgb, open_image
from seesaw.results.store.store import IMAGE_SHARD, Store

__all__ = ["BLANK", "ImageBatch", "TTIActor", "read_images"]

#: after so many batches in a row whose second try had blank images too, no second try is made any more
MAX_VAIN_RETRIES = 3
#: an image is blank if its darkest and its lightest pixel differ by no more grey levels, in every channel
BLANK_RANGE = 2
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageBatch:
    """A fixed run of seeds of one cell: what to make, and the shard that it is committed as."""

    shard: str
    model: str
    prompt: str
    adapter: str
    seeds: tuple[int, ...]
    image_keys: tuple[str, ...]


class TTIActor:
    """An engine in a process of its own. All that it knows of diffusers, pictograms or an API is where the engine is.

    A batch takes two calls. `generate` uses the device. `commit` encodes and writes while the next batch is being made:
    the fleet calls it in a concurrency group, that is a thread, of its own.
    """

    def __init__(
        self,
        name: str,
        engine: Plugin,
        settings: Mapping[str, Any],
        store: str,
        threads: int,
        log: str,
        gpus: float = 0.0,
    ) -> None:
        self._args = name, engine, settings
        self._store = Store(store, exists=True)
        self._vain_retries = 0
        self._uncommitted: dict[str, list[bytes | Image.Image | Withheld]] = {}  # images by shard
        set_up_process(name, log, threads, gpus)

    def load(self) -> dict[str, Any]:
        """Load the engine.

        It is a call of its own because an actor whose constructor raises just dies; the errors of a call arrive.
        """
        name, engine, settings = self._args
        began = time.monotonic()
        with plain_errors():
            self._engine = engine.load()(settings)
        return {"name": name, "pid": os.getpid(), "load_seconds": time.monotonic() - began}

    def generate(self, batch: ImageBatch) -> float:
        """Make one batch and keep it for `commit`; returns the seconds that it took.

        A batch with a blank image is made a second time, whole. If the device had failed for a moment, the second try
        has no blank image. If the blank image comes from prompt and seed, it comes again and is recorded as blank.
        """
        began = time.monotonic()
        images = self._attempt(batch)
        if _blanks(images) and self._vain_retries < MAX_VAIN_RETRIES:
            log.warning("%d blank images in %s; made once more", _blanks(images), batch.shard)
            images = self._attempt(batch)
            self._vain_retries = self._vain_retries + 1 if _blanks(images) else 0
        self._uncommitted[batch.shard] = images
        return time.monotonic() - began

    def _attempt(self, batch: ImageBatch) -> list[bytes | Image.Image | Withheld]:
        with exit_if_engine_died(self._engine):
            images: list[Any] = list(self._engine.generate(batch.prompt, batch.seeds, batch.adapter))
        if len(images) != len(batch.seeds):
            raise RuntimeError(f"the engine made {len(images)} images for {len(batch.seeds)} seeds")
        return [_checked(seed, image) for seed, image in zip(batch.seeds, images, strict=True)]

    def commit(self, batch: ImageBatch) -> tuple[tuple[int, int], list[bytes | Withheld]]:
        """Encode and commit what `generate` made: (blank images, bytes of all), and all *as the store holds them*.

        The images are kept until they are committed. If the store is full or unavailable, the same call commits them
        later.
        """
        with forget_after(self._uncommitted, batch.shard):
            table = self._store.commit_or_keep(batch.shard, _table(batch, self._uncommitted[batch.shard]))
        images = _images(table, batch.shard, batch.image_keys)
        return (_blanks(images), sum(len(image) for image in images if isinstance(image, bytes))), images


def _blanks(images: Sequence[bytes | Image.Image | Withheld]) -> int:
    return sum(isinstance(image, Withheld) and image.reason == BLANK for image in images)


def _checked(seed: int, made: Any) -> bytes | Image.Image | Withheld:
    """What an engine made from one seed, withheld as blank if it shows one even colour. TypeError if it is no image."""
    if isinstance(made, Withheld):
        if made.reason not in REASONS:
            raise TypeError(
                f"the engine withheld the image of seed {seed} for '{made.reason}'; known: {', '.join(REASONS)}"
            )
        if made.image is not None:
            _checked(seed, made.image)  # what is withheld must be an image too
        elif made.reason == BLANK:
            raise TypeError(f"the engine withheld the image of seed {seed} as blank, but there is none")
        return made
    if isinstance(made, Image.Image):
        image = made
    elif isinstance(made, bytes) and made:
        try:
            image = open_image(made)
            image.load()
        except OSError as error:  # the errors of Pillow are OSErrors
            raise TypeError(f"the engine made no image of seed {seed}: {error}") from None
    else:
        kind = type(made).__name__
        raise TypeError(f"the engine made no image of seed {seed}: expected encoded bytes or a PIL image, got {kind}")
    extrema: Any = opaque_rgb(image).getextrema()
    return Withheld(made, BLANK) if all(high - low <= BLANK_RANGE for low, high in extrema) else made


def encoded(image: bytes | Image.Image) -> bytes:
    """An image as it is stored: the bytes that the engine gave, or a PNG."""
    if isinstance(image, bytes):
        return image
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _table(batch: ImageBatch, made: Sequence[bytes | Image.Image | Withheld]) -> pa.Table:
    n = len(made)
    pictures = [image.image if isinstance(image, Withheld) else image for image in made]
    columns = {
        "image_key": list(batch.image_keys),
        "image": [  # null where there is no picture; readers of Hugging Face's datasets get None
            None if picture is None else {"bytes": encoded(picture), "path": f"{key}.png"}
            for key, picture in zip(batch.image_keys, pictures, strict=True)
        ],
        "model": [batch.model] * n,
        "prompt": [batch.prompt] * n,
        "adapter": [batch.adapter] * n,
        "seed": list(batch.seeds),
        "withheld": [image.reason if isinstance(image, Withheld) else "" for image in made],
    }
    return pa.table(columns, schema=IMAGE_SHARD)


def read_images(store: Store, shard: str, image_keys: Sequence[str]) -> list[bytes | Withheld]:
    """The encoded images of a shard in the order of `image_keys`. Raises StoreError if one is not in it.

    Of a withheld image only the reason is returned: its pixels stay in the store.
    """
    return _images(store.read(shard), shard, image_keys)


def _images(table: pa.Table, shard: str, image_keys: Sequence[str]) -> list[bytes | Withheld]:
    names = ("image_key", "image", "withheld")
    if "withheld" not in table.column_names:  # stores from before images could be withheld
        table = table.append_column("withheld", pa.array([""] * table.num_rows))
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    images: dict[str, bytes | Withheld] = {}
    for key, image, reason in rows:
        if reason:
            images[key] = Withheld(None, reason)
        elif image is not None and image["bytes"] is not None:
            images[key] = image["bytes"]
    missing = [key for key in image_keys if key not in images]
    if missing:
        raise StoreError(f"shard '{shard}' lacks image {missing[0]}")
    return [images[key] for key in image_keys]
