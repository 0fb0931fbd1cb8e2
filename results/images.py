"""Opening encoded images from others. Few of Pillow's formats are allowed: one of them starts Ghostscript."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

__all__ = ["FORMATS", "open_image"]

FORMATS = ("PNG", "JPEG", "WEBP")


def open_image(source: bytes | Path) -> Image.Image:
    """`Image.open` for images in one of FORMATS, recognised by content. OSError for any other."""
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
