"""How many images are made of each prompt, and which of them judge a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seesaw.experiments.prompts import Prompt
from seesaw.results.errors import ConfigError, nearest

__all__ = ["FRESH", "MOST_IMAGES", "GivenImages", "Images", "images_of"]

MOST_IMAGES = 100_000  #: of a prompt; the paper's are 48, and a slip of the keyboard should not plan for years
#: The number of the first image that judges a decision. Decisions see images before it only, since no prompt has more
#: than MOST_IMAGES of them. A batch of any size begins at it, and it never moves: growing keeps all images.
FRESH = MOST_IMAGES


@dataclass(frozen=True)
class Images:
    """How many images are made of an initial prompt, and of each of its counterfactuals.

    The initial prompt has more, since every entry of a matrix compares it with the counterfactuals of an axis, which
    are several: four times the images there narrow all intervals by a third, for 11 % more images in all. Equal numbers
    are the paper's design. Raises ConfigError if the initial prompt has fewer images than a counterfactual.
    """

    initial: int = 192
    counterfactual: int = 48

    def __post_init__(self) -> None:
        if self.initial < self.counterfactual:
            raise ConfigError(
                f"images: {self.initial} of the initial prompt and {self.counterfactual} of each counterfactual; the "
                "initial prompt, with which all of them are compared, must have at least as many as each of them"
            )

    def of(self, prompt: Prompt) -> int:
        """How many images a prompt of a sweep has."""
        return self.counterfactual if prompt.stated else self.initial

    def as_config(self) -> int | dict[str, int]:
        """The config key `images` in its shortest form: a number if both are equal."""
        if self.initial == self.counterfactual:
            return self.initial
        return {"initial": self.initial, "counterfactual": self.counterfactual}


GivenImages = int | Mapping[str, int] | Images | None  #: what `images_of` reads


def images_of(value: object) -> Images:
    """Images from the config key: a number for all prompts, or {initial: 192, counterfactual: 48}.

    What is left out has its default; None leaves out everything. Raises ConfigError for anything else.
    """
    if isinstance(value, Images):
        return value
    if value is None:
        return Images()
    if not isinstance(value, Mapping):
        number = _number("images", value)
        return Images(number, number)
    for key in value:
        if key not in _KEYS:
            raise ConfigError(f"images has no key '{key}'{nearest(str(key), _KEYS)}")
    return Images(**{str(key): _number(f"images.{key}", number) for key, number in value.items()})


_KEYS = ("initial", "counterfactual")


def _number(key: str, value: object) -> int:
    number = value
    if (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and value.isdecimal()):
        number = int(value)  # a variable of the environment is text
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_IMAGES:
        raise ConfigError(f"{key} must be at least 1 and at most {MOST_IMAGES:,} a prompt, got {value!r}")
    return number
