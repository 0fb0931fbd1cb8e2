"""Encoded images that others made. Of Pillow's formats, one of which starts Ghostscript, few are read."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

__all__ = ["FORMATS", "open_image"]

FORMATS = ("PNG", "JPEG", "WEBP")


def open_image(source: bytes | Path) -> Image.Image:
    """`Image.open` of one of FORMATS, told apart by content; OSError for any other."""
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
