"""A folder of real images in the place of a model: every file once, and nothing that is not in it."""

import hashlib
import io
import itertools
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from seesaw.actors.engines import ABSENT, TTI_ENGINES, Withheld
from seesaw.actors.folder_engine import FolderEngine, real_images
from seesaw.actors.plugins import find_plugin
from seesaw.actors.real_images import count_copies
from seesaw.actors.tti import ImageBatch, TTIActor, read_images
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import initial_prompt, prompts_of
from seesaw.results.errors import ConfigError
from seesaw.results.store.identity import image_key, image_seed
from seesaw.results.store.store import Store

NURSE, POLICE = "A photo of a nurse", "A photo of a police"
HOMES = {"nurse": 8, "police": 8, "politician": 16, "computer_programmer": 10}


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (6, 4, 3), np.uint8)


@pytest.fixture
def photos(tmp_path):
    """Files of noise of their own each, written in another order than that of their names."""
    for home, (folder, files) in enumerate(HOMES.items()):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for i in reversed(range(files)):
            Image.fromarray(pixels(100 * home + i)).save(tmp_path / "photos" / folder / f"{i:02}.png")
    return tmp_path / "photos"


def seeds(*index: int, root: int = 0) -> list[int]:
    return [image_seed(root, i) for i in index]


def same(image: Image.Image, number: int) -> bool:
    return np.array_equal(np.asarray(image), pixels(number))


def test_the_engine_is_known_by_its_name():
    assert find_plugin("folder", TTI_ENGINES).load() is FolderEngine


def test_image_i_is_file_i_whatever_batch_it_is_in(photos):
    engine = FolderEngine({"path": str(photos)})
    made = engine.generate("A photo of a politician", seeds(*range(8)))
    made += engine.generate("A photo of a politician", seeds(*range(8, 16)))
    assert all(same(image, 200 + i) for i, image in enumerate(made))
    assert same(engine.generate("A photo of a politician", seeds(5))[0], 205)


def test_a_subject_is_never_taken_for_another(photos):
    engine = FolderEngine({"path": str(photos)})
    assert same(engine.generate(POLICE, seeds(0))[0], 100)
    assert same(engine.generate("A photo of a politician", seeds(0))[0], 200)
    assert same(engine.generate("A photo of a computer programmer", seeds(0))[0], 300)


def test_every_initial_prompt_of_the_dataset_finds_its_folder_and_no_counterfactual_does(tmp_path):
    original = load_dataset("occupation")
    for number, subject in enumerate(original.subjects):
        place = tmp_path / (subject.replace(" ", "_") if number % 2 else subject)
        place.mkdir()
        Image.fromarray(pixels(number)).save(place / "photo.png")
    engine = FolderEngine({"path": str(tmp_path)})
    mended = load_dataset({"name": "mended", "extends": "occupation", "verbatim": False})
    for dataset, (number, subject) in itertools.product((original, mended), enumerate(original.subjects)):
        assert same(engine.generate(initial_prompt(dataset, subject).text, seeds(0))[0], number)
        for prompt in prompts_of(dataset, subject)[1:]:
            with pytest.raises(ConfigError, match="has no counterfactuals"):
                engine.generate(prompt.text, seeds(0))


def test_another_template_is_a_setting(photos):
    engine = FolderEngine({"path": str(photos), "template": "{subject}, a portrait"})
    assert same(engine.generate("police, a portrait", seeds(3))[0], 103)
    with pytest.raises(ConfigError, match=r"nothing but '\{subject\}, a portrait' of the subjects in"):
        engine.generate(POLICE, seeds(3))


def test_the_rest_of_a_whole_batch_is_absent(photos):
    engine = FolderEngine({"path": str(photos)})
    last = engine.generate("A photo of a computer programmer", seeds(*range(8, 16)))
    assert [isinstance(image, Withheld) for image in last] == [False] * 2 + [True] * 6
    assert {image.reason for image in last[2:]} == {ABSENT}
    assert [image.reason for image in engine.generate(NURSE, seeds(96))] == [ABSENT]


def test_another_root_seed_is_refused_unless_it_is_told(photos):
    with pytest.raises(ConfigError, match="under the root seed 0; give the folder engine the `seed` of the config"):
        FolderEngine({"path": str(photos)}).generate(NURSE, seeds(0, root=7))
    engine = FolderEngine({"path": str(photos), "seed": 7})
    assert [same(image, i) for i, image in enumerate(engine.generate(NURSE, seeds(*range(8), root=7)))] == [True] * 8


