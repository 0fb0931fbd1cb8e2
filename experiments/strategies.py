"""Strategies: which axis is mitigated next. InterMit's is `greedy`; the others are what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seesaw.results.errors import ConfigError, nearest
from seesaw.results.tables.mitigation import TOLERANCE

__all__ = ["ALL", "GREEDY", "OWN", "Strategy", "View", "random_order", "strategies_of"]


@dataclass(frozen=True)
class View:
    """What is known when an axis is chosen; `axes` are the n axes of the dataset, in its order.

    `priority` weighs the chosen axes, in the order the user wrote them; `w` (n,) is the bias of every axis; `gamma` the
    gain of every candidate, empty unless the strategy looks at counterfactuals; `mitigated` in order of mitigation.
    """

    model: str
    subject: str
    axes: tuple[str, ...]
    priority: Mapping[str, float]
    w: NDArray[np.float64]
    gamma: Mapping[str, float]
    mitigated: tuple[str, ...]


@runtime_checkable
class Strategy(Protocol):
    """`looks`: the counterfactuals of candidates are observed. `stops`: at epsilon, not only once all is mitigated."""

    @property
    def name(self) -> str: ...
    @property
    def looks(self) -> bool: ...
    @property
    def stops(self) -> bool: ...

    def candidates(self, axes: Sequence[str], priority: Mapping[str, float]) -> tuple[str, ...]:
        """The axes that may be mitigated at all, of the dataset's `axes`."""
        ...

    def choose(self, view: View) -> str:
        """The axis to mitigate next, of the candidates that are not mitigated (one at least); "" if none gains."""
        ...


@dataclass(frozen=True)
class _Greedy:
    """InterMit (paper, algorithm 1): the largest gamma of all axes, chosen or not; the first axis wins a tie."""

    name: str = "greedy"
    looks: bool = True
    stops: bool = True

    def candidates(self, axes: Sequence[str], priority: Mapping[str, float]) -> tuple[str, ...]:
        return tuple(axes)

    def choose(self, view: View) -> str:
        return _largest(view.gamma, view.axes)


@dataclass(frozen=True)
class _Own:
    """The chosen axis with the largest w x priority; its effect on other axes is not looked at."""

    name: str = "own"
    looks: bool = False
    stops: bool = True

    def candidates(self, axes: Sequence[str], priority: Mapping[str, float]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis in priority)

    def choose(self, view: View) -> str:
        own = {
            axis: float(w) * view.priority[axis]
            for axis, w in zip(view.axes, view.w, strict=True)
            if axis in view.priority and axis not in view.mitigated
        }
        return _largest(own, view.axes)


@dataclass(frozen=True)
class _InOrder:
    """The chosen axes one after the other: as written (`all`, as ITI-GEN does, to the last), or in an order by `seed`.

    A random order depends on (seed, model, subject) alone, so a resumed mitigation has the same.
    """

    name: str
    looks: bool = False
    stops: bool = True
    seed: int | None = None

    def candidates(self, axes: Sequence[str], priority: Mapping[str, float]) -> tuple[str, ...]:
        return tuple(priority)

    def choose(self, view: View) -> str:
        left = [axis for axis in view.priority if axis not in view.mitigated]
        if self.seed is None:
            return left[0]
        return min(left, key=lambda axis: Random(f"{self.seed}\x1f{view.model}\x1f{view.subject}\x1f{axis}").random())


GREEDY: Strategy = _Greedy()
OWN: Strategy = _Own()
ALL: Strategy = _InOrder("all", stops=False)


def random_order(seed: int) -> Strategy:
    """The chosen axes in random order, drawn for every model and subject by `seed`."""
    return _InOrder("random", seed=seed)


def strategies_of(names: object, seed: int, load: Callable[[str], Strategy] | None = None) -> list[Strategy]:
    """Strategies by name, one or a list, none twice. Raises ConfigError for what is none.

    `load` makes the strategy of a name that is a class of the user's, `module:Class`.
    """
    listed = [names] if isinstance(names, str) else names
    known = {strategy.name: strategy for strategy in (GREEDY, ALL, OWN, random_order(seed))}
    if not isinstance(listed, Sequence) or not listed:
        raise ConfigError(f"strategy is {names!r}; it is one of {', '.join(known)}, or a list of them")
    for name in dict.fromkeys(name for name in listed if isinstance(name, str) and ":" in name):
        own = load(name) if load else None
        if own is not None and own.name in {strategy.name for strategy in known.values()}:
            raise ConfigError(f"strategy '{name}': its name is '{own.name}', and another strategy has that name")
        if own is not None:
            known[name] = own
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise ConfigError(f"strategy: there is none called '{name}'{nearest(str(name), known)}")
    return [known[name] for name in dict.fromkeys(listed)]


def _largest(gain: Mapping[str, float], axes: Sequence[str]) -> str:
    """The first of `axes` whose gain is the largest, "" if that is not above zero."""
    best = max(gain.values(), default=0.0)
    return next((a for a in axes if a in gain and gain[a] >= best - TOLERANCE), "") if best > TOLERANCE else ""
