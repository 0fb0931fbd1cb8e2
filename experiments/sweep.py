"""The sweep: observes every cell, which are models x subjects x (initial prompt and all counterfactuals)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.images import Images
from seesaw.experiments.lab import Lab, Observations, all_of, observe_each
from seesaw.experiments.prompts import sweep_prompts
from seesaw.results.tables.schemas import WITHHELD

__all__ = ["sweep", "withheld_images"]


async def sweep(lab: Lab, dataset: Dataset, models: Sequence[str], images: Images) -> dict[str, list[Observations]]:
    """The observations of every cell by model, in the order of the dataset's subjects and their prompts.

    Raises what the Lab raises, after all that was in flight has ended.
    """
    requests = [(prompt, images.of(prompt)) for prompt in sweep_prompts(dataset)]
    observed = await all_of(observe_each(lab, model, requests) for model in models)
    return dict(zip(models, observed, strict=True))


def withheld_images(observed: Mapping[str, Sequence[Observations]]) -> pd.DataFrame:
    """withheld.parquet: cells with images that VQA was not asked about, because they are blank or flagged as unsafe."""
    rows = []
    for model, cells in observed.items():
        for cell in cells:
            reasons = cell.answers.withheld if cell.answers else ()
            if any(reasons):
                prompt, flagged, blank = cell.prompt, reasons.count("flagged"), reasons.count("blank")
                names = model, prompt.subject, prompt.source_axis, prompt.source_value
                rows.append((*names, cell.asked, flagged, blank, flagged / cell.asked))
    return pd.DataFrame(rows, columns=WITHHELD.names)
