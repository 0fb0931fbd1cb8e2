"""Which entries of a matrix are called significant, when many are tested at once (docs/method.md).

This verdict is made once, here. Tables, the report, messages and studies use it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["FALSE_DISCOVERIES", "matrix_q", "q_values"]

Floats = NDArray[np.float64]

FALSE_DISCOVERIES = 0.05  #: the share of calls that are false, in the mean: `significant` means q <= this


def q_values(p: Floats) -> Floats:
    """The smallest rate of false discoveries at which each of the tests `p` (n,) is called; NaN where p is NaN.

    Source: Benjamini and Hochberg 1995, the step-up procedure. Tests that are NaN are none of the family.
    """
    q = np.full(p.shape, np.nan)
    defined = np.flatnonzero(~np.isnan(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    n = len(order)
    raised = p[order] * n / np.arange(1, n + 1)
    q[order] = np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)
    return q


def matrix_q(p: Floats, own: NDArray[np.bool_]) -> Floats:
    """q of the entries of one matrix (r, n): those between two axes are one family.

    What axes do to themselves (`own`, (r, n)) answers another question, is mostly far from 0, and would make the others
    look more certain than they are. So these entries are a family of their own.
    """
    q = np.full(p.shape, np.nan)
    for family in (own, ~own):
        q[family] = q_values(p[family])
    return q
