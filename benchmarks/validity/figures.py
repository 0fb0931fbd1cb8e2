"""What the estimates of known values show: errors, coverage, false calls, power and the winner's curse.

All functions take the entries of matrices: the columns of uncertainty.parquet, with `repeat` (a number), `exact` and
`exact_w` (the exact IS, and the exact w of the initial prompt).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seesaw.experiments.shrinkage import picked_width, shrunken

__all__ = ["by_bias", "by_size", "false_calls", "mean_errors", "power", "strongest"]

_SIZES = (-np.inf, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, np.inf)  # bins of the exact IS
_BIASES = (0.0, 0.1, 0.3, 0.6, 0.95, np.inf)  # bins of the exact w; above 0.95 nearly all images show one attribute
_POWER = (0.02, 0.05, 0.1, 0.2, np.inf)  # bins of the size of the exact IS
_STRONGEST = 6  # of each sign, as the report lists
_MATRIX = ["repeat", "model", "subject"]


def by_size(entries: pd.DataFrame) -> pd.DataFrame:
    """Errors and coverage in bins of the exact IS; the bin of exactly 0 is one of its own."""
    return _errors(entries, _bins("IS", entries["exact"], _SIZES).where(entries["exact"].abs() > 1e-12, "IS = 0"))


def by_bias(entries: pd.DataFrame) -> pd.DataFrame:
    """Errors and coverage in bins of the exact w of the initial prompt."""
    return _errors(entries, _bins("w", entries["exact_w"], _BIASES))


def mean_errors(means: pd.DataFrame) -> Mapping[str, float]:
    """How means over the subjects of a model, and their intervals for these subjects, agree with the exact means."""
    these = means[means["unit"] == "images"]
    error = these["is_matched"] - these["exact"]
    return {"means": len(these), "error": error.mean(), "rmse": _rms(error), "covered": _covered(these).mean()}


def false_calls(entries: pd.DataFrame) -> Mapping[str, float]:
    """Of entries between two axes that are all exactly 0: matrices with any call, and entries outside the interval."""
    called = entries.groupby(_MATRIX)["significant"].any()
    zero = entries["exact"].abs() <= 1e-12
    if not zero.all():
        raise ValueError("false calls are counted where all exact values are 0")
    return {
        "matrices": len(called),
        "with a call": called.mean(),
        "entries above 0": (entries["low"] > 0).mean(),
        "entries below 0": (entries["high"] < 0).mean(),
    }


def power(entries: pd.DataFrame) -> pd.DataFrame:
    """How many entries are called, with the right sign and the wrong one, in bins of the size of the exact IS."""
    right = np.sign(entries["is_matched"]) == np.sign(entries["exact"])
    frame = entries.assign(right=entries["significant"] & right, wrong=entries["significant"] & ~right)
    groups = frame.groupby(_bins("|IS|", entries["exact"].abs(), _POWER), observed=True)
    return pd.DataFrame(
        {"entries": groups.size(), "power": groups["right"].mean(), "wrong sign": groups["wrong"].mean()}
    )


def strongest(entries: pd.DataFrame) -> Mapping[str, float]:
    """The entries that a report would list first, for every model and sign: what they measure, and what is exact.

    `shrunken` is their likely value, and `covered` the share of intervals that hold the exact one, as wide as the
    report shows them.
    """
    parts = []
    for _, of_model in entries.groupby(["repeat", "model"]):
        values, errors = of_model["is_matched"].to_numpy(), of_model["se"].to_numpy()
        likely = of_model.assign(shrunken=shrunken(values, errors), sign=np.sign(values))
        wider = picked_width(int(of_model["significant"].sum()), len(of_model))
        low, high = values - of_model["low"], of_model["high"] - values
        likely = likely.assign(low=values - wider * low, high=values + wider * high, size=np.abs(values))
        called = likely[likely["significant"]].sort_values("size", ascending=False)
        parts.append(called.groupby("sign").head(_STRONGEST))
    top = pd.concat(parts)
    return {
        "entries": len(top),
        "measured": (top["is_matched"] * top["sign"]).mean(),
        "shrunken": (top["shrunken"] * top["sign"]).mean(),
        "exact": (top["exact"] * top["sign"]).mean(),
        "covered": _covered(top).mean(),
    }


def _errors(entries: pd.DataFrame, bins: pd.Series) -> pd.DataFrame:
    """A row for every bin that has entries, from the lowest: plug-in and shown estimates, and the interval."""
    frame = entries.assign(
        plug_in=entries["is"] - entries["exact"],
        error=entries["is_matched"] - entries["exact"],
        covered=_covered(entries),
        below=entries["exact"] < entries["low"],
        above=entries["exact"] > entries["high"],
        width=(entries["high"] - entries["low"]) / 2,
    )
    groups = frame.groupby(bins, observed=True)
    return pd.DataFrame(
        {
            "entries": groups.size(),
            "plug-in error": groups["plug_in"].mean(),
            "plug-in rmse": groups["plug_in"].agg(_rms),
            "error": groups["error"].mean(),
            "rmse": groups["error"].agg(_rms),
            "covered": groups["covered"].mean(),
            "exact below": groups["below"].mean(),
            "exact above": groups["above"].mean(),
            "half-width": groups["width"].agg(_rms),
        }
    )


def _covered(entries: pd.DataFrame) -> pd.Series:
    """Whether each interval contains the exact value, to rounding."""
    exact = entries["exact"]
    return (entries["low"] - 1e-9 <= exact) & (exact <= entries["high"] + 1e-9)


def _rms(values: pd.Series) -> float:
    return float(np.sqrt((np.asarray(values, np.float64) ** 2).mean()))


def _bins(name: str, values: pd.Series, edges: Sequence[float]) -> pd.Series:
    """The bin of every value, in words, as ordered categories; values below the first edge have none."""
    labels = [_label(name, low, high) for low, high in itertools.pairwise(edges)]
    cut: NDArray[np.object_] = pd.cut(values, list(edges), labels=labels, right=False)
    ordered = pd.CategoricalDtype(["IS = 0", *labels], ordered=True)
    return pd.Series(cut, index=values.index).astype(ordered)


def _label(name: str, low: float, high: float) -> str:
    if np.isinf(low):
        return f"{name} < {high:g}"
    return f"{name} >= {low:g}" if np.isinf(high) else f"{low:g} <= {name} < {high:g}"
