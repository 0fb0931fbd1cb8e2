"""From questions to attributes: what a VLM is asked about one image, and how its replies read as one answer an axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seesaw.experiments.dataset.load import Axis, Dataset, Question
from seesaw.experiments.lab import Answers, Observations
from seesaw.experiments.prompts import Prompt
from seesaw.results.errors import DatasetError, StoreError

__all__ = ["Questionnaire", "observations_of", "questionnaire_of", "read_replies"]


@dataclass(frozen=True)
class Questionnaire:
    """The person question, asked first (None: every image counts), and the questions of all axes in their order."""

    person: Question | None
    questions: tuple[Question, ...]

    @property
    def all(self) -> tuple[Question, ...]:
        return (self.person, *self.questions) if self.person else self.questions


def questionnaire_of(dataset: Dataset) -> Questionnaire:
    """What to ask. Raises DatasetError for a question that is there twice: its answers could not be told apart."""
    found = Questionnaire(dataset.person, tuple(q for axis in dataset.axes for q in axis.questions))
    texts = [question.text for question in found.all]
    for text in texts:
        if texts.count(text) > 1:
            raise DatasetError(f"dataset '{dataset.name}' asks '{text}' twice; every question needs words of its own")
    return found


def read_replies(
    dataset: Dataset, replies: pa.Table, image_keys: Sequence[str], index: Sequence[int], seeds: Sequence[int], vlm: str
) -> Answers:
    """Read the replies to one batch (an answers shard) as one attribute an axis for each of its n images.

    A plain axis is its question's answer. A composite axis (disability) is the attribute whose question was answered
    yes; none: the axis' `none`, with the product of the no's as its probability (they were asked independently); more
    than one: the likeliest, and the image is counted in `ambiguous` (docs/method.md). An image that was withheld has
    one reply, to no question, that is the reason.

    Raises StoreError when the shard lacks an answer that it should hold.
    """
    said: dict[tuple[str, str], tuple[str, dict[str, float]]] = {}
    columns = (
        replies.column(name).to_pylist() for name in ("image_key", "question", "answer", "choices", "probabilities")
    )
    for key, question, answer, choices, probabilities in zip(*columns, strict=True):
        said[key, question] = answer, dict(zip(choices, probabilities, strict=True))
    n = len(image_keys)
    withheld = tuple(said[key, ""][0] if (key, "") in said else "" for key in image_keys)
    person, person_probability = np.array([not reason for reason in withheld]), np.full(n, np.nan)
    value = {axis.name: np.full(n, -1, np.int16) for axis in dataset.axes}  # a sweep keeps millions
    probability = {axis.name: np.full(n, np.nan) for axis in dataset.axes}
    ambiguous = [0] * n
    try:
        for i, key in enumerate(image_keys):
            if withheld[i]:
                continue
            if dataset.person is not None:
                answer, chances = said[key, dataset.person.text]
                person[i], person_probability[i] = answer == "yes", chances[answer]
            if not person[i]:
                continue
            for axis in dataset.axes:
                attribute, chance, unclear = _attribute(axis, {q.text: said[key, q.text] for q in axis.questions})
                value[axis.name][i], probability[axis.name][i] = axis.attributes.index(attribute), chance
                ambiguous[i] += unclear
    except KeyError as error:
        raise StoreError(f"an answers shard lacks an answer: {error}") from error
    return Answers(
        np.asarray(index, np.int64), np.asarray(seeds, np.int64), tuple(image_keys), person, person_probability,
        value, probability, vlm, tuple(ambiguous), withheld,
    )  # fmt: skip


def _attribute(axis: Axis, said: Mapping[str, tuple[str, dict[str, float]]]) -> tuple[str, float, bool]:
    """The attribute of an axis, its probability, and whether several were claimed."""
    if not axis.none:
        answer, chances = said[axis.questions[0].text]
        return answer, chances[answer], False
    yes = {q.attribute: said[q.text][1]["yes"] for q in axis.questions if said[q.text][0] == "yes"}
    if not yes:
        return axis.none, float(np.prod([chances["no"] for _, chances in said.values()])), False
    likeliest = max(yes, key=lambda attribute: (yes[attribute], -axis.attributes.index(attribute)))
    return likeliest, yes[likeliest], len(yes) > 1


def observations_of(
    dataset: Dataset, prompt: Prompt, batches: Sequence[Answers], images: int, failures: Sequence[str] = ()
) -> Observations:
    """Put the batches of one cell together and keep its first `images` images.

    Batches are made whole by rule, so the last may hold more images than were asked for; those count nowhere here.
    """
    if failures:
        nothing = {axis.name: np.full(len(axis.attributes), np.nan) for axis in dataset.axes}
        return Observations(prompt, nothing, asked=0, dropped=0, failures=tuple(failures))
    keep = np.concatenate([b.index for b in batches]) < images
    person = np.concatenate([b.person for b in batches])[keep]
    value = {a.name: np.concatenate([b.value[a.name] for b in batches])[keep] for a in dataset.axes}
    answers = Answers(
        index=np.concatenate([b.index for b in batches])[keep],
        seed=np.concatenate([b.seed for b in batches])[keep],
        image_key=_kept(keep, [b.image_key for b in batches]),
        person=person,
        person_probability=np.concatenate([b.person_probability for b in batches])[keep],
        value=value,
        probability={a.name: np.concatenate([b.probability[a.name] for b in batches])[keep] for a in dataset.axes},
        vlm=batches[0].vlm,
        ambiguous=_kept(keep, [b.ambiguous or (0,) * len(b.index) for b in batches]),
        withheld=_kept(keep, [b.withheld or ("",) * len(b.index) for b in batches]),
    )
    counts = {
        a.name: np.bincount(value[a.name][value[a.name] >= 0], minlength=len(a.attributes)).astype(np.float64)
        for a in dataset.axes
    }
    return Observations(prompt, counts, asked=len(person), dropped=int((~person).sum()), answers=answers)


def _kept(keep: NDArray[np.bool_], batches: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """What the images that are kept have of something that every image of every batch has."""
    return tuple(itertools.compress(itertools.chain.from_iterable(batches), keep))
