"""`misreading`: a VLM that misreads in a known way, so that what is said of misreadings can be compared with the truth.

It hands its questions on to the engine of another VLM and then changes some answers. Which ones depends on the image's
bytes, the question and `seed` alone: the same call always gives the same replies. Its settings are part of its
identity, so its answers are never taken for those of the VLM behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from seesaw.actors.engines import VQA_ENGINES, Reply, VQAQuestion
from seesaw.actors.pictogram.codes import AXES
from seesaw.actors.plugins import Plugin, find_plugin
from seesaw.actors.settings import STRICT, Whole, read_settings
from seesaw.results.errors import ConfigError, nearest

__all__ = ["MisreadingSettings", "MisreadingVQA"]

_OWNER = "the engine misreading"
_SUM = 1e-6  #: by how much a row may differ from 1
_ASKED = [axis for axis in AXES if axis != "disability"]  # it has three yes/no questions, of which none is the axis


@dataclass(frozen=True, config=STRICT)
class MisreadingSettings:
    """`engine` and `settings` are those of the VLM behind it. `misread` says by axis how it is misread.

    A number is the probability that the answer is another attribute, all others alike. A mapping has a row for each
    attribute that is misread: `{female: {male: 0.2}}` reads a fifth of the female ones as male.
    """

    misread: Annotated[dict[str, Any], Field(min_length=1, description="an axis at least, with how it is misread")]
    engine: Annotated[str, Field(min_length=1)] = "vllm"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: Whole = 0


class MisreadingVQA:
    """See `MisreadingSettings`. What the engine behind has besides `ask` (metrics, whether it is alive) is its own."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings, plugin = _read(settings)
        self._rows = _rows(self._settings.misread)
        self._engine: Any = plugin.load()(self._settings.settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self._engine, name)

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the engine behind adds. Raises ConfigError for settings that cannot be."""
        read, plugin = _read(settings)
        _rows(read.misread)
        engine = plugin.load()
        return {"behind": engine.identity(read.settings) if hasattr(engine, "identity") else {}}

    @classmethod
    def preflight(cls, settings: Mapping[str, Any]) -> None:
        read, plugin = _read(settings)
        engine = plugin.load()
        if hasattr(engine, "preflight"):
            engine.preflight(read.settings)

    def check(self, questions: Sequence[VQAQuestion]) -> None:
        """As the engine behind does."""
        self._engine.check(questions)

    def ask(self, requests: Sequence[tuple[bytes, Sequence[VQAQuestion]]]) -> list[list[Reply]]:
        """The replies of the engine behind, of which some have another answer."""
        return [
            [self._changed(image, question, reply) for question, reply in zip(questions, replies, strict=True)]
            for (image, questions), replies in zip(requests, self._engine.ask(requests), strict=True)
        ]

    def _changed(self, image: bytes, question: VQAQuestion, reply: Reply) -> Reply:
        row = self._rows.get(frozenset(question.choices), {}).get(reply.answer, {})
        if not row:
            return reply
        digest = hashlib.sha256(f"misread/{self._settings.seed}/{question.text}/".encode() + image).digest()
        chance = int.from_bytes(digest[:8], "big") / 2**64
        for answer, probability in row.items():
            if chance < probability:
                return _exchanged(question, reply, answer)
            chance -= probability
        return reply


def _exchanged(question: VQAQuestion, reply: Reply, answer: str) -> Reply:
    """The reply with `answer`, which takes the probability of the one that was given, and gives it its own."""
    one, other = question.choices.index(reply.answer), question.choices.index(answer)
    chances = list(reply.probabilities)
    chances[one], chances[other] = chances[other], chances[one]
    return replace(reply, answer=answer, probabilities=tuple(chances))


def _read(settings: Mapping[str, Any]) -> tuple[MisreadingSettings, Plugin]:
    read = read_settings(MisreadingSettings, settings, _OWNER)
    if read.engine not in VQA_ENGINES or read.engine == "misreading":
        known = [name for name in VQA_ENGINES if name != "misreading"]
        raise ConfigError(f"{_OWNER}: no engine '{read.engine}' behind it{nearest(read.engine, known)}")
    return read, find_plugin(read.engine, VQA_ENGINES)


def _rows(misread: Mapping[str, Any]) -> dict[frozenset[str], dict[str, dict[str, float]]]:
    """By a question's choices, and the attribute that is there, the probabilities of others. Raises ConfigError."""
    rows = {}
    for axis, how in misread.items():
        if axis not in _ASKED:
            hint = "; it has three questions, not one" if axis in AXES else nearest(axis, _ASKED)
            raise ConfigError(f"{_OWNER}: misread: no axis '{axis}' that can be misread{hint}")
        attributes = AXES[axis]
        if isinstance(how, int | float) and not isinstance(how, bool):
            rate = _probability(how, f"misread.{axis}")
            others = {one: [other for other in attributes if other != one] for one in attributes}
            of_axis = {one: dict.fromkeys(others[one], rate / len(others[one])) for one in attributes}
        elif isinstance(how, Mapping):
            of_axis = {str(one): _row(axis, str(one), row) for one, row in how.items()}
        else:
            raise ConfigError(f"{_OWNER}: misread.{axis} is {how!r}; it must be a number, or rows by attribute")
        rows[frozenset(attributes)] = of_axis
    return rows


def _row(axis: str, one: str, row: Any) -> dict[str, float]:
    where = f"misread.{axis}.{one}"
    if one not in AXES[axis]:
        raise ConfigError(f"{_OWNER}: misread.{axis}: no attribute '{one}'{nearest(one, AXES[axis])}")
    if not isinstance(row, Mapping):
        raise ConfigError(f"{_OWNER}: {where} is {row!r}; it must be a mapping of attributes to probabilities")
    for other in row:
        if other not in AXES[axis] or other == one:
            hint = nearest(str(other), [name for name in AXES[axis] if name != one])
            raise ConfigError(f"{_OWNER}: {where}: '{one}' cannot be read as '{other}'{hint}")
    chances = {str(other): _probability(value, f"{where}.{other}") for other, value in row.items()}
    if sum(chances.values()) > 1 + _SUM:
        raise ConfigError(f"{_OWNER}: {where} sums to {sum(chances.values()):g}; at most 1 is possible")
    return chances


def _probability(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ConfigError(f"{_OWNER}: {where} is {value!r}; it must be a probability, between 0 and 1")
    return float(value)
