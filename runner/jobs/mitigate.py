"""The job of `seesaw mitigate`: InterMit for every case of a config by every strategy that it names, all at once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from seesaw.actors.plugins import Plugin, find_plugin
from seesaw.experiments.assignments import Assignment
from seesaw.experiments.images import Images
from seesaw.experiments.intermit import Problem
from seesaw.experiments.lab import Lab
from seesaw.experiments.mitigations import Mitigation, matrix_rows, mitigate_all, mitigation_rows
from seesaw.experiments.mitigators import Mitigator
from seesaw.experiments.priorities import check_margin, check_max_steps
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.strategies import Strategy, strategies_of
from seesaw.experiments.trajectory import State
from seesaw.results.errors import ConfigError
from seesaw.results.store.store import Store
from seesaw.results.tables.mitigation_tables import comparison, sheets, table1
from seesaw.results.tables.read_mitigation import cases_of
from seesaw.results.tables.schemas import MITIGATION_MATRICES, mitigation_schema
from seesaw.results.tables.sheet import write_sheet
from seesaw.results.tables.write import table_of, write_both, write_table
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import Plan, in_whole_batches

__all__ = ["MITIGATORS", "MitigateJob", "mitigator_identity", "mitigator_of"]

#: Mitigators by name. `module:Class` names a user's own, which is made with (settings, images).
MITIGATORS: Mapping[str, str] = {"pm": "seesaw.experiments.mitigators:PM"}


class MitigateJob:
    """Mitigates every assignment by every strategy, and writes their trajectories and the paper's tables."""

    command = "mitigate"
    shown = True
    files = ("mitigation.parquet", "mitigation_matrices.*", "tables/*")

    def __init__(self, experiment: Experiment) -> None:
        """Raises ConfigError if a config key of `mitigate` has an invalid value."""
        config = experiment.config
        self._max_steps, self._margin = check_max_steps(config.max_steps), check_margin(config.margin)
        self.experiment = self.served = experiment
        self._settings = experiment.mitigation_settings
        self._strategy_code: dict[str, str] = {}  # the code hash of the user's own strategies, by their names
        self._strategies = strategies_of(config.strategy, experiment.seed, self._users_strategy)
        self._assignments = experiment.assignments
        #: one mitigator for all cases with the same targets, so that they share their prompt sets
        self._mitigators = {
            _targets_key(assignment): mitigator_of(experiment, self._settings_of(assignment))
            for assignment in self._assignments
        }
        self._trajectories: list[tuple[Mitigation, State]] = []

    @property
    def stated(self) -> int:
        """Of prompt modification; the prompts of a user's own mitigator are known once it asks for them."""
        if self.experiment.config.mitigator != "pm":
            return 1
        most = max((self._problem(assignment).most for assignment in self._assignments), default=1)
        return int(min(most, len(self.experiment.dataset.axes)))

    def identity(self) -> Mapping[str, Any]:
        config = self.experiment.config
        cases = {
            f"{assignment.subject} on {assignment.model}, {strategy.name}, {assignment.name}": _digest(
                assignment, self._strategy_code.get(strategy.name)
            )
            for assignment in self._assignments
            for strategy in self._strategies
        }
        method: dict[str, Any] = {"intervention": self._settings.intervention, **mitigator_identity(self.experiment)}
        added = {"fresh": config.fresh, "margin": self._margin}  # 0.1.0 had neither
        method |= {key: value for key, value in added.items() if value}
        return {"mitigation": {**method, "max_steps": self._max_steps, "cases": cases}}

    def is_cached(self, store: Store) -> bool:
        return True  # only the decisions on the way tell what is needed beyond the sweep's cells

    def describe(self, plan: Plan) -> str:
        models = {assignment.model for assignment in self._assignments}
        subjects = {assignment.subject for assignment in self._assignments}
        number = len(self._assignments) * len(self._strategies)
        drawn = self.experiment.config.priorities in (None, "draw")
        return (
            f"{number:,} mitigations of {len(subjects)} subjects on {len(models)} models"
            f" by {', '.join(strategy.name for strategy in self._strategies)}"
            + (", priorities drawn as the paper did" if drawn else "")
        )

    def _problem(self, assignment: Assignment) -> Problem:
        return Problem(
            assignment.model,
            assignment.subject,
            assignment.priority,
            assignment.epsilon,
            self._max_steps,
            self.experiment.config.fresh,
            self._margin,
        )

    def mitigations(self, lab: Lab) -> list[Mitigation]:
        """Every assignment by every strategy, over `lab`."""
        observers = {key: PromptSetObserver(lab, mitigator) for key, mitigator in self._mitigators.items()}
        return [
            Mitigation(
                assignment.name,
                self._problem(assignment),
                strategy,
                observers[_targets_key(assignment)],
            )
            for assignment in self._assignments
            for strategy in self._strategies
        ]

    async def observe(self, lab: Lab, events: Events) -> None:
        mitigations = self.mitigations(lab)
        observers = {id(mitigation.observer): mitigation.observer for mitigation in mitigations}.values()
        events.counts.mitigations = len(mitigations)

        def on_step(mitigation: Mitigation, state: State) -> None:
            asked = sum((observer.asked for observer in observers), Counter[tuple[int, int]]())
            images = sum(prompts * in_whole_batches(*key) for key, prompts in asked.items())
            last = state.steps[-1] if state.steps else None
            events.step(
                _label(mitigation),
                images,
                axis=last.axis if last else "",
                tau=[step.tau for step in state.steps],
                mitigated=state.mitigated,
                outcome=state.outcome,
                reason=state.reason,
            )

        states = await mitigate_all(mitigations, on_step)
        self._trajectories = list(zip(mitigations, states, strict=True))

    def write(self, events: Events) -> bool:
        path, settings = self.experiment.run, self._settings
        schema = mitigation_schema(axis.name for axis in settings.dataset.axes)
        table = table_of(mitigation_rows(self._trajectories, in_whole_batches), schema, settings.about())
        write_table(path / "mitigation.parquet", table)
        matrices = table_of(matrix_rows(self._trajectories), MITIGATION_MATRICES, settings.about())
        write_both(path, "mitigation_matrices", matrices)
        (path / "tables").mkdir(exist_ok=True)
        cases = cases_of(table)
        for sheet in sheets(cases):
            write_sheet(sheet, path / "tables")
        sheet = comparison(cases) if len(self._strategies) > 1 else table1(cases)
        for row in sheet.shown.to_dict("records"):
            events.note("; ".join(f"{heading}: {value}" for heading, value in row.items() if value))
        images_made, images_asked = events.counts.images_made, events.counts.images_asked
        reused = max(0.0, 1 - images_made / max(1, images_asked))
        events.note(
            f"{images_made:,} images made; mitigations looked at {images_asked:,}, "
            f"with shared images counted once for each mitigation: {reused:.0%} reused"
        )
        undefined = [(mitigation, state) for mitigation, state in self._trajectories if state.outcome == "undefined"]
        for mitigation, state in undefined[:_SHOWN]:
            events.note(f"{_label(mitigation)}: undefined: {state.reason}")
        if len(undefined) > _SHOWN:
            events.note(f"and {len(undefined) - _SHOWN:,} more are undefined; mitigation.parquet says why")
        return not undefined

    def _users_strategy(self, name: str) -> Strategy:
        """The strategy of a user's class `module:Class`, made with the seed. Raises ConfigError if it is not one."""
        plugin = find_plugin(name, {}, "strategy", self.experiment.search)
        strategy = plugin.make(self.experiment.seed)
        if not isinstance(strategy, Strategy) or not isinstance(strategy.name, str) or not strategy.name.isprintable():
            raise ConfigError(
                f"strategy '{name}': its class must have 'name', 'looks', 'stops', 'candidates' and 'choose', as in "
                "seesaw.experiments.strategies.Strategy"
            )
        self._strategy_code[strategy.name] = plugin.identity()["code"]
        return strategy

    def _settings_of(self, assignment: Assignment) -> AnalysisSettings:
        """The experiment's settings, with the assignment's own targets in the place of the experiment's."""
        if not assignment.targets:
            return self._settings
        targets = {**self._settings.targets, **assignment.targets}
        return make_settings(self._settings.dataset, self._settings.metric, targets, self._settings.intervention)


