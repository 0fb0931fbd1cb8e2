"""Counts answers: how many images of every cell show every attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.answers import CodedAnswers
from seesaw.experiments.counts import Codes, ImageCodes, PromptCounts, code_type
from seesaw.experiments.dataset.model import Axis, Dataset
from seesaw.experiments.lab import Observations
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["Tally", "tally_answers", "tally_observations"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Counts of images, for P groups (model, subject) of C cells each: the initial prompt, then the counterfactuals.

    `cells` names the cells by (source_axis, source_value); the first is ("", ""). `spans` has the cells of each source
    axis that occurs. `asked` (P, C) is the number of images looked at; `dropped` (P, C) of them count nowhere (no
    person, or withheld). `counts[axis]` (P, C, k) is the number of images that show each attribute, for the target axes
    in their order. `unanswered[axis]` is the number of images with a person that do not answer that axis.

    `codes[axis]` are the same answers image by image, the attribute's position or -1: of the initial prompts (P, 1, S),
    and of the counterfactuals (P, C - 1, S'), which may have fewer images. One column is one seed. Empty if it is not
    known which images share their seed.
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
    codes: Mapping[str, tuple[Codes, Codes]]

    def initial(self, group: int) -> PromptCounts:
        """Counts of the initial prompt of one group."""
        return self._prompt_counts(group, slice(0, 1), np.ones(1))

    def intervention(self, group: int, source: Axis, settings: AnalysisSettings) -> PromptCounts:
        """Counts of the counterfactuals of `source` of one group, with the weights of `settings`."""
        return self._prompt_counts(group, self.spans[source.name], settings.weights(source))

    def of_subject(self, subject: str) -> Tally:
        """The counts of one subject's groups alone; `unanswered` still counts all subjects."""
        groups = [number for number, (_, name) in enumerate(self.groups) if name == subject]
        return replace(
            self,
            groups=tuple(self.groups[number] for number in groups),
            asked=self.asked[groups],
            dropped=self.dropped[groups],
            counts={name: counts[groups] for name, counts in self.counts.items()},
            codes={name: (initial[groups], others[groups]) for name, (initial, others) in self.codes.items()},
        )

    def _prompt_counts(self, group: int, cells: slice, weights: NDArray[np.float64]) -> PromptCounts:
        by_axis = {name: counts[group, cells] for name, counts in self.counts.items()}
        if not self.codes:
            return PromptCounts(by_axis, weights)
        part, first = (0, 0) if cells.start == 0 else (1, 1)
        rows = slice(cells.start - first, cells.stop - first)
        codes = {name: parts[part][group, rows] for name, parts in self.codes.items()}
        number = np.arange(next(iter(codes.values())).shape[-1])
        return PromptCounts(by_axis, weights, codes=ImageCodes(number, codes))


def tally_observations(observed: Mapping[str, Sequence[Observations]], dataset: Dataset) -> Tally:
    """Count a sweep's cells (by model) without its answers table, which has nine million rows for 10^6 images.

    The counts are those of `tally_answers`, except that all groups and axes of the experiment are there, even if none
    of their images could be made: what failed is undefined and must not vanish. A cell with failures counts no images.
    """
    cells = [("", ""), *((axis.name, attribute) for axis in dataset.axes for attribute in axis.attributes)]
    groups = [(model, subject) for model in sorted(observed) for subject in dataset.subjects]
    row, column = ({name: position for position, name in enumerate(names)} for names in (groups, cells))
    shape = len(groups), len(cells)
    asked, dropped = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    counts = {axis.name: np.zeros((*shape, len(axis.attributes)), np.int64) for axis in dataset.axes}
    sound = [(model, cell) for model, observations in observed.items() for cell in observations if not cell.failures]
    codes = {}
    if all(cell.answers for _, cell in sound):
        widths = _widths(sound)
        codes = {axis.name: _no_codes(axis, shape, widths) for axis in dataset.axes}
    for model, cell in sound:
        prompt = cell.prompt
        at = row[model, prompt.subject], column[prompt.source_axis, prompt.source_value]
        asked[at], dropped[at] = cell.asked, cell.dropped
        for name, by_attribute in counts.items():
            by_attribute[at] = cell.counts[name]
            if codes and cell.answers:
                part, first = (1, 1) if prompt.source_axis else (0, 0)
                codes[name][part][at[0], at[1] - first, cell.answers.index] = cell.answers.value[name]
    return _tally(groups, cells, dataset.axes, dataset.axes, asked, dropped, counts, codes)


