"""The paper's studies of single mitigations: does IS predict their effects, and how often do they worsen another axis?

Sources: the appendix "Validating Mitigation Effect Estimation", and the study of negative effects (docs/method.md,
"Studies"). Each axis is mitigated by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from seesaw.experiments.estimation import estimate
from seesaw.experiments.lab import all_of
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.sensitivity import correlation
from seesaw.experiments.uncertainty import Z, sensitivity_uncertainty
from seesaw.results.tables.mitigation import TOLERANCE

__all__ = ["negatives", "single_mitigations", "validation"]


async def single_mitigations(observer: PromptSetObserver, models: Sequence[str]) -> pd.DataFrame:
    """IS[x, y] as predicted by counterfactuals and as measured after mitigating x, for all models, subjects, x and y.

    Columns: model, subject, source_axis, target_axis, before (predicted), after (measured), and `error`, the standard
    error of `after`. Values are NaN where a cell failed or shows no person. Raises what the Lab raises, after all that
    was in flight has ended.
    """
    subjects = observer.mitigator.settings.dataset.subjects
    pairs = list(itertools.product(models, subjects))
    return pd.concat(await all_of(_effects(observer, *pair) for pair in pairs), ignore_index=True)


async def _effects(observer: PromptSetObserver, model: str, subject: str) -> pd.DataFrame:
    """The rows of `single_mitigations` for one subject on one model."""
    mitigator = observer.mitigator
    settings, axes = mitigator.settings, [axis.name for axis in mitigator.settings.dataset.axes]
    start = mitigator.initial(subject)
    initial, *observed = await observer.observe(
        model,
        [
            start,
            *(mitigator.counterfactuals(start, axis) for axis in axes),
            *(mitigator.mitigate(start, axis) for axis in axes),
        ],
    )
    counterfactual = {axis: seen.counts for axis, seen in zip(axes, observed[: len(axes)], strict=True)}
    mitigated = {axis: seen.counts for axis, seen in zip(axes, observed[len(axes) :], strict=True)}
    before, after = (estimate(initial.counts, counts, settings) for counts in (counterfactual, mitigated))
    entries = pd.MultiIndex.from_product([[model], [subject], axes, axes])
    frame = entries.to_frame(index=False, name=["model", "subject", "source_axis", "target_axis"])
    frame["before"], frame["after"] = before.sensitivity.ravel(), after.sensitivity.ravel()
    frame["error"] = sensitivity_uncertainty(after).se.ravel()
    return frame


def validation(effects: pd.DataFrame) -> pd.DataFrame:
    """Pearson correlation of IS before and after, by model and subject, over the pairs (x, y) that are defined.

    Columns: model, subject, `pairs` (their number), `correlation` over all pairs (the paper's S contains the effect of
    each axis on itself too), and `others`, the correlation over pairs with x != y. A correlation is NaN for fewer than
    3 pairs, or if one of the two is constant. The paper's figure is the mean of the correlations: 0.65 with ITI-GEN,
    0.95 with PM.
    """
    rows = []
    for (model, subject), group in effects.groupby(["model", "subject"], sort=False):
        defined = group.dropna(subset=["before", "after"])
        others = defined[defined["source_axis"] != defined["target_axis"]]
        rows.append((model, subject, len(defined), _correlation(defined), _correlation(others)))
    return pd.DataFrame(rows, columns=["model", "subject", "pairs", "correlation", "others"])


def _correlation(effects: pd.DataFrame) -> float:
    before, after = effects["before"].to_numpy(np.float64), effects["after"].to_numpy(np.float64)
    return correlation(before, after) if len(before) >= 3 else float("nan")


def negatives(effects: pd.DataFrame) -> pd.DataFrame:
    """How often mitigating x made another axis y worse (IS after < 0), by model; the paper: 29.4 % with ITI-GEN.

    Columns: model, `pairs` (defined, with x != y), `negative` (how many of them are below 0), `share`, and `sure`, the
    share of pairs that are below 0 by more than 1.96 standard errors. `sure` is there because sampling alone makes half
    of all pairs negative where nothing changes.
    """
    others = effects[effects["source_axis"] != effects["target_axis"]]
    rows = []
    for model, group in others.groupby("model", sort=False):
        group = group.dropna(subset=["after"])
        after, error = group["after"].to_numpy(), group["error"].to_numpy()
        negative = after < -TOLERANCE
        sure = negative & (after < -Z * error)
        shares = (negative.mean(), sure.mean()) if len(group) else (np.nan, np.nan)
        rows.append((model, len(group), int(negative.sum()), *shares))
    return pd.DataFrame(rows, columns=["model", "pairs", "negative", "share", "sure"])
