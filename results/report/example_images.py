"""Example images of a run, read from its store for a page: tiny ones unchanged, large ones as small JPEGs."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from seesaw.results.errors import StoreError
from seesaw.results.images import opaque_rgb, open_image
from seesaw.results.store.identity import batch_key, batch_size, image_key, image_seed
from seesaw.results.store.store import Store
from seesaw.results.tables.run_reader import FIRST

__all__ = ["ExampleImage", "ExampleImages"]

_SIDE = 192  # px that a large image is scaled down to
_TINY = 128  # px; an image up to this size is shown pixel by pixel
_KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}  # formats that a page shows unchanged


@dataclass(frozen=True)
class ExampleImage:
    """A data URI, or "" with the reason in `missing`. `tiny` images are enlarged without smoothing."""

    uri: str
    tiny: bool = False
    missing: str = ""


class ExampleImages:
    """Reads the images of first batches from a store.

    `store` is "" if none may be opened: every image is then missing. `models` are the identities of models by name,
    `seed` is the run's root seed. `size` counts the characters of all URIs so far, since a page must stay small enough
    to open.
    """

    def __init__(self, store: str, models: Mapping[str, str], seed: int) -> None:
        self._store, self._models = Store(store) if store else None, models
        self._seeds = [image_seed(seed, index) for index in range(FIRST)]
        self._folders: dict[str, str] = {}
        self.size = 0

    def first(self, model: str, prompt: str, count: int, stated: int = 0) -> list[ExampleImage]:
        """The first `count` images, at most FIRST, of a prompt without adapter that states `stated` axes."""
        pictures: list[ExampleImage] = []
        size = batch_size(stated)
        for start in range(0, count, size):
            seeds = self._seeds[start : start + size]
            keys = [image_key(self._models.get(model, ""), prompt, "", seed) for seed in seeds]
            pictures += self._pictures(model, prompt, seeds, keys[: count - start])
        return pictures

    def pictures(self, model: str, prompt: str, image_keys: Sequence[str]) -> list[ExampleImage]:
        """The images `image_keys` of the first batch of a sweep's prompt; one that is not there has no URI."""
        return self._pictures(model, prompt, self._seeds, image_keys)

    def _pictures(self, model: str, prompt: str, seeds: Sequence[int], image_keys: Sequence[str]) -> list[ExampleImage]:
        if self._store is None:
            return [ExampleImage("", missing="the store was not opened")] * len(image_keys)
        identity = self._models.get(model, "")
        if model not in self._folders:
            self._folders[model] = self._store.folder("images", model, identity)
        shard = f"{self._folders[model]}/{batch_key(identity, prompt, '', seeds)}.parquet"
        try:
            table = self._store.read(shard).select(["image_key", "image", "withheld"])
        except FileNotFoundError:
            return [ExampleImage("", missing="image not in the store")] * len(image_keys)
        except (StoreError, OSError, KeyError):
            return [ExampleImage("", missing="image not readable in the store: run seesaw verify")] * len(image_keys)
        rows = {row["image_key"]: row for row in table.to_pylist()}
        pictures = [
            _picture(rows[key]) if key in rows else ExampleImage("", missing="image not in the store")
            for key in image_keys
        ]
        self.size += sum(len(picture.uri) for picture in pictures)
        return pictures


def _picture(row: Mapping[str, Any]) -> ExampleImage:
    """The image in a row of a shard. A withheld one is not shown: a safety checker may have flagged it."""
    if row["withheld"]:
        return ExampleImage("", missing=f"withheld: {row['withheld']}")
    encoded: bytes = row["image"]["bytes"]
    try:
        with open_image(encoded) as image:
            image.load()
            tiny = max(image.size) <= _TINY
            kind = _KINDS.get(image.format or "", "")
            if not tiny or not kind:
                small = opaque_rgb(image)
                small.thumbnail((_SIDE, _SIDE))
                file = io.BytesIO()
                small.save(file, "JPEG", quality=82)
                encoded, kind = file.getvalue(), "image/jpeg"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # not an image, or a vast one
        return ExampleImage("", missing="image cannot be decoded")
    return ExampleImage(f"data:{kind};base64,{base64.b64encode(encoded).decode()}", tiny)
