"""What lies in a folder of real images: a folder for each subject, images in it and in its subfolders, and the rest."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from seesaw.results.errors import ConfigError
from seesaw.results.images import open_image

__all__ = ["BROKEN", "SubjectFolder", "count_copies", "same_name", "sha256", "spelt", "subject_folders"]

#: What Pillow raises for what is no image, of a broken PNG a SyntaxError, and for a vast one.
BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
_OTHERS = frozenset({".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jfif", ".svg"})
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})


@dataclass(frozen=True)
class SubjectFolder:
    images: tuple[Path, ...]  #: sorted by path
    unread: tuple[Path, ...]  #: files that are no images, links to folders; hidden files are not counted
    prompts: frozenset[str]  #: initial prompts that these images belong to, as `same_name` has them


def subject_folders(path: Path, template: str) -> dict[str, SubjectFolder]:
    """The folders of all subjects, by name as `spelt`, sorted by their names on disk.

    A folder is named after its subject or after the subject's initial prompt.

    Raises:
        ConfigError: no such folder, no image in it, two folders for one subject, images that lie beside the subjects'
            folders, or of a kind that is not read.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no folder '{path}' of real images; it has a folder for each subject")
    folders: dict[str, SubjectFolder] = {}
    by_prompt: dict[str, Path] = {}
    for place in sorted(path.iterdir()):
        if place.suffix.lower() in _SUFFIXES and place.is_file():
            raise ConfigError(f"{place}: whose image is it? Put it into {path}/<subject>/")
        if place.is_dir() and not place.name.startswith("."):
            name = spelt(place.name)
            prompts = frozenset(_prompts(template, name))
            other = next((by_prompt[prompt] for prompt in prompts if prompt in by_prompt), None)
            if other is not None:
                raise ConfigError(
                    f"{place}: there is another folder for '{name}', '{other.name}'; put all its images into one"
                )
            by_prompt.update(dict.fromkeys(prompts, place))
            files = tuple(_files(place))
            images = tuple(filter(_is_image, files))
            unread = tuple(file for file in files if file not in set(images))
            folders[name] = SubjectFolder(images, unread, prompts)
    if not any(folder.images for folder in folders.values()):
        raise ConfigError(f"there are no images ({', '.join(sorted(_SUFFIXES))}) in '{path}/<subject>/'")
    return folders


def count_copies(files: Sequence[Path]) -> int:
    """How many files have the bytes of an earlier one."""
    by_size: dict[int, list[Path]] = {}
    for file in files:
        by_size.setdefault(file.stat().st_size, []).append(file)
    alike = [group for group in by_size.values() if len(group) > 1]
    return sum(len(group) - len({sha256(file) for file in group}) for group in alike)


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def spelt(name: str) -> str:
    """A subject's or a folder's name with one space for whatever parts its words."""
    return " ".join(name.replace("_", " ").split())


def same_name(name: str) -> str:
    """Equal for names that mean the same: `Café-Owner` and `cafe\N{COMBINING ACUTE ACCENT}_owner`, as macOS writes it.

    Letters are composed (Unicode's NFC) and lower case, and one space stands for whatever parts the words.
    """
    folded = unicodedata.normalize("NFC", name).casefold()
    return spelt(unicodedata.normalize("NFC", folded).replace("-", " "))


def _texts(template: str, subject: str) -> tuple[str, ...]:
    """The initial prompt, with the template's article and with either: a dataset may mend "A photo of a engineer"."""
    articles = (re.sub(r"\b([Aa])n?(\s+)(?=\{subject\})", rf"\g<1>{n}\g<2>", template) for n in ("", "n"))
    return tuple(text.replace("{subject}", subject) for text in (template, *articles))


def _prompts(template: str, folder: str) -> Iterator[str]:
    """The prompts of the subject that `folder` names, and if it is named as a prompt, those of the prompt's subject."""
    subjects = [same_name(folder)]
    for text in map(same_name, _texts(template, "{subject}")):
        before, _, after = text.partition("{subject}")
        inner = subjects[0].removeprefix(before).removesuffix(after)
        if inner and f"{before}{inner}{after}" == subjects[0]:
            subjects.append(inner)
    for subject in subjects:
        yield from (same_name(text) for text in _texts(template, subject))


def _files(folder: Path) -> Iterator[Path]:
    """All that is not hidden in a folder and its subfolders, sorted by name; links to folders are not entered."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry)
        else:
            yield entry


def _is_image(file: Path) -> bool:
    """By suffix, so that a broken image is refused later and not passed over, or else by content."""
    if not file.is_file():
        return False
    suffix = file.suffix.lower()
    if suffix in _SUFFIXES:
        return True
    try:
        open_image(file).close()
    except BROKEN:
        if suffix in _OTHERS:
            raise ConfigError(
                f"{file} is of a kind that is not read; make it one of {', '.join(sorted(_SUFFIXES))}"
            ) from None
        return False
    return True
