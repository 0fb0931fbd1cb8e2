"""The jobs of `seesaw study validation` and `seesaw study negatives`: every axis mitigated by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from seesaw.experiments.lab import Lab
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.studies import Effects, negatives, single_mitigations, validation
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.store.store import Store
from seesaw.results.tables.schemas import EFFECTS, NEGATIVES, VALIDATION
from seesaw.results.tables.write import table_of, write_both
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.jobs.job import Job
from seesaw.runner.jobs.mitigate import mitigator_identity, mitigator_of
from seesaw.runner.jobs.target import TargetJob
from seesaw.runner.plan import Plan, all_answered

__all__ = ["SingleMitigationsJob", "study_of"]


class SingleMitigationsJob:
    """Both studies evaluate the same effects, so they share their images and effects.parquet."""

    shown = False
    stated = 1

    def __init__(self, experiment: Experiment, name: str) -> None:
        if len(experiment.dataset.axes) < 2:
            raise ConfigError(
                f"the study {name} is about the effects of axes on each other, but only one axis is chosen; choose more"
            )
        self.experiment = self.served = experiment
        self._name, self._settings = name, experiment.mitigation_settings
        self._mitigator = mitigator_of(experiment, self._settings)
        self._effects = Effects(pd.DataFrame())
        self.command, self.files = f"study {name}", ("effects.*", f"{name}.*")

    def identity(self) -> Mapping[str, Any]:
        return {"effects": {"intervention": self._settings.intervention, **mitigator_identity(self.experiment)}}

    def is_cached(self, store: Store) -> bool:
        return all_answered(self.experiment, store)

    def describe(self, plan: Plan) -> str:
        subjects, models = len(self.experiment.dataset.subjects), len(self.experiment.models)
        return f"each of {len(self._settings.dataset.axes)} axes mitigated, {subjects} subjects on {models} models"

    async def observe(self, lab: Lab, events: Events) -> None:
        models = [model.name for model in self.experiment.models]
        self._effects = await single_mitigations(PromptSetObserver(lab, self._mitigator), models)

    def write(self, events: Events) -> bool:
        path, about, effects = self.experiment.run, self._settings.about(), self._effects
        evaluate, schema, describe = _STUDIES[self._name]
        results = evaluate(effects)
        for name, table in (
            ("effects", table_of(effects.entries, EFFECTS, about)),
            (self._name, table_of(results, schema, about)),
        ):
            write_both(path, name, table)
        for line in describe(results):
            events.note(line)
        return not effects.entries[["before", "after"]].isna().any(axis=None)


def _describe_validation(results: pd.DataFrame) -> list[str]:
    lines = []
    for model in dict.fromkeys(results["model"].astype(str).tolist()):
        rows = results[results["model"] == model]
        subjects = rows["correlation"].count()
        lines += [
            f"{model}: IS as predicted and as measured in fresh images correlate at {_with_null(rows, '')} in the mean "
            f"of {subjects} subjects",
            f"{model}: measured in the images that predicted it, as in the paper, {_with_null(rows, 'shared_')}; the "
            "paper: 0.95 with PM, 0.65 with ITI-GEN",
        ]
    return lines


def _with_null(rows: pd.DataFrame, design: str) -> str:
    """The correlations of one design, over all pairs and over pairs of two axes, and what is there without effects."""
    whole, between = (
        f"{column.mean():.3f} \N{PLUS-MINUS SIGN} {column.std() / column.count() ** 0.5:.3f}"
        for column in (rows[design.rstrip("_") or "correlation"], rows[f"{design}others"])
    )
    nulls = rows[f"{design}null"].mean(), rows[f"{design}null_others"].mean()
    return f"{whole} ({nulls[0]:.3f}), {between} between two axes ({nulls[1]:.3f} if axes had no effect on each other)"


def _describe_negatives(results: pd.DataFrame) -> list[str]:
    return [
        f"{row['model']}: of {row['pairs']:,} effects on another axis, {row['share']:.1%} are below 0, where "
        f"{row['null']:.1%} would be if axes had no effect on each other; {row['share_significant']:.1%} are "
        "significant; the paper: 29.4 % below 0 with ITI-GEN"
        for row in results.to_dict("records")
    ]


#: For each study: the function that evaluates the effects, the columns of its results, and the lines about them.
_STUDIES: Mapping[str, tuple[Callable[[Effects], pd.DataFrame], pa.Schema, Callable[[pd.DataFrame], list[str]]]] = {
    "validation": (validation, VALIDATION, _describe_validation),
    "negatives": (negatives, NEGATIVES, _describe_negatives),
}


def study_of(name: str, experiment: Experiment, real: str | None = None) -> Job:
    """The job of the study `name`. `real`, where D* comes from, is for the study `target` alone.

    Raises ConfigError for an unknown study, and for `real` with another study.
    """
    if name == "target":
        return TargetJob(experiment, real)
    if name not in _STUDIES:
        raise ConfigError(f"no study '{name}'{nearest(name, [*_STUDIES, 'target'])}")
    if real is not None:
        raise ConfigError(f"--real belongs to the study target, but this is the study {name}")
    return SingleMitigationsJob(experiment, name)
