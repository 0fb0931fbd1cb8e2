"""Counting answers: how many images of every cell show every attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.answers import CodedAnswers
from seesaw.experiments.dataset.model import Axis, Dataset
from seesaw.experiments.lab import Observations

__all__ = ["Tally", "tally", "tally_observed"]

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


def tally_observed(observed: Mapping[str, Sequence[Observations]], dataset: Dataset) -> Tally:
    """Count a sweep's cells, by model: as `tally` would its answers table, which is nine million rows for 10^6 images.

    Groups and axes are all that an experiment on these models has, whether or not any image of theirs could be made,
    so that what failed is undefined and does not just vanish; a cell with failures counts nothing.
    """
    cells = [("", ""), *((axis.name, attribute) for axis in dataset.axes for attribute in axis.attributes)]
    groups = [(model, subject) for model in sorted(observed) for subject in dataset.subjects]
    row, column = ({name: place for place, name in enumerate(names)} for names in (groups, cells))
    shape = len(groups), len(cells)
    asked, dropped = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    counts = {axis.name: np.zeros((*shape, len(axis.attributes)), np.int64) for axis in dataset.axes}
    for model, several in observed.items():
        for cell in several:
            if not cell.failures:
                prompt = cell.prompt
                at = row[model, prompt.subject], column[prompt.source_axis, prompt.source_value]
                asked[at], dropped[at] = cell.asked, cell.dropped
                for name, found in counts.items():
                    found[at] = cell.counts[name]
    return _tally(groups, cells, dataset.axes, dataset.axes, asked, dropped, counts)


def tally(coded: CodedAnswers, dataset: Dataset) -> Tally:
    """Count the answers of a table that was checked. Groups and axes are those that occur."""
    cells, columns, sources = [("", "")], [0], []
    start = 1  # of this axis' counterfactuals among all of the dataset
    occurring = set(np.unique(coded.source).tolist())
    for axis in dataset.axes:
        k = len(axis.attributes)
        if occurring & set(range(start, start + k)):
            cells += [(axis.name, attribute) for attribute in axis.attributes]
            columns += range(start, start + k)
            sources.append(axis)
        start += k
    place = np.full(start, -1, np.int64)
    place[columns] = np.arange(len(columns))

    pairs, group = np.unique(coded.model * len(coded.subjects) + coded.subject, return_inverse=True)
    groups = [(coded.models[p // len(coded.subjects)], coded.subjects[p % len(coded.subjects)]) for p in pairs.tolist()]
    shape = len(groups), len(cells)
    cell = group * len(cells) + place[coded.source]  # (N,), which of the P x C cells a row belongs to

    cell_of_image = np.zeros(len(coded.no_person), np.int64)
    cell_of_image[coded.image] = cell
    asked = _count(cell_of_image, shape)
    dropped = _count(cell_of_image[coded.no_person], shape)
    counts = {}
    for position, axis in enumerate(dataset.axes):
        rows = coded.axis == position
        if rows.any():
            k = len(axis.attributes)
            counts[axis.name] = _count(cell[rows] * k + coded.answer[rows], (*shape, k))
    return _tally(groups, cells, sources, dataset.axes, asked, dropped, counts)


def _tally(
    groups: Sequence[tuple[str, str]],
    cells: Sequence[tuple[str, str]],
    sources: Sequence[Axis],
    axes: Sequence[Axis],
    asked: Ints,
    dropped: Ints,
    counts: Mapping[str, Ints],
) -> Tally:
    spans, start = {}, 1
    for axis in sources:
        spans[axis.name] = slice(start, start + len(axis.attributes))
        start += len(axis.attributes)
    with_person = int(asked.sum() - dropped.sum())
    return Tally(
        groups=tuple(groups),
        cells=tuple(cells),
        sources=tuple(sources),
        targets=tuple(axis for axis in axes if axis.name in counts),
        spans=spans,
        asked=asked,
        dropped=dropped,
        counts=counts,
        unanswered={name: with_person - int(each.sum()) for name, each in counts.items()},
    )


def _count(positions: Ints, shape: tuple[int, ...]) -> Ints:
    """How often every position occurs in an array of `shape`."""
    return np.bincount(positions, minlength=int(np.prod(shape))).reshape(shape).astype(np.int64)
