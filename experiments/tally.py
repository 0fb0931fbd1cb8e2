"""Counting answers: how many images of every cell show every attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.answers import CodedAnswers
from experiments.dataset_model import Axis, Dataset

__all__ = ["Tally", "tally"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Counts of images; P groups (model, subject) and C cells each: the initial prompt, then the counterfactuals.

    `cells` names them (source_axis, source_value), ("", "") first; `spans` are the cells of each source axis in play.
    `asked` and `dropped` (P, C) are the images looked at and those of them that count nowhere (no person, withheld);
    `counts[axis]` (P, C, k) those that show each attribute; `unanswered[axis]` the images with a person that do not
    answer that axis, in all.
    """

    groups: tuple[tuple[str, str], ...]
    cells: tuple[tuple[str, str], ...]
    sources: tuple[Axis, ...]
    targets: tuple[Axis, ...]
    spans: Mapping[str, slice]
    asked: Ints
    dropped: Ints
    counts: Mapping[str, Ints]
    unanswered: Mapping[str, int]

    def shares(self, axis: Axis) -> NDArray[np.float64]:
        """Observed shares p (P, C, k), NaN for a cell without a valid image."""
        counts = self.counts[axis.name]
        n = counts.sum(-1, keepdims=True)
        return np.where(n > 0, counts / np.maximum(n, 1), np.nan)

    def with_dropped(self, more: Mapping[tuple[str, str, str, str], int]) -> Tally:
        """With so many more dropped images in the cells (model, subject, source_axis, source_value) of `more`."""
        added = np.zeros_like(self.asked)
        for (model, subject, *cell), images in more.items():
            added[self.groups.index((model, subject)), self.cells.index((cell[0], cell[1]))] += images
        return replace(self, asked=self.asked + added, dropped=self.dropped + added)


def tally(coded: CodedAnswers, dataset: Dataset, models: Sequence[str] | None = None) -> Tally:
    """Count the answers of a table that was checked.

    Groups and axes are those that occur; with `models`, all that an experiment on these models has, whether or not any
    image of theirs could be made, so that what failed is undefined and does not just vanish.
    """
    spans, cells, columns, sources = {}, [("", "")], [0], []
    start = 1  # of this axis' counterfactuals among all of the dataset
    occurring = set(np.unique(coded.source).tolist())
    for axis in dataset.axes:
        k = len(axis.attributes)
        if models is not None or occurring & set(range(start, start + k)):
            spans[axis.name] = slice(len(cells), len(cells) + k)
            cells += [(axis.name, attribute) for attribute in axis.attributes]
            columns += range(start, start + k)
            sources.append(axis)
        start += k
    place = np.full(start, -1, np.int64)
    place[columns] = np.arange(len(columns))

    pairs, group = np.unique(coded.model * len(coded.subjects) + coded.subject, return_inverse=True)
    groups = [(coded.models[p // len(coded.subjects)], coded.subjects[p % len(coded.subjects)]) for p in pairs.tolist()]
    if models is not None:
        found = groups
        groups = [(model, subject) for model in sorted(models) for subject in dataset.subjects]
        group = np.array([groups.index(pair) for pair in found], np.int64)[group]
    shape = len(groups), len(cells)
    cell = group * len(cells) + place[coded.source]  # (N,), which of the P x C cells a row belongs to

    cell_of_image = np.zeros(len(coded.no_person), np.int64)
    cell_of_image[coded.image] = cell
    asked = _count(cell_of_image, shape)
    dropped = _count(cell_of_image[coded.no_person], shape)
    counts = {}
    for position, axis in enumerate(dataset.axes):
        rows = coded.axis == position
        if models is not None or rows.any():
            k = len(axis.attributes)
            counts[axis.name] = _count(cell[rows] * k + coded.answer[rows], (*shape, k))
    with_person = int(asked.sum() - dropped.sum())
    return Tally(
        groups=tuple(groups),
        cells=tuple(cells),
        sources=tuple(sources),
        targets=tuple(axis for axis in dataset.axes if axis.name in counts),
        spans=spans,
        asked=asked,
        dropped=dropped,
        counts=counts,
        unanswered={name: with_person - int(each.sum()) for name, each in counts.items()},
    )


def _count(positions: Ints, shape: tuple[int, ...]) -> Ints:
    """How often every position occurs in an array of `shape`."""
    return np.bincount(positions, minlength=int(np.prod(shape))).reshape(shape).astype(np.int64)