def test_a_photo_is_kept_as_the_camera_was_held(photos):
    """EXIF says "turn me", and a VLM's own reader does not."""
    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise when it is shown
    sideways = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    for name in ("00.png", "01.png"):
        (photos / "nurse" / name).unlink()
    sideways.save(photos / "nurse" / "00.JPEG", exif=exif, quality=95)
    Image.fromarray(upright).convert("L").save(photos / "nurse" / "01.webp", lossless=True)
    for image in FolderEngine({"path": str(photos)}).generate(NURSE, seeds(0, 1)):
        assert (image.mode, image.size) == ("RGB", (40, 20))
        assert np.abs(np.asarray(image).astype(int) - upright).max() < 30


def test_the_actor_keeps_the_files_pixels_in_the_store(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("seesaw.actors.tti.set_up_process", lambda *_: None)  # this process is not the actor's own
    Store(tmp_path / "store").probe()
    actor = TTIActor(
        "real",
        find_plugin("folder", TTI_ENGINES),
        {"path": str(photos)},
        str(tmp_path / "store"),
        1,
        "/nowhere/real.log",
    )
    actor.load()
    numbers = tuple(seeds(*range(8)))
    keys = tuple(image_key("m", NURSE, "", seed) for seed in numbers)
    batch = ImageBatch("images/real/0.parquet", "real", NURSE, "", numbers, keys)
    actor.generate(batch)
    (blanks, size), _ = actor.commit(batch)
    assert blanks == 0
    assert size > 8 * 100
    kept = read_images(Store(str(tmp_path / "store")), batch.shard, keys)
    assert all(same(Image.open(io.BytesIO(image)), i) for i, image in enumerate(kept))


def test_identity_is_what_the_files_hold_in_order(photos):
    settings = {"path": str(photos)}
    known = FolderEngine.identity(settings)
    os.utime(photos / "nurse" / "00.png")
    (photos / "nurse" / "notes.txt").write_text("where they are from")
    (photos / "nurse" / "._00.png").write_bytes(b"of a file manager")
    moved = photos.rename(photos.with_name("moved"))
    assert FolderEngine.identity({"path": str(moved)}) == known
    assert FolderEngine.inert >= {"path"}

    def changed() -> bool:
        nonlocal known
        known, before = FolderEngine.identity({"path": str(moved)}), known
        return known != before

    Image.fromarray(pixels(7777)).save(moved / "nurse" / "03.png")
    assert changed()
    (moved / "nurse" / "00.png").rename(moved / "nurse" / "99.png")
    assert changed()
    (moved / "police" / "07.png").unlink()
    assert changed()
    (moved / "police").rename(moved / "guard")
    assert changed()
    assert not changed()


def test_files_whose_pixels_are_read_otherwise_than_by_0_1_0_are_another_model(photos):
    """A store of 0.1.0 holds cut-outs on black; images of the same files on white must not be taken for them."""
    place = photos / "nurse"
    for file in place.iterdir():
        file.unlink()
    opaque = Image.fromarray(pixels(1)).convert("RGBA")
    cut_out = opaque.copy()
    cut_out.putpixel((0, 0), (9, 9, 9, 0))
    for name, image in {
        "0.png": opaque,
        "1.png": cut_out,
        "2.png": Image.fromarray(np.full((4, 4), 99, np.uint16)),
        "3.png": Image.fromarray(np.full((4, 4), 9999, np.uint16)),
        "4.jpg": Image.fromarray(pixels(2)),
    }.items():
        image.save(place / name)
    (place / "5.png").write_bytes(b"no image")
    digests = FolderEngine.identity({"path": str(photos)})["images"]["nurse"]
    plain = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(place.iterdir())]
    assert digests == [plain[0], *(f"{digest} opaque" for digest in plain[1:4]), *plain[4:]]
    image = FolderEngine({"path": str(photos)}).generate(NURSE, seeds(1))[0]
    assert image.getpixel((0, 0)) == (255, 255, 255)


