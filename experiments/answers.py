"""The answers table: made of observations, checked against a dataset, and coded into integers for counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis, Dataset
from seesaw.experiments.lab import Answers, Observations
from seesaw.results.errors import AnswersError, nearest
from seesaw.results.tables.schemas import ANSWERS
from seesaw.results.words import prompt_label

__all__ = ["CodedAnswers", "answer_rows", "check_answers", "coded_answers"]

Ints = NDArray[np.int64]
_PERSON = "person"  # what the `axis` column says where the answer is about whether there is a person
_COLUMNS = ("model", "subject", "source_axis", "source_value", "image", "axis", "answer")


@dataclass(frozen=True)
class CodedAnswers:
    """An answers table that was checked, as integers; N rows, U images.

    `models` are sorted; `subjects` are in the dataset's order, then others sorted. `source` is 0 for the initial prompt
    and 1 + the position among all counterfactuals of the dataset otherwise. `axis` is the position in the dataset, -1
    for rows about the person; `answer` the attribute's position (1 for yes and 0 for no, about the person).
    """

    models: tuple[str, ...]
    subjects: tuple[str, ...]
    model: Ints  # (N,)
    subject: Ints  # (N,)
    source: Ints  # (N,)
    axis: Ints  # (N,)
    answer: Ints  # (N,)
    image: Ints  # (N,), 0..U-1, every image of the table with its own number
    no_person: NDArray[np.bool_]  # (U,)


def answer_rows(model: str, dataset: Dataset, observations: Sequence[Observations]) -> pa.Table:
    """The rows of answers.parquet that `observations` of `model` make, image by image: the person, then every axis.

    A cell with failures makes no rows: a matrix never comes silently from a partial cell.
    Raises ValueError for observations without images (those of exact probabilities have none).
    """
    whole = [_cell_rows(model, dataset, cell) for cell in observations if not cell.failures]
    return pa.concat_tables(whole) if whole else ANSWERS.empty_table()


def _cell_rows(model: str, dataset: Dataset, cell: Observations) -> pa.Table:
    answers = cell.answers
    if answers is None:
        raise ValueError(f"the observations of {cell.prompt.text!r} have no images, so no answers")
    words, codes, probability = _grid(dataset, answers)
    image, column = np.nonzero(codes >= 0)  # row by row: images in order, each with its person first
    axes = (_PERSON, *(axis.name for axis in dataset.axes))
    prompt = cell.prompt
    n = len(image)
    constants = {
        "model": model,
        "subject": prompt.subject,
        "source_axis": prompt.source_axis,
        "source_value": prompt.source_value,
        "prompt": prompt.text,
        "vlm": answers.vlm,
    }
    columns = {name: pa.repeat(value, n) for name, value in constants.items()} | {
        "image": pa.array(answers.index[image]),
        "axis": _spelled(axes, column),
        "answer": _spelled(words, codes[image, column]),
        "probability": pa.array(probability[image, column], from_pandas=True),
        "seed": pa.array(answers.seed[image]),
        "image_key": _spelled(answers.image_key, image),
    }
    return pa.table({name: columns[name] for name in ANSWERS.names}, schema=ANSWERS)


def _grid(dataset: Dataset, answers: Answers) -> tuple[tuple[str, ...], Ints, NDArray[np.float64]]:
    """The answers of n images as words, codes into them (n, 1 + axes; -1: no row) and probabilities (n, 1 + axes)."""
    words: tuple[str, ...] = ("no", "yes")
    asked = answers.person.astype(np.int64) if dataset.person else np.full(answers.person.shape, -1, np.int64)
    if any(answers.withheld):
        asked[np.array(answers.withheld) != ""] = -1
    codes, probabilities = [asked], [answers.person_probability]
    for axis in dataset.axes:
        value = np.where(answers.person, answers.value[axis.name], -1)
        codes.append(np.where(value >= 0, value + len(words), -1))
        probabilities.append(answers.probability[axis.name])
        words += axis.attributes
    return words, np.stack(codes, 1), np.stack(probabilities, 1)


def _spelled(words: Sequence[str], codes: Ints) -> pa.Array:
    """`words[codes]` without making a Python string a row."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(words), pa.string())).cast(pa.string())


def check_answers(answers: pd.DataFrame, dataset: Dataset) -> None:
    """Raise AnswersError, naming the row, unless `answers` (the seven columns) is a table over `dataset`."""
    coded_answers(answers, dataset)


