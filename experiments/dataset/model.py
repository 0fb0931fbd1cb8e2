"""A dataset in memory: subjects, axes, attributes, questions and counterfactuals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from seesaw.results.errors import ConfigError, nearest

__all__ = ["Axis", "Counterfactual", "Dataset", "Question"]


@dataclass(frozen=True)
class Question:
    """One multiple-choice question to the VQA model.

    In a composite axis (disability), `attribute` is the attribute that the answer yes stands for. In all other
    questions it is "": the chosen word is the answer.
    """

    text: str
    choices: tuple[str, ...]
    attribute: str = ""


@dataclass(frozen=True)
class Counterfactual:
    """How a prompt states `attribute`.

    `template` is the prompt to the letter, or "" if the prompt is composed from the words. `adjective` goes before the
    subject and `phrase` after it. `composed` takes the place of `phrase` where one prompt states several axes.
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
    every attribute except `none`, which is the answer if all questions are answered no.
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
    """Everything that a TTI model and VQA are asked.

    `person` is the question whether an image shows a person. If it is None, VQA is not asked, and every image counts.
    """

    name: str
    template: str
    subjects: tuple[str, ...]
    person: Question | None
    axes: tuple[Axis, ...]
    verbatim: bool = True

    @property
    def counterfactuals(self) -> int:
        """How many counterfactuals each subject has, of all axes."""
        return sum(len(axis.attributes) for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis called `name`. Raises ConfigError for an unknown one."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise ConfigError(f"dataset '{self.name}' has no axis '{name}'{nearest(name, (a.name for a in self.axes))}")

    def to_mapping(self) -> dict[str, object]:
        """The dataset as plain data, in the form that `load_dataset` reads. It is complete: it extends no dataset."""
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
        """The same dataset with only these subjects and axes (None: all), in the dataset's order, not the caller's.

        Raises ConfigError for unknown names and for an empty selection.
        """
        chosen_subjects = _chosen(self.name, "subject", self.subjects, subjects)
        chosen_axes = _chosen(self.name, "axis", tuple(axis.name for axis in self.axes), axes)
        return replace(self, subjects=chosen_subjects, axes=tuple(a for a in self.axes if a.name in chosen_axes))


def _chosen(dataset: str, kind: str, names: tuple[str, ...], wanted: Iterable[str] | None) -> tuple[str, ...]:
    """The `wanted` of `names` (None: all), in their order; `kind` is what the names are of, for error messages."""
    if wanted is None:
        return names
    chosen = set(wanted)
    if not chosen:
        raise ConfigError(f"no {kind} of dataset '{dataset}' is chosen; name one, or leave the key out for all")
    for name in sorted(chosen - set(names)):
        raise ConfigError(f"dataset '{dataset}' has no {kind} '{name}'{nearest(name, names)}")
    return tuple(name for name in names if name in chosen)


def _axis_mapping(axis: Axis) -> dict[str, object]:
    plain: dict[str, object] = {"attributes": list(axis.attributes)}
    if axis.none:
        plain["none"] = axis.none
        plain["questions"] = {q.attribute: q.text for q in axis.questions}
    else:
        plain["question"] = axis.questions[0].text
    keys = ("template", "adjective", "phrase", "composed")
    plain["counterfactuals"] = {
        c.attribute: {key: getattr(c, key) for key in keys if getattr(c, key)} for c in axis.counterfactuals
    }
    return plain
