"""The job of `seesaw sweep`: every cell of an experiment, reduced to answers, distributions and IS matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesaw.experiments.agreement import agreement_of_two
from seesaw.experiments.analysis import TABLES, Analysis
from seesaw.experiments.answers import answer_rows
from seesaw.experiments.lab import Lab, Observations
from seesaw.experiments.sweep import sweep, withheld_images
from seesaw.experiments.tally import Tally, tally_observations
from seesaw.results.store.store import Store
from seesaw.results.tables.misreading import TWO_VLM_TABLES
from seesaw.results.tables.schemas import ANSWERS, WITHHELD
from seesaw.results.tables.write import table_of, write_both, write_rows
from seesaw.runner.display.events import Events
from seesaw.runner.experiment import Experiment
from seesaw.runner.jobs.misreading import write_corrections
from seesaw.runner.jobs.truth import write_truth
from seesaw.runner.plan import Plan, all_answered

__all__ = ["SweepJob"]

SHOWN = 20  #: this many warnings about the tables get a line each; further ones are only counted
#: what a second VLM makes
SECOND_FILES = ("second_answers.parquet", "tables/agreement.*", "tables/hui_walter.*", "tables/disagreements.*")


class SweepJob:
    """Observes every cell, and writes the answers and the tables that follow from them."""

    command = "sweep"
    shown = True
    stated = 1
    files = (
        *("answers.parquet", "withheld.*", "truth.*"),
        *(f"{name}.*" for name in TABLES),
        *SECOND_FILES,
    )

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = self.served = experiment
        self.second = experiment.second
        self._observed: dict[str, list[Observations]] = {}
        self._observed_again: dict[str, list[Observations]] = {}

    def identity(self) -> Mapping[str, Any]:
        return {"intervention": self.experiment.settings.intervention}

    def is_cached(self, store: Store) -> bool:
        readings = [each for each in (self.experiment, self.second) if each is not None]
        return all(all_answered(each, store) for each in readings)

    def describe(self, plan: Plan) -> str:
        return (
            f"{plan.total('images'):,} images in {plan.total('cells'):,} cells; "
            f"{plan.total('answers_held'):,} of {plan.total('batches'):,} batches are in the store"
        )

    async def observe(self, lab: Lab, events: Events) -> None:
        experiment = self.experiment
        models = [model.name for model in experiment.models]
        self._observed = await sweep(lab, experiment.dataset, models, experiment.images)

    async def observe_second(self, lab: Lab, events: Events) -> None:
        experiment = self.experiment
        models = [model.name for model in experiment.models]
        self._observed_again = await sweep(lab, experiment.dataset, models, experiment.images)

    def tally(self) -> Tally:
        """The counts of everything that was observed."""
        return tally_observations(self._observed, self.experiment.dataset)

    def _write_second(self, observed: Mapping[str, list[Observations]]) -> None:
        """Write what the second VLM read, and how it agrees; remove what an earlier one left."""
        path, again, self._observed_again = self.experiment.run, self._observed_again, {}
        if self.second is None:
            for left in (found for pattern in SECOND_FILES for found in path.glob(pattern)):
                left.unlink()
            return
        dataset, vlms = self.experiment.dataset, (self.experiment.vlm.name, self.second.vlm.name)
        tables = (answer_rows(model, dataset, [cell]) for model, cells in again.items() for cell in cells)
        write_rows(path / "second_answers.parquet", ANSWERS, tables)
        found = agreement_of_two(observed, again, dataset, vlms)
        folder = path / "tables"
        folder.mkdir(exist_ok=True)
        for name, frame in vars(found).items():
            write_both(folder, name, table_of(frame, TWO_VLM_TABLES[name]))

    def write(self, events: Events) -> bool:
        experiment, path = self.experiment, self.experiment.run
        observed, self._observed = self._observed, {}
        tables = (answer_rows(model, experiment.dataset, [cell]) for model, cells in observed.items() for cell in cells)
        rows = write_rows(path / "answers.parquet", ANSWERS, tables)
        self._write_second(observed)
        write_both(path, "withheld", table_of(withheld_images(observed), WITHHELD))
        tally = tally_observations(observed, experiment.dataset)
        ambiguous = sum(sum(cell.answers.ambiguous) for cells in observed.values() for cell in cells if cell.answers)
        del observed  # it may be about millions of images, and the analysis needs the memory
        analysis = Analysis(tally, experiment.settings, rows)
        analysis.write(path)
        warnings = analysis.summary.warnings()
        warnings += write_corrections(path, tally, experiment.settings)
        write_truth(experiment)
        if ambiguous:
            warnings.append(
                f"{ambiguous:,} images have several attributes of a composite axis; only the likeliest counts"
            )
        for line in warnings[:SHOWN]:
            events.note(line)
        if len(warnings) > SHOWN:
            more = len(warnings) - SHOWN
            events.note(f"and {more:,} more warnings; undefined entries are NaN in matrices.parquet")
        return True
