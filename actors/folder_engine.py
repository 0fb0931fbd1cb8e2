"""`folder`: real images in the place of a model, so that their D* is measured with the same store, questions and VLM.

The paper's appendix "Using Real World Biases" takes its D* from 48 images of a web search. They lie in
`path/<subject>/`, a folder for each subject of the dataset: `computer programmer`, `Computer-Programmer` or
`a photo of a computer programmer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from PIL import Image, ImageOps
from pydantic import Field
from pydantic.dataclasses import dataclass

from seesaw.actors.engines import ABSENT, Withheld
from seesaw.actors.real_images import BROKEN, SubjectFolder, same_name, sha256, subject_folders
from seesaw.actors.settings import STRICT, Whole, read_settings
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.images import is_converted_plainly, opaque_rgb, open_image
from seesaw.results.store.identity import image_seed

__all__ = ["FolderEngine", "real_images"]

MOST = 100_000  #: a seed's number is looked for among so many images of a prompt; the runner plans no more


@dataclass(frozen=True, config=STRICT)
class FolderSettings:
    """`path` is the folder, `template` the dataset's initial prompt, `seed` the config's root seed (0 in both)."""

    path: Annotated[str, Field(min_length=1, description="the folder of real images")]
    template: Annotated[
        str, Field(pattern=r"^[^{}]*\{subject\}[^{}]*$", description="a prompt that has {subject} in it once")
    ] = "A photo of a {subject}"
    seed: Whole = 0

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> FolderSettings:
        """Validated settings. Raises ConfigError that names the key that is wrong."""
        return read_settings(cls, settings, "the folder engine")


class FolderEngine:
    """A TTI engine over real images; see `FolderSettings` for its settings.

    Image i of a subject is its i-th file by path, so every file is one image, once. An engine is given seeds, and the
    root seed says which number each of them has. Real images have no counterfactuals: every prompt but the template
    with one of the subjects is refused. An image is stored upright and in RGB, with its pixels as they are.
    """

    #: the content of the files is identity; prompt and seed are part of an image's own
    inert = frozenset(field.name for field in fields(FolderSettings))

    def __init__(self, settings: Mapping[str, Any]) -> None:
        read = FolderSettings.read(settings)
        self._path, self._template, self._seed = read.path, read.template, read.seed
        folders = real_images(settings).values()
        # a prompt is looked up whole: no subject can be taken for another, nor for one with an attribute
        self._files = {prompt: folder.images for folder in folders for prompt in folder.prompts}
        most = max(map(len, self._files.values()))
        self._index = {image_seed(self._seed, i): i for i in range(most)}

    @classmethod
    def absolute(cls, settings: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
        """The settings with an absolute `path`; a relative one is looked for in `folders`."""
        path = Path(FolderSettings.read(settings).path).expanduser()
        places = (folder / path for folder in folders)
        return {**settings, "path": next((str(p.absolute()) for p in places if p.exists()), str(path))}

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The digest of every file, in order: images that were changed, added or taken away are another model."""
        folders = real_images(settings)
        return {"images": {name: [_digest(file) for file in folder.images] for name, folder in folders.items()}}

    @classmethod
    def preflight(cls, settings: Mapping[str, Any]) -> None:
        """ConfigError if a file is no image by its header."""
        for file in (file for folder in real_images(settings).values() for file in folder.images):
            try:
                open_image(file).close()
            except BROKEN as error:
                raise ConfigError(f"{file} is no image: {error}; take it out of the folder") from None

    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[Image.Image | Withheld]:
        """The files with these seeds' numbers, decoded. ABSENT where there are no more files, since batches are whole.

        Raises:
            ConfigError: a prompt that is no subject's initial one; another root seed; a file that cannot be decoded;
                an adapter.
        """
        if adapter:
            raise ConfigError("real images have no weights that an adapter could change")
        files = self._files.get(same_name(prompt))
        if files is None:
            raise ConfigError(
                f"real images of '{prompt}' are asked for{nearest(prompt, self._files)}; a folder of real images "
                f"has no counterfactuals, and nothing but '{self._template}' of the subjects in {self._path}"
            )
        return [self._image(files, seed) for seed in seeds]

    def _image(self, files: Sequence[Path], seed: int) -> Image.Image | Withheld:
        index = self._index.get(seed, len(files))
        if index < len(files):
            return _decoded(files[index])
        if seed not in self._index and all(image_seed(self._seed, i) != seed for i in range(MOST)):
            raise ConfigError(
                f"no image has the seed {seed} under the root seed {self._seed}; give the folder engine the `seed` "
                "of the config among its settings"
            )
        return Withheld(Image.new("RGB", (1, 1)), ABSENT)


def real_images(settings: Mapping[str, Any]) -> dict[str, SubjectFolder]:
    """The folders of all subjects, by name, with their images. ConfigError, also as `subject_folders` raises it."""
    read = FolderSettings.read(settings)
    return subject_folders(Path(read.path), read.template)


def _decoded(file: Path) -> Image.Image:
    """RGB pixels, as `opaque_rgb` has them, turned as the camera was held: a VLM does not read EXIF."""
    try:
        with open_image(file) as image:
            return opaque_rgb(ImageOps.exif_transpose(image))
    except BROKEN as error:
        raise ConfigError(f"{file} cannot be read as an image: {error}; take it out of the folder") from None


def _digest(file: Path) -> str:
    """The SHA-256 of a file, marked if it is not plainly converted: stores of 0.1.0 hold other pixels of the same file.

    A file that cannot be decoded has its SHA-256; it is refused when it is used.
    """
    digest = sha256(file)
    try:
        with open_image(file) as image:
            return digest if is_converted_plainly(image) else f"{digest} opaque"
    except BROKEN:
        return digest
