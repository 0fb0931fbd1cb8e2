"""Example images of a run, from its store into a page: tiny ones as they are, large ones as small JPEGs."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from seesaw.results.errors import StoreError
from seesaw.results.images import open_image
from seesaw.results.store.identity import batch_key, batch_size, image_key, image_seed
from seesaw.results.store.store import Store
from seesaw.results.tables.run_reader import FIRST

__all__ = ["Album", "Picture"]

_SIDE = 192  # px, of what a large image is scaled down to
_TINY = 128  # px, up to which an image is shown to the pixel
_KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}  # what a page gets as it is


@dataclass(frozen=True)
class Picture:
    """A data URI, or "" and the reason in `missing`; `tiny` images are to be scaled without smoothing."""

    uri: str
    tiny: bool = False
    missing: str = ""


class Album:
    """Looks up the images of first batches; `models` are identities by name, `seed` the run's root seed.

    `size` counts the characters of all URIs that it gave, since a page must stay small enough to open.
    """

    def __init__(self, store: str, models: Mapping[str, str], seed: int) -> None:
        self._store, self._models = Store(store), models
        self._seeds = [image_seed(seed, index) for index in range(FIRST)]
        self._folders: dict[str, str] = {}
        self.size = 0

    def first(self, model: str, prompt: str, count: int, stated: int = 0) -> list[Picture]:
        """The first `count` images, FIRST at most, of a prompt that states so many axes; of a model without adapter."""
        found: list[Picture] = []
        size = batch_size(stated)
        for start in range(0, count, size):
            seeds = self._seeds[start : start + size]
            keys = [image_key(self._models.get(model, ""), prompt, "", seed) for seed in seeds]
            found += self._pictures(model, prompt, seeds, keys[: count - start])
        return found

    def pictures(self, model: str, prompt: str, image_keys: Sequence[str]) -> list[Picture]:
        """The images `image_keys` of the first batch of a sweep's prompt; what is not there is without a URI."""
        return self._pictures(model, prompt, self._seeds, image_keys)

    def _pictures(self, model: str, prompt: str, seeds: Sequence[int], image_keys: Sequence[str]) -> list[Picture]:
        identity = self._models.get(model, "")
        if model not in self._folders:
            self._folders[model] = self._store.folder("images", model, identity)
        shard = f"{self._folders[model]}/{batch_key(identity, prompt, '', seeds)}.parquet"
        try:
            table = self._store.read(shard).select(["image_key", "image", "withheld"])
        except FileNotFoundError:
            return [Picture("", missing="image not in the store")] * len(image_keys)
        except (StoreError, OSError, KeyError):
            return [Picture("", missing="image not readable in the store: run seesaw verify")] * len(image_keys)
        held = {row["image_key"]: row for row in table.to_pylist()}
        found = [
            _picture(held[key]) if key in held else Picture("", missing="image not in the store") for key in image_keys
        ]
        self.size += sum(len(picture.uri) for picture in found)
        return found


def _picture(row: Mapping[str, Any]) -> Picture:
    """The image of a row of the store, unless it was withheld: what a safety checker flagged is shown to nobody."""
    if row["withheld"]:
        return Picture("", missing=f"withheld: {row['withheld']}")
    encoded: bytes = row["image"]["bytes"]
    try:
        with open_image(encoded) as image:
            image.load()
            tiny = max(image.size) <= _TINY
            kind = _KINDS.get(image.format or "", "")
            if not tiny or not kind:
                small = image.convert("RGB")
                small.thumbnail((_SIDE, _SIDE))
                file = io.BytesIO()
                small.save(file, "JPEG", quality=82)
                encoded, kind = file.getvalue(), "image/jpeg"
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ):  # what Pillow raises for no image, or a vast one
        return Picture("", missing="image cannot be decoded")
    return Picture(f"data:{kind};base64,{base64.b64encode(encoded).decode()}", tiny)