def _widths(cells: Sequence[tuple[str, Observations]]) -> tuple[int, int]:
    """How many seeds an initial prompt has at most, and a counterfactual."""
    width = [0, 0]
    for _, cell in cells:
        if cell.answers and len(cell.answers.index):
            part = 1 if cell.prompt.source_axis else 0
            width[part] = max(width[part], int(cell.answers.index.max()) + 1)
    return width[0], width[1]


def tally_answers(coded: CodedAnswers, dataset: Dataset) -> Tally:
    """Count the answers of a checked table. Groups and axes are those that occur in it."""
    cells, columns, sources = [("", "")], [0], []
    start = 1  # position of this axis' first counterfactual among the initial prompt and all counterfactuals
    occurring = set(np.unique(coded.source).tolist())
    for axis in dataset.axes:
        k = len(axis.attributes)
        if occurring & set(range(start, start + k)):
            cells += [(axis.name, attribute) for attribute in axis.attributes]
            columns += range(start, start + k)
            sources.append(axis)
        start += k
    position_of = np.full(start, -1, np.int64)  # of each counterfactual among `cells`
    position_of[columns] = np.arange(len(columns))

    pairs, group = np.unique(coded.model * len(coded.subjects) + coded.subject, return_inverse=True)
    groups = [(coded.models[p // len(coded.subjects)], coded.subjects[p % len(coded.subjects)]) for p in pairs.tolist()]
    shape = len(groups), len(cells)
    cell = group * len(cells) + position_of[coded.source]  # (N,), the cell of each row among all P x C

    cell_of_image = np.zeros(len(coded.no_person), np.int64)
    cell_of_image[coded.image] = cell
    asked = _count(cell_of_image, shape)
    dropped = _count(cell_of_image[coded.no_person], shape)
    seed = _seeds(coded, group, int(asked.max(initial=0)))
    first = position_of[coded.source] == 0  # (N,), rows about an initial prompt
    widths = (0, 0) if seed is None else tuple(int(seed[rows].max(initial=-1)) + 1 for rows in (first, ~first))
    counts, codes = {}, {}
    for position, axis in enumerate(dataset.axes):
        rows = coded.axis == position
        if rows.any():
            k = len(axis.attributes)
            counts[axis.name] = _count(cell[rows] * k + coded.answer[rows], (*shape, k))
            if seed is not None:
                codes[axis.name] = initial, others = _no_codes(axis, shape, (widths[0], widths[1]))
                of, rest = rows & first, rows & ~first
                initial[group[of], 0, seed[of]] = coded.answer[of]
                others[group[rest], position_of[coded.source[rest]] - 1, seed[rest]] = coded.answer[rest]
    return _tally(groups, cells, sources, dataset.axes, asked, dropped, counts, codes)


def _seeds(coded: CodedAnswers, group: Ints, most: int) -> Ints | None:
    """The seed of every row, numbered from 0, (N,): images of one group (N,) that are called the same share it.

    None if most names of images occur once: `most` is the number of images of the largest cell. Then nothing is known.
    """
    if not len(group):
        return None
    names = int(coded.number.max()) + 1
    if names <= 2 * most:
        return coded.number
    pairs, number = np.unique(group * names + coded.number, return_inverse=True)
    seed = number - np.searchsorted(pairs, group * names)  # counted within each group
    return seed if seed.max() < 2 * most else None


def _no_codes(axis: Axis, shape: tuple[int, int], widths: tuple[int, int]) -> tuple[Codes, Codes]:
    """`Tally.codes` of an axis without any answer: `shape` is (P, C), `widths` (S, S')."""
    kind = code_type(len(axis.attributes))
    groups, cells = shape
    return np.full((groups, 1, widths[0]), -1, kind), np.full((groups, cells - 1, widths[1]), -1, kind)


def _tally(
    groups: Sequence[tuple[str, str]],
    cells: Sequence[tuple[str, str]],
    sources: Sequence[Axis],
    axes: Sequence[Axis],
    asked: Ints,
    dropped: Ints,
    counts: Mapping[str, Ints],
    codes: Mapping[str, tuple[Codes, Codes]],
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
        unanswered={name: with_person - int(by_attribute.sum()) for name, by_attribute in counts.items()},
        codes=codes,
    )


def _count(positions: Ints, shape: tuple[int, ...]) -> Ints:
    """How often every position of an array of `shape` occurs in `positions`, as such an array."""
    return np.bincount(positions, minlength=int(np.prod(shape))).reshape(shape).astype(np.int64)
