"""Tests whether the counterfactuals of one axis lose images at different rates, which is a bias of its own.

An image is dropped if it shows no person or was withheld. The terminal and the report use the same test: Fisher's exact
test for two counterfactuals, chi-square for more, with Holm's correction over all tests of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALARM", "uneven"]

ALARM = 0.01  #: rates count as different if their corrected p value is below this

Key = TypeVar("Key")


def uneven(groups: Mapping[Key, Sequence[tuple[int, int]]]) -> dict[Key, float]:
    """The groups whose drop rates differ, with their corrected p values.

    A group is the counterfactuals of one axis, as (images asked, images dropped). Groups of one are not tested.
    """
    p_values = {key: _p_value(cells) for key, cells in groups.items() if len(cells) > 1}
    corrected = _holm(np.array(list(p_values.values())))
    return {key: float(p) for key, p in zip(p_values, corrected, strict=True) if p < ALARM}


def _p_value(cells: Sequence[tuple[int, int]]) -> float:
    """The probability that drop rates differ at least as much as those of `cells` by chance alone."""
    table = np.array([[dropped, asked - dropped] for asked, dropped in cells])
    if not table.sum(0).all():  # all images were dropped, or none: the rates are equal
        return 1.0
    import scipy.stats  # takes half a second, and most runs drop nothing

    if len(cells) == 2:
        return float(scipy.stats.fisher_exact(table).pvalue)
    return float(scipy.stats.chi2_contingency(table).pvalue)


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down correction of p values (t,) -> (t,), in the order of `p`."""
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    corrected = np.empty(len(p))
    corrected[order] = stepped
    return corrected
