"""What a dataset is once it has been read: subjects, axes, attributes, questions and counterfactuals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from seesaw.results.errors import ConfigError, nearest

__all__ = ["Axis", "Counterfactual", "Dataset", "Question"]


@dataclass(frozen=True)
class Question:
    """One multiple-choice question to the VQA model.

    `attribute` is what a yes stands for in a composite axis (disability); it is "" where the chosen word is the answer.
    """

    text: str
    choices: tuple[str, ...]
    attribute: str = ""


@dataclass(frozen=True)
class Counterfactual:
    """The prompt that states `attribute`, and the words it states it with.

    `template` is the prompt to the letter ("" where the words alone make it). `adjective` goes before the subject and
    `phrase` after it; `composed` takes the place of `phrase` once several axes are stated in one prompt.
    """

    attribute: str
    template: str = ""
    adjective: str = ""
    phrase: str = ""
    composed: str = ""


@dataclass(frozen=True)
class Axis:
    """A bias dimension with k attributes; `counterfactuals` follow the order of `attributes`.

    A plain axis has one question whose choices are the attributes. A composite axis has one yes/no question for
    every attribute but `none`, which holds when all are answered no.
    """

    name: str
    attributes: tuple[str, ...]
    questions: tuple[Question, ...]
    counterfactuals: tuple[Counterfactual, ...]
    none: str = ""

    def counterfactual(self, attribute: str) -> Counterfactual:
        """The counterfactual that states `attribute`. Raises ConfigError for an unknown one."""
        if attribute not in self.attributes:
            raise ConfigError(f"axis '{self.name}' has no attribute '{attribute}'{nearest(attribute, self.attributes)}")
        return self.counterfactuals[self.attributes.index(attribute)]


@dataclass(frozen=True)
class Dataset:
    """Everything that is asked of a model and of VQA. `person` is None where images are not asked for a person."""

    name: str
    template: str
    subjects: tuple[str, ...]
    person: Question | None
    axes: tuple[Axis, ...]
    verbatim: bool = True

    def axis(self, name: str) -> Axis:
        """The axis called `name`. Raises ConfigError for an unknown one."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise ConfigError(f"dataset '{self.name}' has no axis '{name}'{nearest(name, (a.name for a in self.axes))}")

    def to_mapping(self) -> dict[str, object]:
        """The dataset as plain data, in the form that `load_dataset` reads; nothing of it lies elsewhere."""
        plain: dict[str, object] = {
            "name": self.name,
            "template": self.template,
            "verbatim": self.verbatim,
            "subjects": list(self.subjects),
        }
        if self.person is not None:
            plain["person"] = self.person.text
        plain["axes"] = {axis.name: _axis_mapping(axis) for axis in self.axes}
        return plain

    def select(self, subjects: Iterable[str] | None = None, axes: Iterable[str] | None = None) -> Dataset:
        """The same dataset with these subjects and axes alone (None: all), in the dataset's order, not the caller's.

        Raises ConfigError for unknown names and for an empty selection.
        """
        chosen = _chosen(self.name, "subject", self.subjects, subjects)
        kept = set(_chosen(self.name, "axis", tuple(a.name for a in self.axes), axes))
        return replace(self, subjects=chosen, axes=tuple(a for a in self.axes if a.name in kept))


def _chosen(dataset: str, what: str, known: tuple[str, ...], wanted: Iterable[str] | None) -> tuple[str, ...]:
    if wanted is None:
        return known
    names = set(wanted)
    if not names:
        raise ConfigError(f"no {what} of dataset '{dataset}' is chosen; name one, or leave the key out for all")
    for name in sorted(names - set(known)):
        raise ConfigError(f"dataset '{dataset}' has no {what} '{name}'{nearest(name, known)}")
    return tuple(name for name in known if name in names)


def _axis_mapping(axis: Axis) -> dict[str, object]:
    plain: dict[str, object] = {"attributes": list(axis.attributes)}
    if axis.none:
        plain["none"] = axis.none
        plain["questions"] = {q.attribute: q.text for q in axis.questions}
    else:
        plain["question"] = axis.questions[0].text
    said = ("template", "adjective", "phrase", "composed")
    plain["counterfactuals"] = {
        c.attribute: {key: getattr(c, key) for key in said if getattr(c, key)} for c in axis.counterfactuals
    }
    return plain
