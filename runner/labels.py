"""`seesaw labels`: which images of a run people should label, and taking their labels in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from seesaw.experiments.answers import coded_answers
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.labelling import check_labels, choices_of, images_to_label
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.experiments.tally import tally_answers
from seesaw.results.atomic_write import atomic_write
from seesaw.results.errors import ConfigError, LabelsError, RunDirectoryError, StoreError
from seesaw.results.images import open_image
from seesaw.results.store.identity import BATCH, batch_key, image_seed
from seesaw.results.store.store import Store
from seesaw.results.tables.labels import add_labels, not_imported, read_label_csv, write_label_csv
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.readings import read_readings
from seesaw.results.tables.run_reader import Run, read_run
from seesaw.runner.jobs.misreading import write_corrections
from seesaw.runner.run_places import store_of
from seesaw.runner.rundir import locked

__all__ = ["import_labels", "plan_labels"]


def plan_labels(run: Path, n: int, axes: Sequence[str] = (), out: Path | None = None, store: str | None = None) -> Path:
    """Write a CSV of `n` images to label, and the images beside it; returns its path.

    It has a row for each image and axis (`axes`, by default all), in a new folder `labels/` of the run or in `out`.
    `store` says where the images are, if not where run.json says.

    Raises:
        LabelsError: the CSV is there and has labels that were not imported.
        RunDirectoryError, ConfigError: no sweep is there, an axis is unknown, or the store is a URI that was not given.
        StoreError: an image is missing in the store or unreadable.
    """
    record = read_run(run)
    dataset = _dataset(record)
    chosen = dataset.select(axes=axes or None).axes
    folder = out or run / "labels"
    path = folder / "labels.csv"
    if not_imported(run, path):
        raise LabelsError(
            f"{path} has labels that were not imported; `seesaw labels import {run} {path}` takes them in, and --out "
            "DIR plans elsewhere"
        )
    readings = read_readings(run / "answers.parquet", [axis.name for axis in chosen])
    images = readings.drop_duplicates("image_key")
    keys = images_to_label(images, n)
    exported = _export(record, images.set_index("image_key").loc[keys].reset_index(), folder, store)
    asked = set(zip(readings["image_key"], readings["axis"], strict=True))
    write_label_csv(
        path,
        [
            (number, key, str(exported[key]), axis.name, " | ".join(choices_of(axis)))
            for number, key in enumerate(keys, 1)
            for axis in chosen
            if (key, axis.name) in asked
        ],
    )
    return path


def import_labels(run: Path, path: Path) -> tuple[int, int, list[str]]:
    """Take the labels of a CSV into labels.parquet of a run, and write all tables that follow from them.

    Returns how many labels the CSV has, how many of them are new, and notes. Nothing is kept unless all of the CSV is
    right. Raises LabelsError, which names the row, and RunDirectoryError.
    """
    record = read_run(run)
    settings = _settings(record)
    labels = read_label_csv(path)
    if labels.empty:
        raise LabelsError(f"{path}: no row has a label; fill in the column label with one of the row's choices")
    with locked(run):
        keys = set(labels["image_key"])
        read = read_readings(run / "answers.parquet", image_keys=keys)
        check_labels(labels, read, settings.dataset, str(path))
        cells = read.drop_duplicates("image_key")[
            ["image_key", "model", "subject", "source_axis", "source_value", "image"]
        ]
        new = add_labels(run, labels.merge(cells, how="left", on="image_key"))
        coded = coded_answers(read_answers(run / "answers.parquet"), settings.dataset, str(run / "answers.parquet"))
        notes = write_corrections(run, tally_answers(coded, settings.dataset), settings)
    return len(labels), new, notes


def _dataset(record: Run) -> Dataset:
    if record.sweep is None:
        raise RunDirectoryError(f"'{record.path}' holds no sweep, and labels are about its images; sweep first")
    return load_dataset(record.config["dataset"])


def _settings(record: Run) -> AnalysisSettings:
    """The settings that the tables of a run were made with, as they record them."""
    dataset = _dataset(record)
    assert record.sweep is not None
    about: Mapping[str, Any] = record.sweep.about
    return make_settings(dataset, about["metric"], about["targets"], str(about["intervention"]))


def _export(record: Run, images: pd.DataFrame, folder: Path, given: str | None) -> dict[str, Path]:
    """Write `images` as files `images/<key>.<format>` into `folder`, as the store has them; their paths by key."""
    place = store_of(record.path) if given is None else given
    if given is None and "://" in place:  # its maker would choose the server that the user's credentials go to
        raise ConfigError(f"the store of '{record.path}' is a URI; to open it, give it: --store URI")
    store, seed = Store(place), record.run_json["fingerprint"]["seed"]
    (folder / "images").mkdir(parents=True, exist_ok=True)
    paths = {}
    for (model, prompt), of_prompt in images.groupby(["model", "prompt"], sort=False):
        identity = record.models[str(model)]
        shards = store.folder("images", str(model), identity)
        for start, of_batch in of_prompt.groupby(of_prompt["image"] // BATCH * BATCH):
            seeds = [image_seed(seed, int(start) + i) for i in range(BATCH)]
            shard = f"{shards}/{batch_key(identity, str(prompt), '', seeds)}.parquet"
            content = _contents(store, shard)
            for key in of_batch["image_key"]:
                if key not in content:
                    raise StoreError(f"'{shard}' of the store '{place}' lacks image {key}; run seesaw verify")
                paths[key] = _write_image(folder / "images", key, content[key])
    return paths


def _contents(store: Store, shard: str) -> dict[str, bytes]:
    try:
        table = store.read(shard).select(["image_key", "image"])
    except FileNotFoundError:
        hint = "--store STORE says where the images are"
        raise StoreError(f"the store '{store.root}' has no '{shard}'; {hint}") from None
    return {row["image_key"]: row["image"]["bytes"] for row in table.to_pylist()}


def _write_image(folder: Path, key: str, content: bytes) -> Path:
    with open_image(content) as image:
        suffix = {"JPEG": "jpg"}.get(image.format or "", (image.format or "").lower())
    path = folder / f"{key}.{suffix}"
    with atomic_write(path) as file:
        file.write(content)
    return path
