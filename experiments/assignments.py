"""What a user asks to be mitigated: subjects on models, each with its own priorities.

`priorities` of a config is one of

    draw, or {draw: 3}                     as the paper drew them, so many for every subject
    {gender: 0.5, age: 0.5}                of every subject
    {nurse: {gender: 0.5, age: 0.5}, ...}  of the subjects that are named
    [...]                                  any of the mappings above, or entries that may say more than a priority:
        {priority: {gender: 1}, subject: nurse, model: sd14, epsilon: 0.3, targets: {gender: [0.4, 0.6]}}
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.intermit import EPSILON
from seesaw.experiments.priorities import check_epsilon, check_priority, draw_priority
from seesaw.experiments.settings import make_settings
from seesaw.results.errors import ConfigError, nearest

__all__ = ["MOST_DRAWN", "Assignment", "assignments_of"]

MOST_DRAWN = 10_000  #: priority vectors a subject; the paper drew one
_ENTRY = ("priority", "subject", "model", "epsilon", "targets")


@dataclass(frozen=True)
class Assignment:
    """`priority` sums to 1; `targets` are those of its own, as written, beside the config's."""

    model: str
    subject: str
    priority: Mapping[str, float]
    epsilon: float = EPSILON
    targets: Mapping[str, Any] = field(default_factory=dict)
    usual: float = EPSILON  #: the config's epsilon, which a name need not tell

    @property
    def name(self) -> str:
        """The priorities as the paper's tables write them, then what differs from the config."""
        words = [f"{axis}:{weight:.6g}" for axis, weight in self.priority.items()]
        if self.epsilon != self.usual:
            words.append(f"epsilon:{self.epsilon:.6g}")
        for axis, target in self.targets.items():
            shares = target if isinstance(target, Mapping | str) else list(target)
            words.append(f"target-{axis}:{str(shares).replace(' ', '')}")
        return " ".join(words)


def assignments_of(
    dataset: Dataset, models: Sequence[str], given: object, *, epsilon: object = EPSILON, normalize: bool = False,
    seed: int = 0,
) -> list[Assignment]:  # fmt: skip
    """The assignments of `priorities` as a config gives them (None: drawn), by model and subject, none of them twice.

    Raises ConfigError for what has none of the forms above, unknown names, and as `check_priority` and `check_epsilon`.
    """
    usual = check_epsilon(epsilon)
    found = [
        each
        for asked in _entries(dataset, given, normalize, seed)
        for each in _spread(dataset, models, asked, usual, normalize)
    ]
    order = {pair: i for i, pair in enumerate(itertools.product(models, dataset.subjects))}
    once: dict[tuple[str, str, str], Assignment] = {}
    for each in found:
        if once.setdefault((each.model, each.subject, each.name), each) != each:
            raise ConfigError(
                f"two entries of priorities for '{each.subject}' are '{each.name}' and differ by less than can be told "
                "apart; leave one out"
            )
    return sorted(once.values(), key=lambda each: order[each.model, each.subject])


def _entries(dataset: Dataset, given: object, normalize: bool, seed: int) -> Iterator[Mapping[str, object]]:
    """`given` as entries."""
    axes = [axis.name for axis in dataset.axes]
    if given is None or given == "draw":
        given = {"draw": 1}
    if isinstance(given, Mapping) and set(given) == {"draw"} and "draw" not in axes:
        number = given["draw"]
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_DRAWN:
            raise ConfigError(f"priorities: draw is {number!r}; it is how many for every subject, 1 to {MOST_DRAWN:,}")
        for subject, i in itertools.product(dataset.subjects, range(number)):
            yield {"subject": subject, "priority": draw_priority(dataset, subject, seed + i)}
    elif isinstance(given, Mapping) and given:
        yield from _mapping(given)
    elif isinstance(given, Sequence) and not isinstance(given, str) and given:
        for entry in given:
            if not isinstance(entry, Mapping) or not entry:
                raise ConfigError(f"priorities: {entry!r} in the list is no mapping of axes to numbers, nor an entry")
            yield from _mapping(entry)
    else:
        raise ConfigError(
            f"priorities is {given!r}; it is 'draw', a mapping of axes to numbers that sum to 1, a list of such, "
            "or the path of a .csv"
        )


def _mapping(given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    if "priority" in given:
        yield given
    elif all(isinstance(value, Mapping) for value in given.values()):
        for subject, priority in given.items():
            yield {"subject": subject, "priority": priority}
    else:
        yield {"priority": given}


def _spread(
    dataset: Dataset, models: Sequence[str], entry: Mapping[str, object], usual: float, normalize: bool
) -> Iterator[Assignment]:
    """An entry for all models and subjects that it does not narrow down."""
    for key in entry:
        if key not in _ENTRY:
            raise ConfigError(f"an entry of priorities has the key '{key}'{nearest(key, _ENTRY)}")
    priority = check_priority(dataset, entry["priority"], normalize)
    epsilon = check_epsilon(entry.get("epsilon", usual))
    targets = entry.get("targets", {})
    if not isinstance(targets, Mapping):
        raise ConfigError(
            f"the targets of an entry of priorities are {targets!r}; they are a mapping of axes to shares"
        )
    make_settings(dataset, targets=targets)  # refuses what is none
    for model in _named("model", entry.get("model"), models):
        for subject in _named("subject", entry.get("subject"), dataset.subjects):
            yield Assignment(model, subject, priority, epsilon, targets, usual)


def _named(what: str, name: object, known: Sequence[str]) -> Sequence[str]:
    if name is None:
        return known
    if name not in known:
        raise ConfigError(f"priorities: no {what} '{name}' in this experiment{nearest(str(name), known)}")
    return [str(name)]
