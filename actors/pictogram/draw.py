"""The renderer: draws a state, an occupation and a seed as a 64 x 64 image.

Every attribute has a colour, shape or pattern of its own of at least 100 pixels. So a VLM and a trained generator can
tell the attributes of an axis apart, and none looks like a mixture of two others:

| axis | where | code |
|---|---|---|
| gender | head | outline: square, circle |
| age | tile, top left | green with a white cross-stroke, violet with a white ring, brown with white bars |
| ethnicity | head | fill: pink, blue, lime, orange, teal, violet |
| bodytype | torso | outline: disc, bar, triangle |
| environment | background | striped beige over brown, plain blue over green |
| clothing | torso | fill: dark with a red band, blue and white stripes |
| emotion | tile, top right | yellow with a black plus, blue with white bars, grey with a white square, pink with an X |
| disability | tile, right | white with a green frame, black and white checks, magenta with a disc, orange with a ring |
| occupation | emblem, bottom left | an upper and a lower colour |

The codes are arbitrary and depict nobody. Position, brightness and tint vary a little, by the seed alone: images of one
seed share this noise whatever their prompt, as images of a diffusion model share their initial noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from PIL import Image, ImageDraw

from seesaw.actors.pictogram.codes import OCCUPATIONS

__all__ = ["RENDERER", "SIZE", "draw"]

SIZE = 64
RENDERER = 1  #: version, part of an image's identity: raise it whenever a pixel changes

Colour = tuple[int, int, int]
Box = tuple[int, int, int, int]

WHITE, BLACK = (250, 250, 250), (20, 20, 24)
HEAD: Mapping[str, Colour] = {
    "white": (255, 120, 160),
    "black": (70, 120, 250),
    "asian": (160, 220, 50),
    "south asian": (255, 165, 40),
    "middle eastern": (50, 205, 190),
    "hispanic": (165, 90, 235),
}
UPPER = (
    (220, 40, 40),
    (40, 90, 220),
    (30, 150, 60),
    (250, 210, 40),
    (140, 40, 180),
    (30, 30, 30),
    (0, 200, 210),
    (245, 130, 30),
)
LOWER = ((250, 250, 250), (255, 100, 200), (20, 40, 110), (150, 230, 60))


def draw(state: Mapping[str, str] | None, occupation: str, seed: int) -> Image.Image:
    """Draw `state` (axis -> attribute; None for no figure) as an RGB image of 64 x 64 pixels."""
    noise = hashlib.sha256(f"draw/{seed}".encode()).digest()
    image = Image.new("RGB", (SIZE, SIZE))
    pen = ImageDraw.Draw(image)
    outdoor = (noise[0] % 2 == 1) if state is None else state["environment"] == "outdoor"
    _background(pen, outdoor, noise)
    _emblem(pen, occupation, noise)
    if state is not None:
        _figure(image, pen, state, noise)
        _age(pen, state["age"], _tile(2, 3, noise[6]))
        _emotion(pen, state["emotion"], _tile(48, 3, noise[7]))
        _disability(pen, state["disability"], _tile(48, 26, noise[8]))
    return image


def _tint(colour: Colour, *noise: int) -> Colour:
    r, g, b = (max(0, min(255, c + n % 21 - 10)) for c, n in zip(colour, noise, strict=True))
    return r, g, b


def _tile(x: int, y: int, noise: int) -> Box:
    """A 13 x 13 box, moved by up to one pixel each way."""
    x, y = x + noise % 3 - 1 + 1, y + noise // 3 % 3 - 1
    return x, y, x + 12, y + 12


def _background(pen: ImageDraw.ImageDraw, outdoor: bool, noise: bytes) -> None:
    floor = 52 + noise[1] % 3 - 1
    if outdoor:
        pen.rectangle((0, 0, 63, 63), fill=_tint((135, 195, 250), *noise[9:12]))
        pen.rectangle((0, floor, 63, 63), fill=_tint((80, 170, 70), *noise[12:15]))
        return
    pen.rectangle((0, 0, 63, 63), fill=_tint((238, 218, 188), *noise[9:12]))
    for x in range(noise[2] % 8, SIZE, 8):
        pen.rectangle((x, 0, x + 1, floor), fill=_tint((214, 186, 150), *noise[9:12]))
    pen.rectangle((0, floor, 63, 63), fill=_tint((140, 95, 65), *noise[12:15]))


def _emblem(pen: ImageDraw.ImageDraw, occupation: str, noise: bytes) -> None:
    if occupation in OCCUPATIONS:
        number = OCCUPATIONS.index(occupation)
    else:  # another subject has one of the emblems, always the same one
        number = hashlib.sha256(occupation.encode()).digest()[0] % (len(UPPER) * len(LOWER))
    x, y = 2 + noise[3] % 2, 42 + noise[4] % 2
    pen.rectangle((x, y, x + 11, y + 9), fill=UPPER[number % len(UPPER)])
    pen.rectangle((x, y + 10, x + 11, y + 19), fill=LOWER[number // len(UPPER)])


def _figure(image: Image.Image, pen: ImageDraw.ImageDraw, state: Mapping[str, str], noise: bytes) -> None:
    x, y = 31 + noise[15] % 5 - 2, 5 + noise[16] % 3 - 1
    for leg in (-5, 2):
        pen.rectangle((x + leg, y + 40, x + leg + 3, y + 52), fill=(50, 46, 60))
    torso = Image.new("1", (SIZE, SIZE))
    shape = ImageDraw.Draw(torso)
    top, bottom = y + 18, y + 42
    if state["bodytype"] == "fat":
        shape.ellipse((x - 14, top, x + 14, bottom), fill=1)
    elif state["bodytype"] == "slim":
        shape.rectangle((x - 5, top, x + 5, bottom), fill=1)
    else:
        shape.polygon(((x - 15, top), (x + 15, top), (x + 1, bottom), (x - 1, bottom)), fill=1)
    cloth = Image.new("RGB", (SIZE, SIZE), _tint((44, 46, 66), *noise[17:20]))
    fill = ImageDraw.Draw(cloth)
    if state["clothing"] == "formal":
        fill.rectangle((x - 2, 0, x + 2, 63), fill=(215, 30, 40))
    else:
        for stripe in range(top % 6, SIZE, 6):
            fill.rectangle((0, stripe, 63, stripe + 2), fill=(245, 245, 250))
            fill.rectangle((0, stripe + 3, 63, stripe + 5), fill=(60, 110, 200))
    image.paste(cloth, (0, 0), torso)
    head = (x - 8, y, x + 8, y + 16)
    colour = _tint(HEAD[state["ethnicity"]], *noise[20:23])
    if state["gender"] == "male":
        pen.rectangle(head, fill=colour, outline=BLACK)
    else:
        pen.ellipse(head, fill=colour, outline=BLACK)
    for eye in (-3, 2):
        pen.rectangle((x + eye, y + 6, x + eye + 1, y + 8), fill=BLACK)


def _bars(pen: ImageDraw.ImageDraw, box: Box, fill: Colour, step: int = 4) -> None:
    for y in range(box[1] + 2, box[3], step):
        pen.rectangle((box[0], y, box[2], y + 1), fill=fill)


def _age(pen: ImageDraw.ImageDraw, value: str, box: Box) -> None:
    x, y, right, bottom = box
    if value == "young":
        pen.rectangle(box, fill=(60, 180, 60))
        pen.line((x, bottom, right, y), fill=WHITE, width=3)
    elif value == "middle":
        pen.rectangle(box, fill=(120, 40, 160))
        pen.ellipse((x + 2, y + 2, right - 2, bottom - 2), outline=WHITE, width=2)
    else:
        pen.rectangle(box, fill=(125, 75, 40))
        _bars(pen, box, WHITE)


def _emotion(pen: ImageDraw.ImageDraw, value: str, box: Box) -> None:
    x, y, right, bottom = box
    if value == "happy":
        pen.rectangle(box, fill=(255, 220, 40))
        pen.rectangle((x + 5, y + 1, x + 7, bottom - 1), fill=BLACK)
        pen.rectangle((x + 1, y + 5, right - 1, y + 7), fill=BLACK)
    elif value == "sad":
        pen.rectangle(box, fill=(40, 70, 210))
        _bars(pen, box, WHITE)
    elif value == "serious":
        pen.rectangle(box, fill=(100, 104, 110))
        pen.rectangle((x + 3, y + 3, right - 3, bottom - 3), fill=WHITE)
    else:
        pen.rectangle(box, fill=(255, 130, 190))
        pen.line((x + 1, y + 1, right - 1, bottom - 1), fill=(90, 10, 60), width=3)
        pen.line((x + 1, bottom - 1, right - 1, y + 1), fill=(90, 10, 60), width=3)


def _disability(pen: ImageDraw.ImageDraw, value: str, box: Box) -> None:
    x, y, right, bottom = box
    if value == "fit":
        pen.rectangle(box, fill=WHITE, outline=(20, 130, 60), width=3)
    elif value == "blind":
        pen.rectangle(box, fill=WHITE)
        for i in range(13):
            for j in range(13):
                if (i // 3 + j // 3) % 2 == 0:
                    pen.point((x + i, y + j), fill=BLACK)
    elif value == "hearing aid":
        pen.rectangle(box, fill=(225, 30, 190))
        pen.ellipse((x + 4, y + 4, right - 4, bottom - 4), fill=WHITE)
    else:
        pen.rectangle(box, fill=(250, 140, 30))
        pen.ellipse((x + 2, y + 2, right - 2, bottom - 2), outline=BLACK, width=2)
