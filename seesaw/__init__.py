"""Seesaw audits text-to-image models for biases that interact, and mitigates them.

This is the public API; whatever is not listed here may change without notice. Every name is imported when it is first
used, so that `import seesaw` is quick and needs neither Ray nor torch. `help(seesaw.run_sweep)` has an example each.

======================  ==============================================================================================
`load_dataset`          subjects, axes, prompts and questions, from a name, a YAML file or a mapping
`prompts_of`            every prompt about a subject
`load_experiment`       a config, resolved and checked
`make_plan`             what a run of it would do
`run_sweep`             observe every cell of an experiment; returns the run
`run_mitigation`        run InterMit for its subjects; returns the run
`run_study`             run one of the paper's studies; returns the run
`read_run`              a run directory as typed tables and data frames
`Store`                 where images and answers are kept
`analyze`               distributions and IS matrices from a data frame of answers that anyone made
`WORLDS`, `ExactLab`    embedded models whose distributions are known exactly, and a Lab that answers from them
`biasconnect`           the biases and the IS matrix of one subject, over any Lab
`mitigate`              InterMit for one subject, over any Lab
`draw_matrix`           an IS matrix as a picture
`SeesawError`           the base of all errors that are raised on purpose
`TryLater`, `Withheld`  what an engine of yours says: the service asks for patience; an image is refused
======================  ==============================================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see; `_MODULES` is what happens
    from seesaw.actors.engines import Withheld
    from seesaw.actors.pictogram.world import WORLDS
    from seesaw.experiments.api import analyze, biasconnect, mitigate
    from seesaw.experiments.dataset.load import load_dataset
    from seesaw.experiments.exact import ExactLab
    from seesaw.experiments.prompts import prompts_of
    from seesaw.results.errors import SeesawError, TryLater
    from seesaw.results.report.picture import draw_matrix
    from seesaw.results.store.store import Store
    from seesaw.results.tables.run_reader import read_run
    from seesaw.runner.api import run_mitigation, run_study, run_sweep
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.plan import make_plan

__all__ = [
    "WORLDS",
    "ExactLab",
    "SeesawError",
    "Store",
    "TryLater",
    "Withheld",
    "analyze",
    "biasconnect",
    "draw_matrix",
    "load_dataset",
    "load_experiment",
    "make_plan",
    "mitigate",
    "prompts_of",
    "read_run",
    "run_mitigation",
    "run_study",
    "run_sweep",
]

#: The module of every public name.
_MODULES = {
    "WORLDS": "seesaw.actors.pictogram.world",
    "ExactLab": "seesaw.experiments.exact",
    "SeesawError": "seesaw.results.errors",
    "Store": "seesaw.results.store.store",
    "TryLater": "seesaw.results.errors",
    "Withheld": "seesaw.actors.engines",
    "analyze": "seesaw.experiments.api",
    "biasconnect": "seesaw.experiments.api",
    "draw_matrix": "seesaw.results.report.picture",
    "load_dataset": "seesaw.experiments.dataset.load",
    "load_experiment": "seesaw.runner.experiment",
    "make_plan": "seesaw.runner.plan",
    "mitigate": "seesaw.experiments.api",
    "prompts_of": "seesaw.experiments.prompts",
    "read_run": "seesaw.results.tables.run_reader",
    "run_mitigation": "seesaw.runner.api",
    "run_study": "seesaw.runner.api",
    "run_sweep": "seesaw.runner.api",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'seesaw' has no attribute '{name}'")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
