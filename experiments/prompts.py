"""Prompts: what a model is asked for, and to which part of the experiment it belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from seesaw.experiments.dataset.model import Axis, Counterfactual, Dataset
from seesaw.results.errors import ConfigError

__all__ = ["Prompt", "compose", "counterfactual_prompts", "initial_prompt", "prompts_of", "sweep_prompts"]


@dataclass(frozen=True)
class Prompt:
    """What a TTI model is asked for.

    `text` is sent to the model as it is. `adapter` refers, by content hash, to what a mitigator changed in the model
    itself (a learned token, a LoRA); it is part of an image's identity. The other fields tell where in the experiment
    the prompt belongs, and change no pixel: `subject`, and the intervention `source_axis`/`source_value`, both "" for
    the initial prompt.
    """

    text: str
    subject: str = ""
    source_axis: str = ""
    source_value: str = ""
    adapter: str = ""

    @property
    def stated(self) -> int:
        """How many axes the prompt states; `source_axis` joins the names of several by "+"."""
        return len(self.source_axis.split("+")) if self.source_axis else 0


def initial_prompt(dataset: Dataset, subject: str) -> Prompt:
    """The prompt that states nothing but the subject."""
    return Prompt(compose(dataset, subject, {}), subject)


def counterfactual_prompts(dataset: Dataset, subject: str, axis: Axis | str) -> tuple[Prompt, ...]:
    """The k prompts that intervene on `axis`, in the order of its attributes.

    Raises ConfigError for an unknown axis.
    """
    axis = dataset.axis(axis) if isinstance(axis, str) else axis
    return tuple(
        Prompt(compose(dataset, subject, {axis.name: attribute}), subject, axis.name, attribute)
        for attribute in axis.attributes
    )


def prompts_of(dataset: Dataset, subject: str) -> tuple[Prompt, ...]:
    """Every prompt about `subject`: the initial one, then each axis' counterfactuals (1 + 26 of the paper's set).

    Example::

        prompts = seesaw.prompts_of(seesaw.load_dataset("occupation"), "nurse")
        [(prompt.source_axis, prompt.source_value, prompt.text) for prompt in prompts]
    """
    return (
        initial_prompt(dataset, subject),
        *(prompt for axis in dataset.axes for prompt in counterfactual_prompts(dataset, subject, axis)),
    )


def sweep_prompts(dataset: Dataset) -> list[Prompt]:
    """The prompts of a sweep: those of every subject, in the dataset's order."""
    return [prompt for subject in dataset.subjects for prompt in prompts_of(dataset, subject)]


def compose(dataset: Dataset, subject: str, stated: Mapping[str, str]) -> str:
    """The prompt that states the attributes `stated` (attribute by axis), whatever the order of the mapping.

    If the dataset is `verbatim` and at most one axis is stated, this is a template of the dataset to the letter. So it
    is for a single attribute that has a template but no words. Otherwise it is the initial template with adjectives
    before and phrases after the subject, and with a or an by the sound of what follows. Earlier axes of the dataset are
    closer to the subject, on either side ("old male nurse working indoors dressed formally"). See docs/method.md,
    "Prompt modification".

    Raises ConfigError for an unknown axis or attribute, and for an attribute without words to combine with others.
    """
    for name in stated:
        dataset.axis(name)
    chosen = [axis.counterfactual(stated[axis.name]) for axis in dataset.axes if axis.name in stated]
    if not chosen and dataset.verbatim:
        return dataset.template.format(subject=subject)
    if len(chosen) == 1 and chosen[0].template and (dataset.verbatim or not _has_words(chosen[0])):
        return chosen[0].template.format(subject=subject)
    for counterfactual in chosen:
        if not _has_words(counterfactual):
            raise ConfigError(
                f"dataset '{dataset.name}': '{counterfactual.attribute}' has neither `adjective` nor `phrase`, "
                "so it cannot be stated together with others"
            )
    return _filled(dataset.template, _described(subject, chosen))


def _has_words(counterfactual: Counterfactual) -> bool:
    return bool(counterfactual.adjective or counterfactual.phrase)


def _described(subject: str, chosen: list[Counterfactual]) -> str:
    """`<adjectives> <subject> <phrases>`; neighbouring phrases with "who" share it: "who is happy and is fit"."""
    adjectives = [c.adjective for c in reversed(chosen) if c.adjective]
    phrases: list[str] = []
    for counterfactual in chosen:
        phrase = counterfactual.phrase
        if len(chosen) > 1 and counterfactual.composed:
            phrase = counterfactual.composed
        if phrase.startswith("who ") and phrases and phrases[-1].startswith("who "):
            phrases[-1] += f" and {phrase.removeprefix('who ')}"
        elif phrase:
            phrases.append(phrase)
    return " ".join([*adjectives, subject, *phrases])


def _filled(template: str, words: str) -> str:
    """`template` with `words` in the place of {subject}; an article right before it becomes a or an by their sound."""
    n = "n" if _starts_with_vowel(words) else ""
    return re.sub(r"\b([Aa])n?(\s+)(?=\{subject\})", rf"\g<1>{n}\g<2>", template).format(subject=words)


def _starts_with_vowel(words: str) -> bool:
    """Whether the first sound is a vowel, as far as the spelling shows: an hour, a university, a one-man band, an 8."""
    start = words.lower()
    if re.match(r"hour|honest|hono|heir|8|11\b|18\b", start):
        return True
    return start[:1] in "aeiou" and not re.match(r"uni(?![nm])|us[aeiu]|ut[eio]|eu|ewe|one\b|once\b", start)
