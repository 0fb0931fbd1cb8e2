"""What the TTI actor makes of an engine's images before anything is kept."""

import io

import datasets
import duckdb
import numpy as np
import pytest
from PIL import Image

from seesaw.actors.engines import VQAQuestion, Withheld
from seesaw.actors.simulated import SimulatedVQA
from seesaw.actors.tti import BLANK, ImageBatch, _checked, _table, read_images
from seesaw.actors.vqa import VQAQuestionnaire, ask_images
from seesaw.results.errors import StoreError
from seesaw.results.store.identity import batch_key, digest, image_key
from seesaw.results.store.store import Store


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
        (Withheld(None, "blank"), "as blank, but there is none"),
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
    answers = ask_images(SimulatedVQA({}), [image, Withheld(None, "flagged"), image], questionnaire)
    assert answers == [alone, [], alone]
    assert ask_images(SimulatedVQA({}), [Withheld(None, "blank")], questionnaire) == [[]]


@pytest.fixture
def refused(tmp_path):
    """A store with one batch of three images, the second of which the service refused; the batch."""
    store, identity = Store(tmp_path / "store"), digest("model", {"service": 1})
    seeds = (1, 2, 3)
    batch = ImageBatch(
        f"{store.folder('images', 'service', identity)}/{batch_key(identity, 'a nurse', '', seeds)}.parquet",
        "service", "a nurse", "", seeds, tuple(image_key(identity, "a nurse", "", seed) for seed in seeds),
    )  # fmt: skip
    made = [_checked(seed, image) for seed, image in enumerate([grey(0, 255), Withheld(None, "flagged"), grey(0, 200)])]
    store.commit(batch.shard, _table(batch, made))
    return store, batch


def test_an_image_that_was_refused_is_stored_without_a_picture_and_the_others_with_theirs(refused):
    store, batch = refused
    first, second, third = read_images(store, batch.shard, batch.image_keys)
    assert (second, type(first), type(third)) == (Withheld(None, "flagged"), bytes, bytes)
    assert not store.problems(batch.shard.rpartition("/")[0])
    assert [problem for _, problem in store.verify()] == [None]


def test_other_readers_open_a_store_with_an_image_that_was_refused(refused, tmp_path):
    _, batch = refused
    file = str(tmp_path / "store" / batch.shard)
    loaded = datasets.load_dataset("parquet", data_files=[file], split="train", cache_dir=str(tmp_path / "cache"))
    assert [image is None for image in loaded["image"]] == [False, True, False]
    assert loaded[0]["image"].size == (8, 8)
    counted = duckdb.sql(f"select withheld, count(image.bytes) from '{file}' group by all order by all").fetchall()
    assert counted == [("", 2), ("flagged", 0)]


def test_an_image_that_lacks_its_picture_and_was_not_withheld_is_an_error_of_the_store(refused):
    store, batch = refused
    table = store.read(batch.shard)
    asked = table.set_column(table.column_names.index("withheld"), "withheld", [["", "", ""]])
    forged = batch.shard.replace(".parquet", "0.parquet")
    store.commit(forged, asked)
    with pytest.raises(StoreError, match="lacks image"):
        read_images(store, forged, batch.image_keys)
