"""Answers tables that are drawn from worlds whose every distribution is known, and their exact IS.

Four kinds of worlds differ in how biased and how coupled they are. In `null` and `null-fair`, nothing interacts: every
IS between two axes is exactly 0. Images of one number may share a part of their luck, whatever their prompts, as images
of one seed do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from seesaw.actors.pictogram.codes import AXES, SHAPE
from seesaw.actors.pictogram.world import WORLDS, World
from seesaw.experiments.biasconnect import biasconnect
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.images import Images
from seesaw.experiments.prompts import Prompt, prompts_of
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["KINDS", "NULL", "Chain", "chain_of", "draw", "draw_answers", "exact_values", "worlds_of"]

Floats = NDArray[np.float64]

#: (bias, coupling) of each kind of world; None: as the embedded worlds are
KINDS: Mapping[str, tuple[float, float] | None] = {
    "embedded": None,
    "fair": (0.25, 0.35),
    "null": (1.8, 0.0),
    "null-fair": (0.25, 0.0),
}
NULL = ("null", "null-fair")  #: kinds without couplings
_AXES = tuple(AXES)
_ATTRIBUTES = tuple(dict.fromkeys(attribute for attributes in AXES.values() for attribute in attributes))
_WORDS = (*_ATTRIBUTES, "no")  # what an answer can be; "no" is about the person


def worlds_of(kind: str) -> list[World]:
    """The worlds of one kind, named as the embedded ones."""
    values = KINDS[kind]
    if values is None:
        return list(WORLDS.values())
    return [replace(world, bias=values[0], coupling=values[1]) for world in WORLDS.values()]


@dataclass(frozen=True, eq=False)
class Chain:
    """A joint distribution, axis by axis: `tables[a]` (states of the axes before, k - 1) has P(value <= i | state)."""

    tables: tuple[Floats, ...]


def chain_of(p: Floats) -> Chain:
    """The joint distribution `p`, of shape SHAPE, as a chain of conditional ones."""
    tables = []
    for axis, k in enumerate(SHAPE):
        marginal = p.sum(axis=tuple(range(axis + 1, len(SHAPE)))).reshape(-1, k)
        total = marginal.sum(1, keepdims=True)
        tables.append(np.cumsum(marginal / np.where(total > 0, total, 1), 1)[:, :-1])
    return Chain(tuple(tables))


def draw(chain: Chain, u: Floats) -> NDArray[np.int64]:
    """The attributes of n images, (n, axes), from uniform numbers (n, axes)."""
    before, codes = np.zeros(len(u), np.int64), np.empty(u.shape, np.int64)
    for axis, (table, k) in enumerate(zip(chain.tables, SHAPE, strict=True)):
        codes[:, axis] = (u[:, axis, None] > table[before]).sum(1)
        before = before * k + codes[:, axis]
    return codes


@cache
def _chains(world: World, prompts: tuple[Prompt, ...]) -> list[Chain]:
    return [chain_of(world.conditional(prompt.subject, _stated(prompt))) for prompt in prompts]


def _stated(prompt: Prompt) -> dict[str, str]:
    return {prompt.source_axis: prompt.source_value} if prompt.source_axis else {}


def draw_answers(world: World, dataset: Dataset, images: Images, rho: float, rng: np.random.Generator) -> pd.DataFrame:
    """The answers about every image of a sweep of `world`: the seven columns that `seesaw.analyze` reads.

    The images of one number share a latent normal variable for each axis, over all prompts and subjects; `rho` is its
    share of the variance. An image without a person has a row that says so.
    """
    prompts = tuple(prompt for subject in dataset.subjects for prompt in prompts_of(dataset, subject))
    common = rng.standard_normal((images.initial, len(_AXES)))
    cells, numbers, codes = [], [], []
    for cell, (prompt, chain) in enumerate(zip(prompts, _chains(world, prompts), strict=True)):
        n = images.of(prompt)
        z = np.sqrt(rho) * common[:n] + np.sqrt(1 - rho) * rng.standard_normal((n, len(_AXES)))
        drawn = draw(chain, ndtr(z)) + _FIRST  # positions among all attributes
        drawn[rng.random(n) < world.absent] = -1
        cells.append(np.full(n, cell))
        numbers.append(np.arange(n))
        codes.append(drawn)
    cell, number, code = np.concatenate(cells), np.concatenate(numbers), np.concatenate(codes)
    absent = code[:, 0] < 0
    present, m = ~absent, len(_AXES)
    answer = np.concatenate([_POSITION[code[present]].ravel(), np.full(absent.sum(), len(_WORDS) - 1)])
    axis = np.concatenate([np.tile(np.arange(m), present.sum()), np.full(absent.sum(), m)])
    row = np.concatenate([np.repeat(np.flatnonzero(present), m), np.flatnonzero(absent)])
    return pd.DataFrame(
        {
            "model": _column([world.name], np.zeros(len(row), np.int64)),
            **{
                name: _column([getattr(prompt, name) for prompt in prompts], cell[row])
                for name in ("subject", "source_axis", "source_value")
            },
            "image": number[row],
            "axis": _column([*_AXES, "person"], axis),
            "answer": _column(_WORDS, answer),
        }
    )


_FIRST = np.cumsum([0, *SHAPE[:-1]])  # the position of every axis' first attribute among all
_POSITION = np.array([_WORDS.index(attribute) for attributes in AXES.values() for attribute in attributes])


def _column(words: Sequence[str], codes: NDArray[np.int64]) -> pd.Categorical:
    distinct = list(dict.fromkeys(words))
    position = {word: i for i, word in enumerate(distinct)}
    return pd.Categorical.from_codes(np.array([position[word] for word in words])[codes], distinct)


def exact_values(world: World, settings: AnalysisSettings) -> pd.DataFrame:
    """The exact IS and the exact w of the initial prompt, a row for every subject, source axis and target axis."""
    lab, names = ExactLab(settings.dataset, {world.name: world.shares}), [axis.name for axis in settings.dataset.axes]
    rows = []
    for subject in settings.dataset.subjects:
        exact = asyncio.run(biasconnect(lab, world.name, subject, settings, 1))
        rows += [
            (world.name, subject, source, target, value, w)
            for source, row in zip(names, exact.sensitivity, strict=True)
            for target, value, w in zip(names, row, exact.w_init, strict=True)
        ]
    return pd.DataFrame(rows, columns=["model", "subject", "source_axis", "target_axis", "exact", "exact_w"])
