"""Engines without a model: they take the time they are told to, and say what depends on the question alone.

For sizing a cluster, for benchmarks of everything around the models, and for trying a config's plumbing.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image
from pydantic.dataclasses import dataclass

from seesaw.actors.engines import FLAGGED, Reply, VQAQuestion, Withheld
from seesaw.actors.settings import STRICT, Number, read_settings

__all__ = ["SimulatedTTI", "SimulatedVQA"]

_OWNER = "a simulated engine"


@dataclass(frozen=True, config=STRICT)
class SimulatedTTISettings:
    """`seconds` an image; `bytes` of an image, at least what a picture of 4 x 4 pixels takes; `load` seconds.

    To see what a failure looks like: prompts with the words `fails` in them raise an error, prompts with the words
    `dies` end the process, and those with the words `blank` or `flagged` have some images that are that.
    """

    seconds: Number = 0
    bytes: Number = 64
    fails: str = ""
    dies: str = ""
    blank: str = ""
    flagged: str = ""
    load: Number = 0


@dataclass(frozen=True, config=STRICT)
class SimulatedVQASettings:
    """`seconds` a question; `load` seconds."""

    seconds: Number = 0
    load: Number = 0


class SimulatedTTI:
    """Images of noise; see `SimulatedTTISettings`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = read_settings(SimulatedTTISettings, settings, _OWNER)
        time.sleep(self._settings.load)

    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[bytes | Image.Image | Withheld]:
        if self._settings.dies and self._settings.dies in prompt:
            os._exit(1)
        if self._settings.fails and self._settings.fails in prompt:
            raise RuntimeError(f"told to fail on {prompt!r}")
        if self._settings.seconds:
            time.sleep(self._settings.seconds * len(seeds))
        return [self._image(prompt, hashlib.sha256(f"{prompt}/{adapter}/{seed}".encode()).digest()) for seed in seeds]

    def _image(self, prompt: str, noise: bytes) -> bytes | Withheld:
        some = noise[0] % 3 == 0
        pixels = bytes(48) if some and self._settings.blank and self._settings.blank in prompt else (noise * 2)[:48]
        file = io.BytesIO()
        Image.frombytes("RGB", (4, 4), pixels).save(file, "PNG")
        image = file.getvalue().ljust(int(self._settings.bytes), b"\0")
        return (
            Withheld(image, FLAGGED) if some and self._settings.flagged and self._settings.flagged in prompt else image
        )


class SimulatedVQA:
    """Answers by a hash of the image and the question; see `SimulatedVQASettings`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = read_settings(SimulatedVQASettings, settings, _OWNER)
        time.sleep(self._settings.load)

    def check(self, questions: Sequence[VQAQuestion]) -> None:
        """Any question will do."""

    def ask(self, requests: Sequence[tuple[bytes, Sequence[VQAQuestion]]]) -> list[list[Reply]]:
        if self._settings.seconds:
            time.sleep(self._settings.seconds * sum(len(questions) for _, questions in requests))
        return [[_reply(image, question) for question in questions] for image, questions in requests]


def _reply(image: bytes, question: VQAQuestion) -> Reply:
    number = hashlib.sha256(image + question.text.encode()).digest()[0]
    k = len(question.choices)
    # a person in nearly every image, so that what follows the person question is exercised too
    pick = (0 if number < 250 else 1) if question.text.startswith("Is there a person") else number % k
    return Reply(question.choices[pick], tuple(0.9 if i == pick else 0.1 / (k - 1) for i in range(k)), 1.0)
