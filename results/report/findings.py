"""What the report says about a sweep, decided before it is drawn: `experiments.findings` fills these in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Agreement", "Finding", "Findings", "LeftOut", "MeanMatrix", "Recurrent", "SignificantShares"]

Pair = tuple[str, str]  #: model, subject


@dataclass(frozen=True)
class Finding:
    """One entry of a matrix: what diversifying `source` does to `target`."""

    model: str
    subject: str
    source: str
    target: str
    value: float  #: IS with matched noise
    plug_in: float  #: IS as the paper computes it: w_init - w_after
    se: float
    low: float
    high: float
    w_init: float
    w_after: float
    n_init: int
    n_after: int
    exact: float  #: the exact IS, NaN where it is not known
    significant: bool
    undefined: str = ""  #: why the value is NaN
    shrunken: float = math.nan  #: what the true value is likely to be; NaN on the diagonal

    @property
    def own(self) -> bool:
        """Whether it is what an axis does to itself."""
        return self.source == self.target


@dataclass(frozen=True)
class SignificantShares:
    """Of the `defined` interactions between two axes of a model (or of all: model ""), the significant ones by sign."""

    model: str
    defined: int
    negative: int
    positive: int


@dataclass(frozen=True)
class Recurrent:
    """The interaction that is significantly negative on most pairs of model and subject: on `times` of `pairs`."""

    source: str
    target: str
    times: int
    pairs: int


@dataclass(frozen=True)
class MeanMatrix:
    """Mean IS of a model over its `subjects`, (rows, columns) each, between `low` and `high`.

    `unit` is what chance is in: "images", for the mean over these very subjects, or "subjects", for subjects like them.
    `count` is the number of subjects for which an entry is defined, `negative` and `positive` how many of them have it
    significantly below and above 0, `significant` whether the mean is.
    """

    model: str
    unit: str
    subjects: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    significant: NDArray[np.bool_]
    count: NDArray[np.int64]
    negative: NDArray[np.int64]
    positive: NDArray[np.int64]

    @property
    def partial(self) -> bool:
        """Whether an entry is undefined for some subject."""
        return bool((self.count < self.subjects).any())


@dataclass(frozen=True)
class LeftOut:
    """Images of a model that count nowhere, by what the prompt stated, over all subjects."""

    model: str
    source: str
    value: str
    asked: int
    dropped: int
    uneven: bool  #: the counterfactuals of this axis lose images at rates that chance does not explain


@dataclass(frozen=True)
class Agreement:
    """How measured IS agrees with exact IS over some entries; `slope` is that of measured on exact (least squares).

    `correlation` (Pearson) and `slope` are NaN where the entries do not vary.
    """

    entries: int
    correlation: float
    slope: float
    difference: float  #: mean absolute
    covered: int  #: entries whose 95 % interval holds the exact value


@dataclass(frozen=True)
class Findings:
    """All that is decided about a sweep.

    `entries` are the rows of matrices.parquet in their order. `telling` is, by pair, the entry to look at first: the
    lowest between two axes, a significant one before others; None where nothing is defined. `agreement` is by model
    (over all entries, and over those between two axes) and `agreement_of` by pair, where exact values are known.
    """

    entries: tuple[Finding, ...]
    telling: Mapping[Pair, Finding | None]
    picked_width: float  #: how much wider the intervals of the entries in a list of the strongest are
    shares: tuple[SignificantShares, ...]
    recurrent: Recurrent | None
    means: tuple[MeanMatrix, ...]
    left_out: tuple[LeftOut, ...]
    agreement: Mapping[str, tuple[Agreement, Agreement | None]]
    agreement_of: Mapping[Pair, Agreement]
