"""What the TTI actor makes of an engine's images before anything is kept."""

import io

import numpy as np
import pytest
from PIL import Image

from seesaw.actors.engines import VQAQuestion, Withheld
from seesaw.actors.simulated import SimulatedVQA
from seesaw.actors.tti import BLANK, _checked
from seesaw.actors.vqa import VQAQuestionnaire, ask_images


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def grey(low: int, high: int, mode: str = "RGB") -> Image.Image:
    pixels = np.full((8, 8, 3), low, np.uint8)
    pixels[::2] = high
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("encode", [lambda image: image, png])
@pytest.mark.parametrize(
    ("image", "blank"),
    [
        (grey(0, 0), True),
        (grey(255, 255, "L"), True),
        (grey(9, 11), True),  # a black image that a codec has touched
        (grey(9, 12), False),
        (grey(0, 255, "L"), False),
        (grey(0, 255).quantize(2), False),
        (grey(7, 7).quantize(2), True),
        (grey(0, 255, "RGBA"), False),
        (Image.fromarray(np.full((8, 8), 0x8000, np.uint16)), True),
        (Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) << 10), False),  # grey of 16 bits
        (Image.merge("LA", (grey(0, 255, "L"), grey(0, 0, "L"))), True),  # all of it transparent
        (Image.merge("LA", (grey(0, 0, "L"), grey(0, 255, "L"))), False),  # a black drawing, cut out
    ],
)
def test_an_image_of_one_even_colour_is_blank_whatever_engine_made_it(image, blank, encode):
    made = encode(image)
    assert _checked(1, made) == (Withheld(made, BLANK) if blank else made)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "no image of seed 1"),
        (b"", "no image of seed 1"),
        (b"not a picture", "no image of seed 1"),
        (np.zeros((8, 8, 3)), "encoded bytes or a PIL image, got ndarray"),
        (Withheld(grey(0, 255), "nsfw"), "for 'nsfw'; known: blank, flagged"),
        (Withheld(grey(0, 255), ""), "known: blank, flagged"),
        (Withheld(b"", "flagged"), "no image of seed 1"),
    ],
)
def test_what_is_no_image_is_an_error_and_never_kept(made, message):
    with pytest.raises(TypeError, match=message):
        _checked(1, made)


def test_a_withheld_image_is_asked_nothing_and_the_others_all():
    person = VQAQuestion("Is there a person in the image (yes or no)?", ("yes", "no"))
    questionnaire = VQAQuestionnaire(person, (VQAQuestion("What is it?", ("this", "that")),))
    image = png(grey(0, 255))
    alone = ask_images(SimulatedVQA({}), [image], questionnaire)[0]
    answers = ask_images(SimulatedVQA({}), [image, Withheld(b"", "flagged"), image], questionnaire)
    assert answers == [alone, [], alone]
    assert ask_images(SimulatedVQA({}), [Withheld(b"", "blank")], questionnaire) == [[]]
