"""A sweep's figures corrected for what its VLM misreads, from labelled images. They stand beside the plain ones.

For each axis: if the test finds no sign that misreading depends on the prompt, the matrix method with one confusion
matrix for all prompts (`experiments.misreading`); otherwise prediction-powered inference within every prompt, which
needs labels in each of them (`experiments.prediction_powered`). docs/method.md has the reasons. Shares as read, and
their draws by seed, are those of the plain figures.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis
from seesaw.experiments.estimation import estimate
from seesaw.experiments.labelled import Labelled, labelled_of
from seesaw.experiments.matched import Side, differences, seeds_shared
from seesaw.experiments.misreading import confusion, confusion_draws, corrected_shares
from seesaw.experiments.prediction_powered import (
    LEAST_LABELS,
    prediction_powered_draws,
    prediction_powered_shares,
)
from seesaw.experiments.resampling import DRAWS, drawn_by_prompt, numbers_of, prior_mass
from seesaw.experiments.sensitivity import mixture, shares
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.tally import Tally
from seesaw.experiments.uncertainty import uncertainty_of
from seesaw.results.tables.schemas import CORRECTED, CORRECTED_BIAS, MISREADING

__all__ = ["LEVEL_OF_TEST", "Correction", "correct"]

Floats = NDArray[np.float64]

MATRIX, POWERED, MISSING = "confusion matrix", "prediction-powered", "labels missing"
LEVEL_OF_TEST = 0.05  #: of the test of each axis whether its misreading depends on the prompt
FEW = 5  #: labelled images of an attribute, below which its row of the matrix is mostly prior
_MATRIX_SEED, _LABEL_SEED = 1, 2  #: of draws that are independent of each other and of the images' seeds


@dataclass(frozen=True, eq=False)
class Correction:
    """The corrected tables as data frames (docs/reference.md lists the columns), and what a reader must know of them.

    `matrices` and `bias` have a row for each entry of an axis that has labels. `misreading` has a row for each such
    axis: how many images are labelled, the p-value of the test, and the method that follows.
    """

    matrices: pd.DataFrame
    bias: pd.DataFrame
    misreading: pd.DataFrame
    notes: tuple[str, ...]


def correct(tally: Tally, labelled: pd.DataFrame, settings: AnalysisSettings) -> Correction:
    """Correct the figures of `tally` by labelled images.

    `labelled` has a row for each labelled image and axis: model, subject, source_axis, source_value, axis, truth (the
    label) and read (the VLM's answer). Axes without labels are left out, and named in `notes`.
    """
    methods: dict[str, _Matrix | _Powered] = {}
    tests, notes, bare = [], list[str](), list[str]()
    for axis in tally.targets:
        mine = labelled_of(labelled, axis)
        if not len(mine.truth):
            bare.append(axis.name)
            continue
        p = mine.p_value()
        method = methods[axis.name] = _Powered.of(mine, tally) if p < LEVEL_OF_TEST else _Matrix.of(mine)
        tests.append((axis.name, len(mine.truth), (mine.truth == mine.read).mean(), p, method.name))
        notes += _notes(mine, p)
    if bare:
        notes.append(f"no image has a label for {', '.join(bare)}, so nothing is corrected there")
    entries = [row for group in range(len(tally.groups)) for row in _entries(tally, group, methods, settings)]
    biases = [row for group in range(len(tally.groups)) for row in _biases(tally, group, methods, settings)]
    return Correction(
        matrices=pd.DataFrame(entries, columns=CORRECTED.names),
        bias=pd.DataFrame(biases, columns=CORRECTED_BIAS.names),
        misreading=pd.DataFrame(tests, columns=MISREADING.names),
        notes=tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class _Matrix:
    """One confusion matrix for all prompts, (k, k), and draws of it, (B, k, k)."""

    matrix: Floats
    drawn: Floats
    name: str = MATRIX

    @classmethod
    def of(cls, mine: Labelled) -> _Matrix:
        rng = np.random.default_rng((_MATRIX_SEED, zlib.crc32(mine.axis.name.encode())))
        return cls(confusion(mine.counts), confusion_draws(mine.counts, DRAWS, rng))

    def shares(self, read: Floats, group: int, cells: slice) -> Floats:
        """Corrected shares of the `cells` of a group, from the shares as read: (m, k) both."""
        return corrected_shares(read, self.matrix)

    def draws(self, read: Floats, group: int, cells: slice) -> Floats:
        """The same from draws of the shares as read: (B, m, k) both."""
        return corrected_shares(read, self.drawn)


@dataclass(frozen=True, eq=False)
class _Powered:
    """The labelled images of every cell of every group by truth and reading, (P, C, k, k); methods as `_Matrix`."""

    labelled: NDArray[np.int64]
    seed: int
    name: str = POWERED

    @classmethod
    def of(cls, mine: Labelled, tally: Tally) -> _Powered:
        return cls(mine.by_cell(tally.groups, tally.cells), zlib.crc32(mine.axis.name.encode()))

    def shares(self, read: Floats, group: int, cells: slice) -> Floats:
        return prediction_powered_shares(read, self.labelled[group, cells])

    def draws(self, read: Floats, group: int, cells: slice) -> Floats:
        rng = np.random.default_rng((_LABEL_SEED, self.seed, group, cells.start))
        return prediction_powered_draws(read, self.labelled[group, cells], self.labelled.sum((0, 1)), rng)


def _entries(
    tally: Tally, group: int, methods: Mapping[str, _Matrix | _Powered], settings: AnalysisSettings
) -> Iterator[tuple[object, ...]]:
    """The rows of one group: model, subject, source, target, is, is_matched, se, low, high, method."""
    initial = tally.initial(group)
    interventions = {source.name: tally.intervention(group, source, settings) for source in tally.sources}
    pull = estimate(initial, interventions, settings).matched.pull
    sharing = seeds_shared(initial, interventions)
    for i, (source, counts) in enumerate(interventions.items()):
        shared, number = sharing[source], numbers_of(initial, counts)
        defined = [
            name
            for name in methods
            if not np.isnan(initial.shares(name)).any() and not np.isnan(counts.shares(name)).any()
        ]
        masses = {name: prior_mass(initial.images(name), counts.images(name)) for name in defined}
        drawn = [drawn_by_prompt(initial, masses, number), drawn_by_prompt(counts, masses, number, side=1)]
        near = drawn_by_prompt(shared, masses, number) if shared is not None else {}
        for j, target in enumerate(tally.targets):
            method = methods.get(target.name)
            if method is None:
                continue
            names = (*tally.groups[group], source, target.name)
            if target.name not in defined:
                yield (*names, *_undefined(5), method.name)
                continue
            before, before_draws = shares(initial.by_axis[target.name]), drawn[0][target.name]
            if shared is not None and pull[i, j] > 0:
                before = before + pull[i, j] * (shares(shared.by_axis[target.name]) - before)
                before_draws = before_draws + pull[i, j] * (near[target.name] - before_draws)
            sides = [
                _side(method, group, cells, read, np.moveaxis(of_read, -1, 0), weights)
                for cells, read, of_read, weights in (
                    (slice(0, 1), before, before_draws, initial.weights),
                    (tally.spans[source], shares(counts.by_axis[target.name]), drawn[1][target.name], counts.weights),
                )
            ]
            yield (*names, *_difference(sides, target, method.name, settings))


@dataclass(frozen=True, eq=False)
class _Corrected:
    """The corrected shares of a mixture of prompts, (k,), and draws of them, (B, k), of which some may be NaN."""

    shares: Floats
    draws: Floats


def _side(
    method: _Matrix | _Powered, group: int, cells: slice, read: Floats, draws: Floats, weights: Floats
) -> _Corrected:
    return _Corrected(
        mixture(method.shares(read, group, cells), weights), mixture(method.draws(draws, group, cells), weights)
    )


def _difference(
    sides: list[_Corrected], target: Axis, method: str, settings: AnalysisSettings
) -> tuple[float | str, ...]:
    """is, is_matched, se, low, high and method, from the corrected shares before and after an intervention."""
    before, after = (settings.w_bar(target.name, side.shares) for side in sides)
    there = ~np.isnan(sides[0].draws).any(-1) & ~np.isnan(sides[1].draws).any(-1)  # all but singular draws of M
    if np.isnan(before - after) or there.sum() < 2:
        return *_undefined(5), MISSING if method == POWERED else method
    drawn = [side.draws[there] for side in sides]
    none = np.empty(0, np.int64)
    noisy = [
        Side(side.shares, (draws - draws.mean(0)) / np.sqrt(len(draws)), none)
        for side, draws in zip(sides, drawn, strict=True)
    ]
    matched = float(differences(noisy[:1], noisy[1:], target.name, settings)[0])
    sure = uncertainty_of(
        settings.w_bar(target.name, drawn[0]) - settings.w_bar(target.name, drawn[1]), np.asarray(matched)
    )
    return float(before - after), matched, float(sure.se), float(sure.low), float(sure.high), method


def _biases(
    tally: Tally, group: int, methods: Mapping[str, _Matrix | _Powered], settings: AnalysisSettings
) -> Iterator[tuple[object, ...]]:
    """The rows of one group: model, subject, axis, w, se, low, high, method; intervals as `bias_uncertainty`'s."""
    initial = tally.initial(group)
    defined = [name for name in methods if not np.isnan(initial.shares(name)).any()]
    masses = {name: prior_mass(initial.images(name)) for name in defined}
    drawn = drawn_by_prompt(initial, masses, numbers_of(initial))
    for name, method in methods.items():
        names = (*tally.groups[group], name)
        if name not in defined:
            yield (*names, *_undefined(4), method.name)
            continue
        side = _side(
            method, group, slice(0, 1), shares(initial.by_axis[name]), np.moveaxis(drawn[name], -1, 0), initial.weights
        )
        w, draws = float(settings.w_bar(name, side.shares)), settings.w_bar(name, side.draws)
        draws = draws[~np.isnan(draws)]
        if np.isnan(w) or len(draws) < 2:
            yield (*names, *_undefined(4), MISSING if method.name == POWERED else method.name)
            continue
        sure = uncertainty_of(draws, np.maximum(2 * w - draws.mean(-1), 0))
        low, high = min(w, max(float(sure.low), 0.0)), max(w, float(sure.high))
        yield (*names, w, float(sure.se), low, high, method.name)


def _undefined(n: int) -> tuple[float, ...]:
    return (np.nan,) * n


def _notes(mine: Labelled, p: float) -> list[str]:
    name, notes = mine.axis.name, []
    rare = [
        attribute
        for attribute, images in zip(mine.axis.attributes, mine.counts.sum(1).tolist(), strict=True)
        if images < FEW
    ]
    if p < LEVEL_OF_TEST:
        return [
            f"{name}: how it is misread depends on the prompt (p = {p:.3g}), so only prompts with {LEAST_LABELS} "
            "labelled images or more are corrected, each by its own; for the others labels are missing"
        ]
    if rare:
        notes.append(f"{name}: fewer than {FEW} images are labelled {', '.join(rare)}; label more images")
    return notes
