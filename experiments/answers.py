"""The answers table: built from observations, checked against a dataset, and coded as integers for counting."""

from __future__ import annotations

import unicodedata
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

__all__ = ["CodedAnswers", "answer_rows", "coded_answers"]

Ints = NDArray[np.int64]
_PERSON = "person"  # the `axis` of a row that answers whether the image shows a person
_COLUMNS = ("model", "subject", "source_axis", "source_value", "image", "axis", "answer")


@dataclass(frozen=True)
class CodedAnswers:
    """A checked answers table of N rows about U images, as integers.

    `models` are sorted. `subjects` are in the dataset's order; subjects that it does not have follow, sorted. `source`
    is 0 for the initial prompt, otherwise 1 + the counterfactual's position among all counterfactuals of the dataset.
    `axis` is the axis' position in the dataset, and -1 in rows about the person. `answer` is the attribute's position;
    in rows about the person it is 1 for yes and 0 for no. `no_person` tells which images show no person. `number` is
    what the table calls the image, as a number: prompts that call an image the same made it from the same seed.
    """

    models: tuple[str, ...]
    subjects: tuple[str, ...]
    model: Ints  # (N,)
    subject: Ints  # (N,)
    source: Ints  # (N,)
    axis: Ints  # (N,)
    answer: Ints  # (N,)
    image: Ints  # (N,), the image's number in this table, 0..U-1
    no_person: NDArray[np.bool_]  # (U,)
    number: Ints  # (N,)


def answer_rows(model: str, dataset: Dataset, observations: Sequence[Observations]) -> pa.Table:
    """The rows of answers.parquet for `observations` of `model`: image by image, first the person, then every axis.

    A cell with failures has no rows, so that no matrix is silently computed from a partial cell. Raises ValueError for
    observations without images; those from exact probabilities have none.
    """
    tables = [_cell_rows(model, dataset, cell) for cell in observations if not cell.failures]
    return pa.concat_tables(tables) if tables else ANSWERS.empty_table()


def _cell_rows(model: str, dataset: Dataset, cell: Observations) -> pa.Table:
    answers = cell.answers
    if answers is None:
        raise ValueError(f"the observations of {cell.prompt.text!r} have no images, so no answers")
    words, codes, probability = _grid(dataset, answers)
    image, column = np.nonzero(codes >= 0)  # in row order: image by image, and for each image the person first
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
        "axis": _text_column(axes, column),
        "answer": _text_column(words, codes[image, column]),
        "probability": pa.array(probability[image, column], from_pandas=True),
        "seed": pa.array(answers.seed[image]),
        "image_key": _text_column(answers.image_key, image),
    }
    return pa.table({name: columns[name] for name in ANSWERS.names}, schema=ANSWERS)


def _grid(dataset: Dataset, answers: Answers) -> tuple[tuple[str, ...], Ints, NDArray[np.float64]]:
    """The answers about n images: all words, codes (n, 1 + axes) that index them, and probabilities (n, 1 + axes).

    Column 0 is about the person. The code -1 means that the answers table has no row.
    """
    words: tuple[str, ...] = ("no", "yes")
    person = answers.person.astype(np.int64) if dataset.person else np.full(answers.person.shape, -1, np.int64)
    if any(answers.withheld):
        person[np.array(answers.withheld) != ""] = -1
    codes, probabilities = [person], [answers.person_probability]
    for axis in dataset.axes:
        value = np.where(answers.person, answers.value[axis.name], -1)
        codes.append(np.where(value >= 0, value + len(words), -1))
        probabilities.append(answers.probability[axis.name])
        words += axis.attributes
    return words, np.stack(codes, 1), np.stack(probabilities, 1)


