"""What a user wants to be mitigated: subjects on models, each with its own priorities.

The config key `priorities` has one of these forms:

    draw, or {draw: 3}                     drawn as the paper drew them: one, or three, for every subject
    {gender: 0.5, age: 0.5}                for every subject
    {nurse: {gender: 0.5, age: 0.5}, ...}  for the named subjects
    [...]                                  a list of mappings like the last two, or of entries that say more:
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

MOST_DRAWN = 10_000  #: priority vectors that may be drawn for a subject; the paper drew one
_ENTRY_KEYS = ("priority", "subject", "model", "epsilon", "targets")


@dataclass(frozen=True)
class Assignment:
    """One subject on one model, to be mitigated. `priority` sums to 1.

    `targets` are as the user wrote them; they replace the config's targets of the same axes.
    """

    model: str
    subject: str
    priority: Mapping[str, float]
    epsilon: float = EPSILON
    targets: Mapping[str, Any] = field(default_factory=dict)
    default_epsilon: float = EPSILON  #: the config's epsilon; `name` shows only an epsilon that differs from it

    @property
    def name(self) -> str:
        """The priorities as the paper's tables write them, then what differs from the config."""
        words = [f"{axis}:{weight:.6g}" for axis, weight in self.priority.items()]
        if self.epsilon != self.default_epsilon:
            words.append(f"epsilon:{self.epsilon:.6g}")
        for axis, target in self.targets.items():
            shares = target if isinstance(target, Mapping | str) else list(target)
            words.append(f"target-{axis}:{str(shares).replace(' ', '')}")
        return " ".join(words)


def assignments_of(
    dataset: Dataset, models: Sequence[str], priorities: object, *, epsilon: object = EPSILON, normalize: bool = False,
    seed: int = 0,
) -> list[Assignment]:  # fmt: skip
    """The assignments that `priorities` of a config describes (None: drawn), by model and subject, none of them twice.

    Raises ConfigError if `priorities` has none of the forms above or contains an unknown name, and whenever
    `check_priority` or `check_epsilon` does.
    """
    default_epsilon = check_epsilon(epsilon)
    assignments = [
        assignment
        for entry in _entries(dataset, priorities, normalize, seed)
        for assignment in _assignments_of_entry(dataset, models, entry, default_epsilon, normalize)
    ]
    order = {pair: i for i, pair in enumerate(itertools.product(models, dataset.subjects))}
    by_name: dict[tuple[str, str, str], Assignment] = {}
    for assignment in assignments:
        key = assignment.model, assignment.subject, assignment.name
        if by_name.setdefault(key, assignment) != assignment:
            raise ConfigError(
                f"two entries of priorities for '{assignment.subject}' have the same name, '{assignment.name}', since "
                "their numbers differ too little to show; leave one out"
            )
    return sorted(by_name.values(), key=lambda assignment: order[assignment.model, assignment.subject])


def _entries(dataset: Dataset, priorities: object, normalize: bool, seed: int) -> Iterator[Mapping[str, object]]:
    """`priorities`, in any of its forms, as entries."""
    axes = [axis.name for axis in dataset.axes]
    if priorities is None or priorities == "draw":
        priorities = {"draw": 1}
    if isinstance(priorities, Mapping) and set(priorities) == {"draw"} and "draw" not in axes:
        number = priorities["draw"]
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_DRAWN:
            raise ConfigError(
                f"priorities: draw is {number!r}; it must be the number of priority vectors for every subject, "
                f"1 to {MOST_DRAWN:,}"
            )
        for subject, i in itertools.product(dataset.subjects, range(number)):
            yield {"subject": subject, "priority": draw_priority(dataset, subject, seed + i)}
    elif isinstance(priorities, Mapping) and priorities:
        yield from _entries_of_mapping(priorities)
    elif isinstance(priorities, Sequence) and not isinstance(priorities, str) and priorities:
        for entry in priorities:
            if not isinstance(entry, Mapping) or not entry:
                raise ConfigError(
                    f"priorities: {entry!r} in the list is neither a mapping of axes to numbers nor an entry"
                )
            yield from _entries_of_mapping(entry)
    else:
        raise ConfigError(
            f"priorities is {priorities!r}; it must be 'draw', a mapping of axes to numbers that sum to 1, a list of "
            "such mappings, or the path of a .csv"
        )


def _entries_of_mapping(mapping: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """A mapping as entries: it is an entry itself, or has priorities by subject, or is one priority for all."""
    if "priority" in mapping:
        yield mapping
    elif all(isinstance(value, Mapping) for value in mapping.values()):
        for subject, priority in mapping.items():
            yield {"subject": subject, "priority": priority}
    else:
        yield {"priority": mapping}


def _assignments_of_entry(
    dataset: Dataset, models: Sequence[str], entry: Mapping[str, object], default_epsilon: float, normalize: bool
) -> Iterator[Assignment]:
    """An assignment for the model and the subject that the entry names; if it names none, for every one."""
    for key in entry:
        if key not in _ENTRY_KEYS:
            raise ConfigError(f"an entry of priorities has the unknown key '{key}'{nearest(key, _ENTRY_KEYS)}")
    priority = check_priority(dataset, entry["priority"], normalize)
    epsilon = check_epsilon(entry.get("epsilon", default_epsilon))
    targets = entry.get("targets", {})
    if not isinstance(targets, Mapping):
        raise ConfigError(
            f"the targets of an entry of priorities are {targets!r}; they must be a mapping of axes to shares"
        )
    make_settings(dataset, targets=targets)  # raises ConfigError for invalid targets
    for model in _selected("model", entry.get("model"), models):
        for subject in _selected("subject", entry.get("subject"), dataset.subjects):
            yield Assignment(model, subject, priority, epsilon, targets, default_epsilon)


def _selected(kind: str, name: object, names: Sequence[str]) -> Sequence[str]:
    """The one of `names` that an entry names; all of them if it names none."""
    if name is None:
        return names
    if name not in names:
        raise ConfigError(f"priorities: no {kind} '{name}' in this experiment{nearest(str(name), names)}")
    return [str(name)]
