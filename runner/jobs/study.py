"""The jobs of `seesaw study validation` and `seesaw study negatives`: every axis mitigated by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from seesaw.experiments.lab import Lab
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.studies import negatives, single_mitigations, validation
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
        self._effects = pd.DataFrame()
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
            ("effects", table_of(effects, EFFECTS, about)),
            (self._name, table_of(results, schema, about)),
        ):
            write_both(path, name, table)
        for line in describe(results):
            events.note(line)
        return not effects[["before", "after"]].isna().any(axis=None)


def _describe_validation(results: pd.DataFrame) -> list[str]:
    lines = []
    for model in results["model"].unique():
        rows = results[results["model"] == model]
        all_pairs, others = (
            f"{rows[name].mean():.3f} \N{PLUS-MINUS SIGN} {rows[name].sem():.3f}" for name in _CORRELATIONS
        )
        subjects = rows["correlation"].count()
        lines.append(
            f"{model}: IS before and after mitigation correlate at {all_pairs} in the mean of {subjects} subjects, "
            f"{others} without the effects of axes on themselves; the paper: 0.95 with PM, 0.65 with ITI-GEN"
        )
    return lines


def _describe_negatives(results: pd.DataFrame) -> list[str]:
    return [
        f"{row['model']}: of {row['pairs']:,} effects on another axis, {row['share']:.1%} made it worse, "
        f"{row['sure']:.1%} by more than sampling explains; the paper: 29.4 % with ITI-GEN"
        for row in results.to_dict("records")
    ]


_CORRELATIONS = ("correlation", "others")
#: For each study: the function that evaluates the effects, the columns of its results, and the lines about them.
_STUDIES: Mapping[
    str, tuple[Callable[[pd.DataFrame], pd.DataFrame], pa.Schema, Callable[[pd.DataFrame], list[str]]]
] = {
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