def _text_column(words: Sequence[str], codes: Ints) -> pa.Array:
    """`words[codes]` as a column, without a Python string for every row."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(words), pa.string())).cast(pa.string())


def coded_answers(answers: pd.DataFrame, dataset: Dataset, table_name: str = "the answers table") -> CodedAnswers:
    """Check `answers` against `dataset` and code them.

    Raises AnswersError, which names the row, for rows that do not fit the dataset or contradict each other;
    `table_name` opens its message.
    """
    answers = answers.fillna({"source_axis": "", "source_value": ""})
    columns = {name: pd.factorize(answers[name]) for name in _COLUMNS}
    codes: dict[str, Ints] = {name: column[0].astype(np.int64) for name, column in columns.items()}
    words = {name: [str(word) for word in column[1]] for name, column in columns.items()}
    for name in _COLUMNS:
        if (codes[name] < 0).any():
            _fail(table_name, codes[name] < 0, f"'{name}' is empty")
    for name in ("model", "subject"):
        _refuse_variants(table_name, name, codes[name], words[name])
    axis, answer = _answers(table_name, dataset, codes, words)
    source = _sources(table_name, dataset, codes, words)
    models, model = _ordered(codes["model"], words["model"], ())
    subjects, subject = _ordered(codes["subject"], words["subject"], dataset.subjects)
    sources = 1 + dataset.counterfactuals
    cell = (model * len(subjects) + subject) * sources + source
    image = pd.factorize(cell * len(words["image"]) + codes["image"])[0].astype(np.int64)

    repeated = pd.Series(image * (len(dataset.axes) + 1) + axis + 1).duplicated().to_numpy()
    if repeated.any():
        name = _first_value(answers, "axis", repeated)
        _fail(table_name, repeated, f"{_image_label(answers, repeated)} answers axis '{name}' a second time")
    no_person = np.zeros(image.max(initial=-1) + 1, np.bool_)
    no_person[image[(axis < 0) & (answer == 0)]] = True
    contradicted = no_person[image] & (axis >= 0)
    if contradicted.any():
        name, label = _first_value(answers, "axis", contradicted), _image_label(answers, contradicted)
        _fail(table_name, contradicted, f"{label} shows no person, yet answers axis '{name}'")
    number = _numbers(words["image"])[codes["image"]]
    return CodedAnswers(models, subjects, model, subject, source, axis, answer, image, no_person, number)


def _refuse_variants(table_name: str, column: str, codes: Ints, words: Sequence[str]) -> None:
    """Refuse two names that people read as one: each would count half of the images."""
    first: dict[str, int] = {}
    for number, word in enumerate(words):
        alike = first.setdefault(" ".join(unicodedata.normalize("NFKC", word).casefold().split()), number)
        if alike != number:
            other = words[alike]
            if unicodedata.normalize("NFC", word) == unicodedata.normalize("NFC", other):
                how = "its Unicode form"
            else:
                how = "case" if "".join(word.split()).casefold() == "".join(other.split()).casefold() else "letters"
                how = "white space" if "".join(word.split()) == "".join(other.split()) else how
            _fail(table_name, codes == number, f"{column} {word!r} differs from {other!r} by {how} alone; use one name")


def _answers(
    table_name: str, dataset: Dataset, codes: dict[str, Ints], words: dict[str, list[str]]
) -> tuple[Ints, Ints]:
    """The axis and the answer of every row, as positions in the dataset."""
    pair, pairs = pd.factorize(codes["axis"] * len(words["answer"]) + codes["answer"])  # check every pair only once
    axes, answers = [], []
    names = [axis.name for axis in dataset.axes]
    for number, code in enumerate(pairs):
        name, word = words["axis"][code // len(words["answer"])], words["answer"][code % len(words["answer"])]
        if name == _PERSON:
            choices: tuple[str, ...] = ("no", "yes")
            if word not in choices:
                problem = f"'{word}' does not say whether there is a person; it must be yes or no"
                _fail(table_name, pair == number, problem)
        elif name in names:
            choices = dataset.axis(name).attributes
            if word not in choices:
                hint = _hint(dataset.axis(name), word)
                _fail(table_name, pair == number, f"'{word}' is not an attribute of axis '{name}'{hint}")
        else:
            _fail(table_name, pair == number, f"dataset '{dataset.name}' has no axis '{name}'{nearest(name, names)}")
        axes.append(-1 if name == _PERSON else names.index(name))
        answers.append(choices.index(word))
    return np.array(axes, np.int64)[pair], np.array(answers, np.int64)[pair]


def _sources(table_name: str, dataset: Dataset, codes: dict[str, Ints], words: dict[str, list[str]]) -> Ints:
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
            _fail(table_name, pair == number, problem)
        sources.append(position[name, value])
    return np.array(sources, np.int64)[pair]


def _hint(axis: Axis, word: str) -> str:
    """The end of a message about `word`, which is not an attribute of `axis`: which attribute may be meant."""
    for counterfactual in axis.counterfactuals:
        if word in (counterfactual.adjective, counterfactual.phrase, counterfactual.composed):
            return f"; it is the prompt's word for '{counterfactual.attribute}'"
    return nearest(word, axis.attributes)


def _ordered(codes: Ints, words: list[str], first: tuple[str, ...]) -> tuple[tuple[str, ...], Ints]:
    """The words that occur, those of `first` in its order and then the others sorted, and the codes in this order."""
    occurring = set(words)
    others = sorted(occurring - set(first))
    order = (*(word for word in first if word in occurring), *others)
    position = {word: number for number, word in enumerate(order)}
    return order, np.array([position[word] for word in words], np.int64)[codes]


def _numbers(words: list[str]) -> Ints:
    """A number for every name of an image: the name itself if it is one and they are close, else its place in order."""
    if all(word.isdecimal() and len(word) < 10 for word in words):
        numbers = np.array([int(word) for word in words], np.int64)
        if numbers.max(initial=0) < 2 * len(words):
            return numbers
        return np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    return _ordered(np.arange(len(words)), words, ())[1]


def _first_value(answers: pd.DataFrame, column: str, rows: NDArray[np.bool_]) -> str:
    """The value of `column` in the first of `rows`."""
    return str(answers[column].iloc[int(np.argmax(rows))])


def _image_label(answers: pd.DataFrame, rows: NDArray[np.bool_]) -> str:
    """The image of the first of `rows`, in words."""
    model, subject, axis, value, image = (_first_value(answers, name, rows) for name in _COLUMNS[:5])
    return f"image {image} of '{model}', '{subject}', {prompt_label(axis, value)},"


def _fail(table_name: str, rows: NDArray[np.bool_], problem: str) -> NoReturn:
    """Raise AnswersError about the first of `rows`; rows are counted from 1."""
    raise AnswersError(f"{table_name}, row {int(np.argmax(rows)) + 1}: {problem}")
