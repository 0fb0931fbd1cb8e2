"""The tables about what VLMs misread in a run: accuracy, confusion, and figures corrected for it. Labels make them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from seesaw.experiments.correction import correct
from seesaw.experiments.labelled import measured_accuracy
from seesaw.experiments.labelling import agreed_labels, labelled_readings
from seesaw.experiments.settings import AnalysisSettings
from seesaw.experiments.tally import Tally
from seesaw.results.tables.labels import read_labels
from seesaw.results.tables.misreading import LABEL_TABLES
from seesaw.results.tables.readings import read_readings
from seesaw.results.tables.schemas import ACCURACY, CONFUSION
from seesaw.results.tables.write import table_of, write_both

__all__ = ["write_corrections"]

ANSWERS_OF = ("answers.parquet", "second_answers.parquet")  #: of the VLM that gives the figures, and of the second


def write_corrections(run: Path, tally: Tally, settings: AnalysisSettings) -> list[str]:
    """Write what follows from the labels of `run` into its tables/; returns what a user should know.

    `tally` has the counts of the run's answers. Nothing is written if no image is labelled. Raises RunDirectoryError if
    a table of the run cannot be read.
    """
    labels = read_labels(run)
    if labels.empty:
        return []
    images = set(labels["image_key"])
    seen = {
        name: labelled_readings(labels, read_readings(run / name, image_keys=images))
        for name in ANSWERS_OF
        if (run / name).is_file()
    }
    correction = correct(tally, seen[ANSWERS_OF[0]], settings)
    notes = [*_undecided(labels), *correction.notes]
    tables = [
        measured_accuracy(read, settings.dataset.axes, str(read["vlm"].iloc[0])) for read in seen.values() if len(read)
    ]
    accuracy = pd.concat([ACCURACY.empty_table().to_pandas(), *(of_vlm for of_vlm, _ in tables)])
    confusion = pd.concat([CONFUSION.empty_table().to_pandas(), *(of_vlm for _, of_vlm in tables)])
    about = settings.about()
    folder = run / "tables"
    folder.mkdir(exist_ok=True)
    for name, frame, known in (
        ("accuracy", accuracy, None),
        ("confusion", confusion, None),
        ("corrected", correction.matrices, about),
        ("corrected_bias", correction.bias, about),
        ("misreading", correction.misreading, {"notes": notes}),
    ):
        write_both(folder, name, table_of(frame, LABEL_TABLES[name], known))
    return notes


def _undecided(labels: pd.DataFrame) -> list[str]:
    """A note on images that were labelled and yet have no label of an axis, if there are any."""
    asked = len(labels.drop_duplicates(["image_key", "axis"]))
    undecided = asked - len(agreed_labels(labels))
    if not undecided:
        return []
    return [f"of {asked:,} labelled images and axes, {undecided:,} count nowhere: unclear, or labellers are divided"]