def test_a_relative_path_is_found_beside_the_config(photos, tmp_path):
    assert FolderEngine.absolute({"path": "photos", "seed": 1}, [tmp_path / "other", tmp_path]) == {
        "path": str(photos),
        "seed": 1,
    }
    with pytest.raises(ConfigError, match="there is no folder 'pictures' of real images"):
        FolderEngine.identity(FolderEngine.absolute({"path": "pictures"}, [tmp_path]))


def test_folders_are_subjects(photos):
    folders = real_images({"path": str(photos)})
    assert {subject: len(folder.images) for subject, folder in folders.items()} == {
        "computer programmer": 10, "nurse": 8, "police": 8, "politician": 16,
    }  # fmt: skip
    assert [file.name for file in folders["nurse"].images] == [f"{i:02}.png" for i in range(8)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs the setting 'path': the folder of real images"),
        ({"path": 3}, "path must be the folder of real images, got 3"),
        ({"path": "x", "pth": "y"}, "no setting 'pth'; did you mean 'path'"),
        (
            {"path": "x", "template": "A photo"},
            "template must be a prompt that has {subject} in it once, got 'A photo'",
        ),
        ({"path": "x", "seed": "0"}, "seed must be a whole number of at least 0, got '0'"),
        ({"path": "x", "seed": True}, "seed must be a whole number of at least 0, got True"),
        ({"path": "x", "seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_settings_that_are_wrong_are_named(settings, message):
    for use in (FolderEngine, FolderEngine.identity, lambda given: FolderEngine.absolute(given, [])):
        with pytest.raises(ConfigError, match=message):
            use(settings)


def test_folders_that_are_wrong_are_named(photos):
    settings = {"path": str(photos)}
    (photos / "computer programmer").mkdir()
    with pytest.raises(ConfigError, match="there is another folder for 'computer programmer'"):
        real_images(settings)
    (photos / "computer programmer").rmdir()
    Image.fromarray(pixels(0)).save(photos / "stray.png")
    with pytest.raises(ConfigError, match=r"stray.png: whose image is it\? Put it into .*<subject>"):
        real_images(settings)
    (photos / "police" / "empty").mkdir()
    for file in (photos / "police").glob("*.png"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"there are no images .*in '.*police/<subject>/'"):
        real_images({"path": str(photos / "police")})


def test_a_file_that_is_no_image_is_named_before_work_starts_and_a_broken_one_when_it_is_read(photos):
    settings = {"path": str(photos)}
    FolderEngine.preflight(settings)
    whole = (photos / "nurse" / "02.png").read_bytes()
    (photos / "nurse" / "02.png").write_bytes(whole[: len(whole) - 40])
    with pytest.raises(ConfigError, match=r"02\.png cannot be read as an image"):
        FolderEngine(settings).generate(NURSE, seeds(2))
    (photos / "nurse" / "02.png").write_text("<html>not found</html>")
    with pytest.raises(ConfigError, match=r"02\.png is no image"):
        FolderEngine.preflight(settings)


def test_an_adapter_is_refused(photos):
    with pytest.raises(ConfigError, match="no weights that an adapter could change"):
        FolderEngine({"path": str(photos)}).generate(NURSE, seeds(0), "sha256:1")


def test_a_subject_is_found_however_its_words_are_parted(tmp_path):
    for folder in ("data_scientist", "social  worker"):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels(7)).save(tmp_path / folder / "photo.png")
    engine = FolderEngine({"path": str(tmp_path)})
    for subject in ("data_scientist", "data scientist", "social worker"):
        assert same(engine.generate(f"A photo of a {subject}", seeds(0))[0], 7)


def test_images_of_other_kinds_and_vast_ones_are_refused_and_not_passed_over(tmp_path):
    (tmp_path / "nurse").mkdir()
    Image.fromarray(pixels(7)).save(tmp_path / "nurse/a.png")
    vast = bytearray((tmp_path / "nurse/a.png").read_bytes())
    vast[16:24] = struct.pack(">II", 40_000, 40_000)
    vast[29:33] = struct.pack(">I", zlib.crc32(vast[12:29]))
    (tmp_path / "nurse/b.png").write_bytes(vast)
    with pytest.raises(ConfigError, match=r"b\.png is no image"):
        FolderEngine.preflight({"path": str(tmp_path)})
    (tmp_path / "nurse/b.png").unlink()
    Image.fromarray(pixels(7)).save(tmp_path / "nurse/c.gif")
    with pytest.raises(ConfigError, match=r"c.gif is of a kind that is not read; make it one of .jpeg"):
        real_images({"path": str(tmp_path)})


def test_subfolders_are_searched_and_images_without_a_suffix_found_by_content(tmp_path):
    place = tmp_path / "nurse"
    for folder in ("set0/deep", "set1", ".cache"):
        (place / folder).mkdir(parents=True)
    names = ["0.png", "1.pjpeg", "2", "3.jpg_large", "4.jfif", "set0/5.PNG", "set0/deep/6", "set1/7.webp"]
    for number, name in enumerate(names):
        kind = {"0.png": "PNG", "set0/5.PNG": "PNG", "set1/7.webp": "WEBP"}.get(name, "JPEG")
        Image.fromarray(pixels(number)).save(place / name, kind)
    unread = ["notes", "notes.txt", "set1/page.html"]
    for name in unread:
        (place / name).write_text("where they are from")
    os.mkfifo(place / "pipe")
    (place / "up").symlink_to(tmp_path)  # a circle
    for name in (".cache/a.png", "._0.png"):
        (place / name).write_bytes(b"of a file manager")
    folder = real_images({"path": str(tmp_path)})["nurse"]
    assert folder.images == tuple(place / name for name in names)
    assert folder.unread == tuple(place / name for name in ["notes", "notes.txt", "pipe", "set1/page.html", "up"])
    made = FolderEngine({"path": str(tmp_path)}).generate(NURSE, seeds(*range(9)))
    assert same(made[5], 5)
    assert [isinstance(image, Withheld) for image in made] == [False] * 8 + [True]


def test_copies_are_counted_in_subfolders_too(tmp_path):
    (tmp_path / "set").mkdir()
    for name, content in {
        "0": b"one",
        "1": b"one",
        "set/0": b"one",
        "2": b"two",
        "3": b"six",
        "set/9": b"three",
    }.items():
        (tmp_path / name).write_bytes(content)
    files = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    assert count_copies(files) == 2
    assert count_copies(files[:1]) == count_copies([]) == 0


@pytest.mark.parametrize(
    ("folder", "subject"),
    [
        ("Nurse", "nurse"),
        ("nurse", "NURSE"),
        ("Computer-Programmer", "computer programmer"),
        ("computer_programmer", "computer-programmer"),
        ("infirmie\N{COMBINING GRAVE ACCENT}re", "infirmi\N{LATIN SMALL LETTER E WITH GRAVE}re"),
        ("INFIRMI\N{LATIN CAPITAL LETTER E WITH GRAVE}RE", "infirmie\N{COMBINING GRAVE ACCENT}re"),
        ("STRASSENFEGER", "stra\N{LATIN SMALL LETTER SHARP S}enfeger"),
        ("a photo of a nurse", "nurse"),
        ("A_photo_of_an_engineer", "engineer"),
        ("A photo of a engineer", "engineer"),
    ],
)
def test_a_folder_is_found_by_case_unicode_form_dashes_and_as_a_prompt(tmp_path, folder, subject):
    (tmp_path / folder).mkdir()
    Image.fromarray(pixels(7)).save(tmp_path / folder / "photo.png")
    engine = FolderEngine({"path": str(tmp_path)})
    for article in ("a", "an"):
        assert same(engine.generate(f"A photo of {article} {subject}", seeds(0))[0], 7)
    with pytest.raises(ConfigError, match="no counterfactuals"):
        engine.generate(f"A photo of a male {subject}", seeds(0))


@pytest.mark.parametrize("second", ["Nurse", "a photo of a nurse", "A-photo-of-an-nurse"])
def test_two_folders_of_one_subject_are_refused_however_they_are_named(tmp_path, second):
    for folder in ("nurse", second):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels(7)).save(tmp_path / folder / "photo.png")
    with pytest.raises(ConfigError, match="there is another folder for"):
        FolderEngine({"path": str(tmp_path)})


def test_a_subject_that_begins_as_the_template_does_keeps_its_folder(tmp_path):
    for folder in ("a level teacher", "nurse"):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels(len(folder))).save(tmp_path / folder / "photo.png")
    engine = FolderEngine({"path": str(tmp_path), "template": "A {subject}"})
    assert same(engine.generate("A a level teacher", seeds(0))[0], len("a level teacher"))
