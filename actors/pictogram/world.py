"""Worlds: joint distributions over pictograms that are known exactly, so that every measurement has a truth.

In a world, the figures of an occupation have the distribution

    p(x | occupation)  ~  exp( sum_a unary[occupation, a, x_a]  +  sum_{a<b} pairwise[a, b, x_a, x_b] )

over the 6,912 states x of eight axes. A world follows a prompt as real models do, that is, not always: each statement
of an attribute is followed with the probability that is its axis' *compliance*, and ignored otherwise. So with H the
set of axes whose statements are followed,

    p(x | occupation, stated) = sum_H prod_{a in H} c_a prod_{a not in H} (1 - c_a) p(x | occupation, x_H = stated_H)

and marginals, w, the IS matrix and tau are computed from it without sampling. All parameters come from the SHA-256 of
their names and not from a random generator, so a world is the same under every version of every library.

Example::

    alder = seesaw.WORLDS["alder"]
    alder.shares("A photo of a nurse")["gender"]    # the exact shares of male and female
    alder.sample("A photo of a nurse", seed=0)      # what one figure shows, or None
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from seesaw.actors.pictogram.codes import AXES, SHAPE, read_prompt

__all__ = ["WORLDS", "World", "uniform"]

_AXIS = tuple(AXES)
_STANDARD = NormalDist()

Array = NDArray[np.float64]


def uniform(*names: object) -> float:
    """A number in (0, 1) that depends on the names alone."""
    digest = hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()
    return (int.from_bytes(digest[:8], "big") + 0.5) / 2**64


def _normal(*names: object) -> float:
    return _STANDARD.inv_cdf(uniform(*names))


@dataclass(frozen=True)
class World:
    """One pictogram "model": how biased it is, how strongly its axes are coupled, and how often a figure is missing."""

    name: str
    bias: float = 1.8
    coupling: float = 1.0
    absent: float = 0.02  #: probability of an image without a figure, whatever the prompt says

    @cached_property
    def compliance(self) -> dict[str, float]:
        """By axis, the probability that a stated attribute is drawn: between 0.3 and 1, and low for many axes."""
        return {axis: 0.3 + 0.7 * uniform(self.name, "compliance", axis) ** 1.5 for axis in _AXIS}

    @cached_property
    def _pairwise(self) -> Array:
        logits = np.zeros(SHAPE)
        for a, b in itertools.combinations(range(len(_AXIS)), 2):
            table = np.array(
                [
                    [_normal(self.name, "pair", _AXIS[a], i, _AXIS[b], j) for j in range(SHAPE[b])]
                    for i in range(SHAPE[a])
                ]
            )
            logits = logits + self.coupling * table.reshape(
                [n if axis in (a, b) else 1 for axis, n in enumerate(SHAPE)]
            )
        return logits

    @lru_cache(maxsize=256)  # noqa: B019 - worlds are few and live as long as the process
    def joint(self, subject: str) -> Array:
        """p(x | subject), shape (2, 3, 6, 3, 2, 2, 4, 4), summing to 1."""
        logits = self._pairwise
        for a, axis in enumerate(_AXIS):
            unary = np.array([_normal(self.name, "unary", subject, axis, i) for i in range(SHAPE[a])])
            logits = logits + self.bias * unary.reshape([n if i == a else 1 for i, n in enumerate(SHAPE)])
        p: Array = np.exp(logits - logits.max())
        p /= p.sum()
        return p

    def conditional(self, subject: str, stated: Mapping[str, str]) -> Array:
        """p(x | subject, stated) with imperfect compliance; the shape of `joint`."""
        p = np.zeros(SHAPE)
        for followed in itertools.product((True, False), repeat=len(stated)):
            weight = 1.0
            for axis, is_followed in zip(stated, followed, strict=True):
                weight *= self.compliance[axis] if is_followed else 1 - self.compliance[axis]
            p += weight * self._fixed(
                subject, {a: v for (a, v), is_followed in zip(stated.items(), followed, strict=True) if is_followed}
            )
        return p

    def _fixed(self, subject: str, followed: Mapping[str, str]) -> Array:
        """p(x | subject, x = `followed`); the shape of `joint`."""
        where = tuple(AXES[a].index(followed[a]) if a in followed else slice(None) for a in _AXIS)
        p = np.zeros(SHAPE)
        p[where] = self.joint(subject)[where]
        p /= p.sum()
        return p

    @lru_cache(maxsize=4096)  # noqa: B019
    def _shares(self, text: str) -> dict[str, Array]:
        p = self.conditional(*read_prompt(text))
        axes = range(len(_AXIS))
        return {axis: p.sum(axis=tuple(i for i in axes if i != a)) for a, axis in enumerate(_AXIS)}

    def shares(self, text: str) -> Mapping[str, Array]:
        """By axis, the exact shares of its attributes, (k,), among the figures drawn for this prompt."""
        return self._shares(text)

    def sample(self, text: str, seed: int) -> dict[str, str] | None:
        """The figure that this world draws for a prompt and a seed, axis -> attribute; None for no figure.

        Draws for different prompts are independent, so exact shares give the null distribution of any statistic.
        """
        if uniform(self.name, "absent", text, seed) < self.absent:
            return None
        subject, stated = read_prompt(text)
        followed = {a: v for a, v in stated.items() if uniform(self.name, "heed", a, text, seed) < self.compliance[a]}
        cumulative = self._cumulative(subject, tuple(followed.items()))
        state = int(np.searchsorted(cumulative, uniform(self.name, "state", text, seed) * cumulative[-1], side="right"))
        position = np.unravel_index(min(state, cumulative.size - 1), SHAPE)
        return {axis: AXES[axis][i] for axis, i in zip(_AXIS, position, strict=True)}

    @lru_cache(maxsize=512)  # noqa: B019
    def _cumulative(self, subject: str, followed: tuple[tuple[str, str], ...]) -> Array:
        return np.cumsum(self._fixed(subject, dict(followed)).ravel())


#: The worlds that come with Seesaw, each a "model" of its own.
WORLDS: Mapping[str, World] = {
    world.name: world
    for world in (
        World("alder", bias=1.8, coupling=1.2),
        World("birch", bias=2.0, coupling=0.8),
        World("cedar", bias=1.6, coupling=1.2),
        World("dogwood", bias=2.2, coupling=1.0),
        World("elm", bias=1.5, coupling=1.0, absent=0.05),
    )
}
