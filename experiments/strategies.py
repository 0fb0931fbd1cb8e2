"""Strategies: which axis is mitigated next. InterMit's is `greedy`; the others are baselines to compare it with."""

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
    """What a strategy can choose an axis from; `axes` are the n axes of the dataset, in its order.

    `priority` has the weights of the chosen axes, in the order in which the user wrote them. `w` (n,) is the bias of
    every axis. `gamma` is the gain of every candidate; it is empty unless the strategy looks at counterfactuals.
    `mitigated` has the axes that are mitigated already, in order of mitigation.
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
    """How the axis to mitigate next is chosen.

    `looks`: the counterfactuals of all candidates are observed before each choice, which gives their gamma. `stops`:
    the mitigation ends as soon as tau <= epsilon; without it, only when no candidate is left or at `max_steps`.
    """

    @property
    def name(self) -> str: ...
    @property
    def looks(self) -> bool: ...
    @property
    def stops(self) -> bool: ...

    def candidates(self, axes: Sequence[str], priority: Mapping[str, float]) -> tuple[str, ...]:
        """Those of the dataset's `axes` that may be mitigated at all. `priority` has the chosen axes."""
        ...

    def choose(self, view: View) -> str:
        """The axis to mitigate next: one of the candidates that are not mitigated yet, of which there is at least one.

        "" if no axis gains, which ends the mitigation.
        """
        ...


@dataclass(frozen=True)
class _Greedy:
    """InterMit (the paper's algorithm 1): the axis, chosen or not, with the largest gamma; the first one wins a tie."""

    name: str = "greedy"
    looks: bool = True
    stops: bool = True

    def candidates(self, axes: Sequence[str], priority: Mapping[str, float]) -> tuple[str, ...]:
        return tuple(axes)

    def choose(self, view: View) -> str:
        return _largest(view.gamma, view.axes)


@dataclass(frozen=True)
class _Own:
    """The chosen axis with the largest w x priority, whatever its effect on other axes."""

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
    """The chosen axes one after the other.

    Without `seed`: in the order written, to the last (`all`, as ITI-GEN does). With `seed`: in a random order, which
    depends on (seed, model, subject) alone, so that a resumed mitigation has the same order.
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
    """The chosen axes in a random order, which `seed` decides for every model and subject."""
    return _InOrder("random", seed=seed)


def strategies_of(names: object, seed: int, load: Callable[[str], Strategy] | None = None) -> list[Strategy]:
    """The strategies with these names (one name or a list), without duplicates. `seed` is that of `random`.

    `load` makes the strategy for a name that is a class of the user's, `module:Class`. Raises ConfigError for an
    unknown name, and if two strategies have the same name.
    """
    listed = [names] if isinstance(names, str) else names
    by_name = {strategy.name: strategy for strategy in (GREEDY, ALL, OWN, random_order(seed))}
    if not isinstance(listed, Sequence) or not listed:
        raise ConfigError(f"strategy is {names!r}; it must be one of {', '.join(by_name)}, or a list of them")
    for name in dict.fromkeys(name for name in listed if isinstance(name, str) and ":" in name):
        own = load(name) if load else None
        if own is not None and own.name in {strategy.name for strategy in by_name.values()}:
            raise ConfigError(f"strategy '{name}': its name is '{own.name}', and another strategy has that name")
        if own is not None:
            by_name[name] = own
    for name in listed:
        if not isinstance(name, str) or name not in by_name:
            raise ConfigError(f"there is no strategy '{name}'{nearest(str(name), by_name)}")
    return [by_name[name] for name in dict.fromkeys(listed)]


def _largest(gain: Mapping[str, float], axes: Sequence[str]) -> str:
    """The first of `axes` with the largest gain; "" if no gain is above 0."""
    best = max(gain.values(), default=0.0)
    return next((a for a in axes if a in gain and gain[a] >= best - TOLERANCE), "") if best > TOLERANCE else ""