_SHOWN = 20  # this many undefined mitigations get a line each; further ones are only counted


def _label(mitigation: Mitigation) -> str:
    model, subject, case, strategy = mitigation.key
    return f"{subject} on {model}, {strategy}, {case}"


def mitigator_of(experiment: Experiment, settings: AnalysisSettings) -> Mitigator:
    """The mitigator that the config names. Raises ConfigError if there is none, or if a user's own cannot be made."""
    mitigator: Mitigator = _mitigator_plugin(experiment).make(settings, experiment.images)
    if not isinstance(getattr(mitigator, "images", None), Images):
        raise ConfigError(
            f"mitigator '{experiment.config.mitigator}': its `images` must be those that it was made with: "
            "images.initial of a model, images.counterfactual of each of its counterfactuals"
        )
    return mitigator


def mitigator_identity(experiment: Experiment) -> dict[str, str]:
    """The mitigator's name and, if it is the user's own, the hash of its code."""
    return {"mitigator": experiment.config.mitigator, **_mitigator_plugin(experiment).identity()}


def _mitigator_plugin(experiment: Experiment) -> Plugin:
    return find_plugin(experiment.config.mitigator, MITIGATORS, "mitigator", experiment.search)


def _targets_key(assignment: Assignment) -> str:
    """Equal for assignments with the same targets."""
    return json.dumps(dict(assignment.targets), sort_keys=True, default=list)


def _digest(assignment: Assignment, code: str | None) -> str:
    """A hash of everything that a case depends on; `code` is the code hash of a user's own strategy."""
    parts = [dict(assignment.priority), assignment.epsilon, _targets_key(assignment), *([code] if code else [])]
    text = json.dumps(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
