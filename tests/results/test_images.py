"""What a VLM and the blank check are shown of an image: what a viewer shows."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from seesaw.results.images import opaque_rgb, open_image

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLOURS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
HIDDEN = np.zeros((8, 8), bool)
HIDDEN[:, 4:] = True


def stored(image: Image.Image, form: str = "PNG", **options: object) -> Image.Image:
    """As an engine's image comes back from the store."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return open_image(file.getvalue())


def cut_out(mode: str) -> Image.Image:
    """The left half opaque, the right half transparent over a hidden black."""
    alpha = Image.fromarray(np.where(HIDDEN, 0, 255).astype(np.uint8))
    image = Image.fromarray(COLOURS if mode == "RGBA" else GREY)
    image.paste(0, mask=Image.fromarray(HIDDEN))
    image.putalpha(alpha)
    assert image.mode == mode
    return image


def on_white(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image.convert("RGB")).copy()
    pixels[HIDDEN] = 255
    return pixels


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_transparent_pixels_are_white_and_not_their_hidden_colour(mode, form, options):
    image = cut_out(mode)
    assert np.array_equal(np.asarray(opaque_rgb(image)), on_white(image))
    if (mode, form) != ("LA", "WEBP"):
        assert np.array_equal(np.asarray(opaque_rgb(stored(image, form, **options))), on_white(image))


def test_half_transparent_pixels_are_half_white():
    image = Image.new("RGBA", (4, 4), (0, 100, 200, 128))
    assert np.abs(np.asarray(opaque_rgb(image)).astype(int) - (127, 177, 227)).max() <= 1


@pytest.mark.parametrize("transparency", [0, bytes([0, 255])])
def test_a_palettes_transparent_colour_is_white(transparency):
    image = Image.fromarray(HIDDEN.astype(np.uint8) ^ 1, "P")  # colour 0 on the right half
    image.putpalette([0, 0, 0, 10, 20, 30])
    shown = np.asarray(opaque_rgb(stored(image, transparency=transparency)))
    assert np.array_equal(shown, np.where(HIDDEN[..., None], 255, (10, 20, 30)))


@pytest.mark.parametrize(("mode", "clear"), [("RGB", (1, 2, 3)), ("L", 7)])
def test_the_one_colour_that_a_png_calls_transparent_is_white(mode, clear):
    image = Image.new(mode, (8, 8), clear)
    image.paste(200 if mode == "L" else (200, 200, 200), (0, 0, 4, 8))
    shown = np.asarray(opaque_rgb(stored(image, transparency=clear)))
    assert np.array_equal(shown, np.where(HIDDEN[..., None], 255, (200, 200, 200)))


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_16_bit_grey_is_its_high_bits_and_not_white(kind):
    image = Image.fromarray((GREY.astype(kind) << 8) + 77)
    assert image.mode in ("I;16", "I")
    eight = np.asarray(Image.fromarray(GREY).convert("RGB"))
    assert np.array_equal(np.asarray(opaque_rgb(image)), eight)
    if image.mode == "I;16":  # the only one that a PNG has
        assert np.array_equal(np.asarray(opaque_rgb(stored(image))), eight)


def test_the_transparent_level_of_16_bit_grey_is_white():
    image = stored(Image.fromarray(GREY.astype(np.uint16) * 257), transparency=8 * 257)
    shown = np.asarray(opaque_rgb(image))
    assert np.array_equal(shown[..., 0], np.where(GREY == 8, 255, GREY))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"])
def test_opaque_images_keep_the_pixels_that_they_had(mode):
    image = Image.fromarray(COLOURS).convert("RGB").convert(mode)
    images = [image]
    images += [stored(image)] if mode not in ("CMYK", "YCbCr") else [stored(image, "JPEG")]
    for one in images:
        assert np.array_equal(np.asarray(opaque_rgb(one)), np.asarray(one.convert("RGB")))


def test_16_bit_colours_are_read_as_their_high_bits():
    """Pillow does it; a file as another program writes it, for Pillow writes none."""

    wide = (COLOURS.astype(">u2") << 8) + 0x55
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    assert np.array_equal(np.asarray(opaque_rgb(open_image(file))), COLOURS)
