"""What a sweep's images say when two VLMs read them: agreement by axis, accuracies without labels, disagreements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis, Dataset
from seesaw.experiments.lab import Answers, Observations
from seesaw.experiments.two_vlms import cohens_kappa, hui_walter
from seesaw.results.tables.schemas import AGREEMENT, DISAGREEMENTS, HUI_WALTER

__all__ = ["AgreementOfTwo", "agreement_of_two"]

SHOWN, FIRST = 8, 8  #: disagreements of an axis, at most; they are among the first images of prompts, as examples are
_PERSON = "person"
Observed = Mapping[str, Sequence[Observations]]


@dataclass(frozen=True, eq=False)
class AgreementOfTwo:
    """The tables as data frames; docs/reference.md lists their columns."""

    agreement: pd.DataFrame
    hui_walter: pd.DataFrame
    disagreements: pd.DataFrame


@dataclass(frozen=True, eq=False)
class _Pair:
    """One cell as both VLMs read it; `at` (2, n) are the positions of the images that both were asked about."""

    model: str
    cell: Observations
    answers: tuple[Answers, Answers]
    at: NDArray[np.int64]

    def read(self, axis: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What both read of n images: positions of attributes, -1 where one saw no person."""
        first, second = (
            (each.person if axis == _PERSON else each.value[axis])[at]
            for each, at in zip(self.answers, self.at, strict=True)
        )
        return first.astype(np.int64), second.astype(np.int64)


def agreement_of_two(observed: Observed, again: Observed, dataset: Dataset, vlms: tuple[str, str]) -> AgreementOfTwo:
    """Compare what the VLMs called `vlms` read of the same cells, by model; cells with failures are left out."""
    pairs = [
        pair
        for model, cells in observed.items()
        for one, other in zip(cells, again[model], strict=True)
        if (pair := _pair(model, one, other)) is not None
    ]
    agreement, accuracies, examples = [], [], []
    for axis in dataset.axes:
        counts = _counts(pairs, axis.name, len(axis.attributes))
        agreement.append((*vlms, axis.name, *_kappa(counts)))
        accuracies += _accuracies(counts, axis, vlms)
        examples += _disagreements(pairs, axis)
    if dataset.person is not None:
        agreement.append((*vlms, _PERSON, *_kappa(_counts(pairs, _PERSON, 2))))
    return AgreementOfTwo(
        pd.DataFrame(agreement, columns=AGREEMENT.names),
        pd.DataFrame(accuracies, columns=HUI_WALTER.names),
        pd.DataFrame(examples, columns=DISAGREEMENTS.names),
    )


def _pair(model: str, one: Observations, other: Observations) -> _Pair | None:
    if one.failures or other.failures or one.answers is None or other.answers is None:
        return None
    keys = [
        {key: i for i, key in enumerate(each.image_key) if not (each.withheld and each.withheld[i])}
        for each in (one.answers, other.answers)
    ]
    both = [key for key in keys[0] if key in keys[1]]
    at = np.array([[of[key] for key in both] for of in keys], np.int64).reshape(2, len(both))
    return _Pair(model, one, (one.answers, other.answers), at)


def _counts(pairs: Sequence[_Pair], axis: str, k: int) -> NDArray[np.int64]:
    """Images of every cell by both readings, (G, k, k)."""
    counts = np.zeros((len(pairs), k, k), np.int64)
    for number, pair in enumerate(pairs):
        first, second = pair.read(axis)
        there = (first >= 0) & (second >= 0)
        counts[number] = np.bincount(first[there] * k + second[there], minlength=k * k).reshape(k, k)
    return counts


def _kappa(counts: NDArray[np.int64]) -> tuple[int, float, float, float, float]:
    found = cohens_kappa(counts.sum(0))
    return found.images, found.agree, found.kappa, found.low, found.high


def _accuracies(
    counts: NDArray[np.int64], axis: Axis, vlms: tuple[str, str]
) -> list[tuple[str, str, str, float, bool]]:
    if not counts.any():
        return []
    found = hui_walter(counts)
    rows = []
    for vlm, matrix, accuracy in zip(vlms, found.matrices, found.accuracy.tolist(), strict=True):
        rows.append((vlm, axis.name, "", accuracy, found.converged))
        rows += [
            (vlm, axis.name, attribute, float(share), found.converged)
            for attribute, share in zip(axis.attributes, np.diag(matrix), strict=True)
        ]
    return rows


def _disagreements(pairs: Sequence[_Pair], axis: Axis) -> list[tuple[object, ...]]:
    """The images that the two read differently and are surest of, at most `SHOWN`, one of a prompt."""
    found = []
    for pair in pairs:
        first, second = pair.read(axis.name)
        sure = [each.probability[axis.name][at] for each, at in zip(pair.answers, pair.at, strict=True)]
        number = pair.answers[0].index[pair.at[0]]
        differ = np.flatnonzero((first >= 0) & (second >= 0) & (first != second) & (number < FIRST))
        if not len(differ):
            continue
        surest = max(differ.tolist(), key=lambda i: (sure[0][i] * sure[1][i], -i))
        prompt = pair.cell.prompt
        found.append(
            (
                -float(sure[0][surest] * sure[1][surest]),
                (
                    axis.name, pair.model, prompt.subject, prompt.source_axis, prompt.source_value,
                    int(number[surest]), pair.answers[0].image_key[pair.at[0][surest]], prompt.text,
                    axis.attributes[first[surest]], axis.attributes[second[surest]],
                ),
            )
        )  # fmt: skip
    return [row for _, row in sorted(found, key=lambda each: each[0])[:SHOWN]]
