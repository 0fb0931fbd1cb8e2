"""Opening encoded images from others. Few of Pillow's formats are allowed: one of them starts Ghostscript."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["FORMATS", "is_converted_plainly", "opaque_rgb", "open_image"]

FORMATS = ("PNG", "JPEG", "WEBP")


def open_image(source: bytes | Path) -> Image.Image:
    """`Image.open` for images in one of FORMATS, recognised by content. OSError for any other."""
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)


def opaque_rgb(image: Image.Image) -> Image.Image:
    """The image as a viewer shows it, in RGB: transparent parts on white, 16-bit grey as its 8 high bits.

    Pillow's `convert("RGB")` shows the hidden colour of a transparent pixel, often black, and clips 16-bit grey so that
    nearly every pixel becomes white. An opaque image of 8 bits has the pixels that `convert("RGB")` gives.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    shown = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown).convert("RGB")


def is_converted_plainly(image: Image.Image) -> bool:
    """Whether `opaque_rgb` gives no other pixels than `convert("RGB")`, which older versions used."""
    if not image.has_transparency_data and not image.mode.startswith("I"):
        return True
    return opaque_rgb(image).tobytes() == image.convert("RGB").tobytes()


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as L, or as LA if one grey level means transparent (the PNG chunk tRNS)."""
    levels = np.asarray(image).clip(0, 0xFFFF)
    grey = Image.fromarray((levels >> 8).astype(np.uint8))
    clear = image.info.get("transparency")
    if clear is None:
        return grey
    return Image.merge("LA", (grey, Image.fromarray(np.where(levels == clear, 0, 255).astype(np.uint8))))