def coded_answers(answers: pd.DataFrame, dataset: Dataset, where: str = "the answers table") -> CodedAnswers:
    """Check `answers` against `dataset` and code them; `where` opens the message of an AnswersError."""
    answers = answers.fillna({"source_axis": "", "source_value": ""})
    columns = {name: pd.factorize(answers[name]) for name in _COLUMNS}
    codes: dict[str, Ints] = {name: column[0].astype(np.int64) for name, column in columns.items()}
    words = {name: [str(word) for word in column[1]] for name, column in columns.items()}
    for name in _COLUMNS:
        if (codes[name] < 0).any():
            _fail(where, codes[name] < 0, f"'{name}' is empty")
    axis, answer = _answers(where, dataset, codes, words)
    source = _sources(where, dataset, codes, words)
    models, model = _ordered(codes["model"], words["model"], ())
    subjects, subject = _ordered(codes["subject"], words["subject"], dataset.subjects)
    sources = 1 + sum(len(a.attributes) for a in dataset.axes)
    cell = (model * len(subjects) + subject) * sources + source
    image = pd.factorize(cell * len(words["image"]) + codes["image"])[0].astype(np.int64)

    twice = pd.Series(image * (len(dataset.axes) + 1) + axis + 1).duplicated().to_numpy()
    if twice.any():
        _fail(where, twice, f"{_image(answers, twice)} answers axis '{_at(answers, 'axis', twice)}' a second time")
    no_person = np.zeros(image.max(initial=-1) + 1, np.bool_)
    no_person[image[(axis < 0) & (answer == 0)]] = True
    contradicted = no_person[image] & (axis >= 0)
    if contradicted.any():
        name = _at(answers, "axis", contradicted)
        _fail(where, contradicted, f"{_image(answers, contradicted)} shows no person, yet answers axis '{name}'")
    return CodedAnswers(models, subjects, model, subject, source, axis, answer, image, no_person)


def _answers(where: str, dataset: Dataset, codes: dict[str, Ints], words: dict[str, list[str]]) -> tuple[Ints, Ints]:
    """The axis and the answer of every row, as positions in the dataset."""
    pair, pairs = pd.factorize(codes["axis"] * len(words["answer"]) + codes["answer"])
    axes, answers = [], []
    names = [axis.name for axis in dataset.axes]
    for number, code in enumerate(pairs):
        name, word = words["axis"][code // len(words["answer"])], words["answer"][code % len(words["answer"])]
        if name == _PERSON:
            known: tuple[str, ...] = ("no", "yes")
            if word not in known:
                _fail(where, pair == number, f"'{word}' does not say whether there is a person; it must be yes or no")
        elif name in names:
            known = dataset.axis(name).attributes
            if word not in known:
                hint = _hint(dataset.axis(name), word)
                _fail(where, pair == number, f"'{word}' is not an attribute of axis '{name}'{hint}")
        else:
            _fail(where, pair == number, f"dataset '{dataset.name}' has no axis '{name}'{nearest(name, names)}")
        axes.append(-1 if name == _PERSON else names.index(name))
        answers.append(known.index(word))
    return np.array(axes, np.int64)[pair], np.array(answers, np.int64)[pair]


def _sources(where: str, dataset: Dataset, codes: dict[str, Ints], words: dict[str, list[str]]) -> Ints:
    """The counterfactual of every row: 0, or 1 + its position in the dataset."""
    pair, pairs = pd.factorize(codes["source_axis"] * len(words["source_value"]) + codes["source_value"])
    names = [axis.name for axis in dataset.axes]
    position = {("", ""): 0}
    for axis in dataset.axes:
        for attribute in axis.attributes:
            position[axis.name, attribute] = len(position)
    sources = []
    for number, code in enumerate(pairs):
        name = words["source_axis"][code // len(words["source_value"])]
        value = words["source_value"][code % len(words["source_value"])]
        if (name, value) not in position:
            if not value:
                problem = f"source_axis is '{name}' but source_value is empty; the initial prompt has neither"
            elif not name:
                problem = f"source_value is '{value}' but source_axis is empty; the initial prompt has neither"
            elif name not in names:
                problem = f"source_axis: dataset '{dataset.name}' has no axis '{name}'{nearest(name, names)}"
            else:
                hint = _hint(dataset.axis(name), value)
                problem = f"source_value '{value}' is not an attribute of axis '{name}'{hint}"
            _fail(where, pair == number, problem)
        sources.append(position[name, value])
    return np.array(sources, np.int64)[pair]


def _hint(axis: Axis, word: str) -> str:
    for counterfactual in axis.counterfactuals:
        if word in (counterfactual.adjective, counterfactual.phrase, counterfactual.composed):
            return f"; it is the prompt's word for '{counterfactual.attribute}'"
    return nearest(word, axis.attributes)


def _ordered(codes: Ints, words: list[str], first: tuple[str, ...]) -> tuple[tuple[str, ...], Ints]:
    """The words that occur, those of `first` in its order and then the others sorted, and the codes to match."""
    known = set(words)
    rest = sorted(known - set(first))
    order = (*(word for word in first if word in known), *rest)
    place = {word: number for number, word in enumerate(order)}
    return order, np.array([place[word] for word in words], np.int64)[codes]


def _at(answers: pd.DataFrame, column: str, rows: NDArray[np.bool_]) -> str:
    return str(answers[column].iloc[int(np.argmax(rows))])


def _image(answers: pd.DataFrame, rows: NDArray[np.bool_]) -> str:
    """The image of the first of `rows`, in words."""
    model, subject, axis, value, image = (_at(answers, name, rows) for name in _COLUMNS[:5])
    return f"image {image} of '{model}', '{subject}', {prompt_label(axis, value)},"


def _fail(where: str, rows: NDArray[np.bool_], problem: str) -> NoReturn:
    raise AnswersError(f"{where}, row {int(np.argmax(rows)) + 1}: {problem}")
