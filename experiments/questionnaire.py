"""What a VLM is asked about one image, and how its replies become one attribute for each axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis, Dataset, Question
from seesaw.experiments.lab import Answers, Observations
from seesaw.experiments.prompts import Prompt
from seesaw.results.errors import DatasetError, StoreError

__all__ = ["Questionnaire", "observations_of", "questionnaire_of", "read_replies"]


@dataclass(frozen=True)
class Questionnaire:
    """The questions about an image: first `person` (None: every image counts), then those of all axes in order."""

    person: Question | None
    questions: tuple[Question, ...]

    @property
    def all(self) -> tuple[Question, ...]:
        """All questions, in the order in which they are asked."""
        return (self.person, *self.questions) if self.person else self.questions


def questionnaire_of(dataset: Dataset) -> Questionnaire:
    """The questions to ask about each image.

    Raises DatasetError if two questions have the same text, since their answers could not be told apart.
    """
    questionnaire = Questionnaire(dataset.person, tuple(q for axis in dataset.axes for q in axis.questions))
    texts = [question.text for question in questionnaire.all]
    for text in texts:
        if texts.count(text) > 1:
            raise DatasetError(f"dataset '{dataset.name}' asks '{text}' twice; every question needs words of its own")
    return questionnaire


def read_replies(
    dataset: Dataset, replies: pa.Table, image_keys: Sequence[str], index: Sequence[int], seeds: Sequence[int], vlm: str
) -> Answers:
    """Read the replies to one batch (an answers shard) as one attribute per axis for each of its n images.

    In a plain axis the attribute is the answer to its question. In a composite axis (disability) it is the attribute
    whose question was answered yes. If no question was, it is the axis' `none`, and its probability is the product of
    the probabilities of no, since the questions were asked independently. If several were, it is the likeliest, and the
    image is counted in `ambiguous` (docs/method.md, "From images to shares"). An image that was withheld has a single
    reply, to the question "", which is the reason.

    Raises StoreError if the shard lacks an answer that it should hold.
    """
    by_question: dict[tuple[str, str], tuple[str, dict[str, float]]] = {}  # answer and probabilities, by image too
    columns = (
        replies.column(name).to_pylist() for name in ("image_key", "question", "answer", "choices", "probabilities")
    )
    for key, question, answer, choices, chances in zip(*columns, strict=True):
        by_question[key, question] = answer, dict(zip(choices, chances, strict=True))
    n = len(image_keys)
    withheld = tuple(by_question[key, ""][0] if (key, "") in by_question else "" for key in image_keys)
    person, person_probability = np.array([not reason for reason in withheld]), np.full(n, np.nan)
    value = {axis.name: np.full(n, -1, np.int16) for axis in dataset.axes}  # int16: a sweep keeps millions of them
    probability = {axis.name: np.full(n, np.nan) for axis in dataset.axes}
    ambiguous = [0] * n
    try:
        for i, key in enumerate(image_keys):
            if withheld[i]:
                continue
            if dataset.person is not None:
                answer, chance_of = by_question[key, dataset.person.text]
                person[i], person_probability[i] = answer == "yes", chance_of[answer]
            if not person[i]:
                continue
            for axis in dataset.axes:
                axis_replies = {question.text: by_question[key, question.text] for question in axis.questions}
                attribute, chance, is_ambiguous = _attribute(axis, axis_replies)
                value[axis.name][i], probability[axis.name][i] = axis.attributes.index(attribute), chance
                ambiguous[i] += is_ambiguous
    except KeyError as error:
        raise StoreError(f"an answers shard lacks an answer: {error}") from error
    return Answers(
        np.asarray(index, np.int64), np.asarray(seeds, np.int64), tuple(image_keys), person, person_probability,
        value, probability, vlm, tuple(ambiguous), withheld,
    )  # fmt: skip


def _attribute(axis: Axis, replies: Mapping[str, tuple[str, dict[str, float]]]) -> tuple[str, float, bool]:
    """The attribute of an axis, its probability, and whether several questions of a composite axis were answered yes.

    `replies` has the answer and the probability of every choice, by question.
    """
    if not axis.none:
        answer, chance_of = replies[axis.questions[0].text]
        return answer, chance_of[answer], False
    yes = {q.attribute: replies[q.text][1]["yes"] for q in axis.questions if replies[q.text][0] == "yes"}
    if not yes:
        return axis.none, float(np.prod([chance_of["no"] for _, chance_of in replies.values()])), False
    likeliest = max(yes, key=lambda attribute: (yes[attribute], -axis.attributes.index(attribute)))
    return likeliest, yes[likeliest], len(yes) > 1


def observations_of(
    dataset: Dataset,
    prompt: Prompt,
    batches: Sequence[Answers],
    images: int,
    failures: Sequence[str] = (),
    start: int = 0,
) -> Observations:
    """Put the batches of one cell together and keep `images` images, from number `start` on.

    A batch is always made whole, so the last may hold more images than were asked for; the surplus is left out. With
    `failures`, the counts are NaN.
    """
    if failures:
        undefined = {axis.name: np.full(len(axis.attributes), np.nan) for axis in dataset.axes}
        return Observations(prompt, undefined, asked=0, dropped=0, failures=tuple(failures))
    number = np.concatenate([b.index for b in batches])
    keep = (number >= start) & (number < start + images)
    person = np.concatenate([b.person for b in batches])[keep]
    value = {a.name: np.concatenate([b.value[a.name] for b in batches])[keep] for a in dataset.axes}
    answers = Answers(
        index=number[keep],
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
    """The values of the images to keep; every batch has a value for each of its images."""
    return tuple(itertools.compress(itertools.chain.from_iterable(batches), keep))
