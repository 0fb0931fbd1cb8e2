"""Images that people labelled, with what a VLM read of them: axis by axis, and how often the VLM is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis
from seesaw.experiments.misreading import accuracy, confusion, confusion_counts, dependence
from seesaw.results.tables.schemas import ACCURACY, CONFUSION

__all__ = ["Labelled", "labelled_of", "measured_accuracy"]

Ints = NDArray[np.int64]
_CELL = ["model", "subject", "source_axis", "source_value"]
_GROUPINGS = (["model"], ["subject"], ["source_axis", "source_value"], _CELL)
_SEED = 0


@dataclass(frozen=True, eq=False)
class Labelled:
    """The n labelled images of one axis: positions of truth and reading, (n,), and the cells that they are of."""

    axis: Axis
    truth: Ints
    read: Ints
    cells: pd.DataFrame

    @property
    def counts(self) -> Ints:
        """How many images show t and are read as r, (k, k)."""
        return confusion_counts(self.truth, self.read, len(self.axis.attributes))

    def p_value(self) -> float:
        """Of the test that misreading does not depend on the prompt: on model, subject, what it states, all three."""
        cells = self.cells
        groupings = [np.asarray(cells.groupby(names).ngroup(), np.int64) for names in _GROUPINGS]
        rng = np.random.default_rng(_SEED)
        return dependence(self.truth, self.read, groupings, len(self.axis.attributes), rng)

    def by_cell(self, groups: Sequence[tuple[str, str]], cells: Sequence[tuple[str, str]]) -> Ints:
        """`counts` of every cell of every group (model, subject), (P, C, k, k); images of other cells are left out."""
        k = len(self.axis.attributes)
        at = [
            pd.MultiIndex.from_tuples(names).get_indexer(pd.MultiIndex.from_frame(self.cells[columns]))
            for names, columns in ((list(groups), _CELL[:2]), (list(cells), _CELL[2:]))
        ]
        there = (at[0] >= 0) & (at[1] >= 0)
        table = np.zeros((len(groups), len(cells), k, k), np.int64)
        np.add.at(table, (at[0][there], at[1][there], self.truth[there], self.read[there]), 1)
        return table


def labelled_of(labelled: pd.DataFrame, axis: Axis) -> Labelled:
    """The rows of `labelled` (truth and read, as words) about one axis."""
    rows = labelled[labelled["axis"] == axis.name]
    truth, read = (pd.Categorical(rows[name], axis.attributes).codes.astype(np.int64) for name in ("truth", "read"))
    return Labelled(axis, truth, read, rows)


def measured_accuracy(labelled: pd.DataFrame, axes: tuple[Axis, ...], vlm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How often `vlm` reads each axis as it is labelled, by group of labelled images; and its confusion matrices.

    A group is all images (`group_axis` is ""), or those that people labelled with one attribute of any axis: an axis
    that is read worse for one group than for another is a bias of the VLM's own.
    """
    rows, matrices = [], []
    label_of = labelled.pivot_table(index="image_key", columns="axis", values="truth", aggfunc="first")
    for axis in axes:
        mine = labelled_of(labelled, axis)
        if not len(mine.truth):
            continue
        right = pd.Series(mine.truth == mine.read)
        groups = {("", ""): np.ones(len(right), np.bool_)}
        for other in axes:
            if other.name in label_of:
                of_image = label_of[other.name].reindex(mine.cells["image_key"]).to_numpy()
                groups |= {(other.name, attribute): of_image == attribute for attribute in other.attributes}
        for (group_axis, group), where in groups.items():
            seen = accuracy(int(right[where].sum()), int(where.sum()))
            rows.append((vlm, axis.name, group_axis, group, seen.labelled, seen.right, seen.share, seen.low, seen.high))
        counts, matrix = mine.counts, confusion(mine.counts)
        matrices += [
            (vlm, axis.name, truth, read, int(counts[t, r]), matrix[t, r])
            for t, truth in enumerate(axis.attributes)
            for r, read in enumerate(axis.attributes)
        ]
    return pd.DataFrame(rows, columns=ACCURACY.names), pd.DataFrame(matrices, columns=CONFUSION.names)
