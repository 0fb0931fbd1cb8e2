"""The job of `seesaw mitigate`: InterMit for every case of a config by every strategy that it names, all at once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from seesaw.actors.plugins import Plugin, find_plugin
from seesaw.experiments.assignments import Assignment
from seesaw.experiments.intermit import Problem
from seesaw.experiments.lab import Lab
from seesaw.experiments.mitigations import Mitigation, matrix_rows, mitigate_all, mitigation_rows
from seesaw.experiments.mitigators import Mitigator
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.strategies import Strategy, strategies_of
from seesaw.experiments.trajectory import State
from seesaw.results.errors import ConfigError
from seesaw.results.secrets import first_line
from seesaw.results.store.store import Store
from seesaw.results.tables.mitigation_tables import comparison, sheets, table1
from seesaw.results.tables.read_mitigation import cases_of
from seesaw.results.tables.schemas import MITIGATION_MATRICES, mitigation_schema
from seesaw.results.tables.sheet import write_sheet
from seesaw.results.tables.write import table_of, write_both, write_table
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import Plan, whole

__all__ = ["MITIGATORS", "MitigateJob", "mitigator_identity", "mitigator_of"]

#: Mitigators by name; `module:Class` is one too, made with (settings, images).
MITIGATORS: Mapping[str, str] = {"pm": "seesaw.experiments.mitigators:PM"}


class MitigateJob:
    command = "mitigate"
    shown = True
    files = ("mitigation.parquet", "mitigation_matrices.*", "tables/*")

    def __init__(self, experiment: Experiment) -> None:
        """Raises ConfigError for whatever is wrong with the keys of mitigate."""
        config = experiment.config
        if config.max_steps is not None and config.max_steps < 1:
            raise ConfigError(
                f"max_steps is {config.max_steps}; it is at least 1, or null for as many as there are axes"
            )
        self.experiment = self.served = experiment
        self._settings = experiment.mitigation_settings
        self._strategy_code: dict[str, str] = {}  # of the user's strategies, by their names
        self._strategies = strategies_of(config.strategy, experiment.seed, self._users_strategy)
        self._assignments = experiment.assignments
        #: one mitigator for all cases with the same targets, so that they share their prompt sets
        self._mitigators = {_key(each): mitigator_of(experiment, self._settings_of(each)) for each in self._assignments}
        self._courses: list[tuple[Mitigation, State]] = []

    def identity(self) -> Mapping[str, Any]:
        config = self.experiment.config
        cases = {
            f"{each.subject} on {each.model}, {strategy.name}, {each.name}": _digest(
                each, self._strategy_code.get(strategy.name)
            )
            for each in self._assignments
            for strategy in self._strategies
        }
        how = {"intervention": self._settings.intervention, **mitigator_identity(self.experiment)}
        return {"mitigation": {**how, "max_steps": config.max_steps, "cases": cases}}

    def is_cached(self, store: Store) -> bool:
        return True  # what it needs beyond the sweep's cells, only its decisions say

    def describe(self, plan: Plan) -> str:
        models, subjects = ({getattr(each, what) for each in self._assignments} for what in ("model", "subject"))
        number = len(self._assignments) * len(self._strategies)
        drawn = self.experiment.config.priorities in (None, "draw")
        how = ", priorities drawn as the paper did" if drawn else ""
        return (
            f"{number:,} mitigations of {len(subjects)} subjects on {len(models)} models"
            f" by {', '.join(strategy.name for strategy in self._strategies)}{how}"
        )

    def mitigations(self, lab: Lab) -> list[Mitigation]:
        """Every assignment by every strategy, over `lab`."""
        observers = {key: PromptSetObserver(lab, mitigator) for key, mitigator in self._mitigators.items()}
        max_steps = self.experiment.config.max_steps
        return [
            Mitigation(
                each.name,
                Problem(each.model, each.subject, each.priority, each.epsilon, max_steps),
                strategy,
                observers[_key(each)],
            )
            for each in self._assignments
            for strategy in self._strategies
        ]

    async def observe(self, lab: Lab, events: Events) -> None:
        mitigations = self.mitigations(lab)
        observers = {id(each.observer): each.observer for each in mitigations}.values()
        events.counts.mitigations = len(mitigations)

        def on_step(each: Mitigation, state: State) -> None:
            asked = sum((observer.asked for observer in observers), Counter[tuple[int, int]]())
            images = sum(prompts * whole(*key) for key, prompts in asked.items())
            last = state.steps[-1] if state.steps else None
            events.step(
                _label(each),
                images,
                axis=last.axis if last else "",
                tau=[step.tau for step in state.steps],
                mitigated=state.mitigated,
                outcome=state.outcome,
                reason=state.reason,
            )

        states = await mitigate_all(mitigations, on_step)
        self._courses = list(zip(mitigations, states, strict=True))

    def write(self, events: Events) -> bool:
        path, settings = self.experiment.run, self._settings
        schema = mitigation_schema(axis.name for axis in settings.dataset.axes)
        table = table_of(mitigation_rows(self._courses, whole), schema, settings.about())
        write_table(path / "mitigation.parquet", table)
        matrices = table_of(matrix_rows(self._courses), MITIGATION_MATRICES, settings.about())
        write_both(path, "mitigation_matrices", matrices)
        (path / "tables").mkdir(exist_ok=True)
        cases = cases_of(table)
        for sheet in sheets(cases):
            write_sheet(sheet, path / "tables")
        told = comparison(cases) if len(self._strategies) > 1 else table1(cases)
        for row in told.shown.to_dict("records"):
            events.note("; ".join(f"{heading}: {value}" for heading, value in row.items() if value))
        made, asked = events.counts.images_made, events.counts.images_asked
        reused = max(0.0, 1 - made / max(1, asked))
        events.note(
            f"{made:,} images made; mitigations looked at {asked:,}, shared ones counted for each: {reused:.0%} reused"
        )
        undefined = [(each, state) for each, state in self._courses if state.outcome == "undefined"]
        for each, state in undefined[:_SHOWN]:
            events.note(f"{_label(each)}: undefined: {state.reason}")
        if len(undefined) > _SHOWN:
            events.note(f"and {len(undefined) - _SHOWN:,} more are undefined; mitigation.parquet says why")
        return not undefined

    def _users_strategy(self, name: str) -> Strategy:
        plugin, seed = find_plugin(name, {}, "strategy", self.experiment.search), self.experiment.seed
        try:
            strategy = plugin.load()(seed)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"strategy '{name}' cannot be made: {type(error).__name__}: {first_line(error)}"
            ) from error
        if not isinstance(strategy, Strategy) or not isinstance(strategy.name, str) or not strategy.name.isprintable():
            raise ConfigError(
                f"strategy '{name}': its class has no 'name', 'looks', 'stops', 'candidates' and 'choose' as "
                "seesaw.experiments.strategies.Strategy has them"
            )
        self._strategy_code[strategy.name] = plugin.identity()["code"]
        return strategy

    def _settings_of(self, each: Assignment) -> AnalysisSettings:
        """The experiment's settings, with the targets of the case's own in the place of its."""
        if not each.targets:
            return self._settings
        both = {**self._settings.targets, **each.targets}
        return make_settings(self._settings.dataset, self._settings.metric, both, self._settings.intervention)


_SHOWN = 20  # undefined mitigations that are worth a line each


def _label(each: Mitigation) -> str:
    model, subject, case, strategy = each.key
    return f"{subject} on {model}, {strategy}, {case}"


def mitigator_of(experiment: Experiment, settings: AnalysisSettings) -> Mitigator:
    """The mitigator that the config names. Raises ConfigError for what is none."""
    name = experiment.config.mitigator
    make = _mitigator(experiment).load()
    try:
        found: Mitigator = make(settings, experiment.images)
    except Exception as error:
        if name in MITIGATORS:
            raise
        raise ConfigError(f"mitigator '{name}' cannot be made: {type(error).__name__}: {first_line(error)}") from error
    return found


def mitigator_identity(experiment: Experiment) -> dict[str, str]:
    """The mitigator's name and, where it is the user's own, its code."""
    return {"mitigator": experiment.config.mitigator, **_mitigator(experiment).identity()}


def _mitigator(experiment: Experiment) -> Plugin:
    return find_plugin(experiment.config.mitigator, MITIGATORS, "mitigator", experiment.search)


def _key(each: Assignment) -> str:
    return json.dumps(dict(each.targets), sort_keys=True, default=list)


def _digest(each: Assignment, code: str | None) -> str:
    """What a case depends on; `code` is that of a strategy of the user's."""
    text = json.dumps([dict(each.priority), each.epsilon, _key(each), *([code] if code else [])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
