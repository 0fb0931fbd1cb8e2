"""What is shipped: models, VLMs and datasets, with their licences, their memory, and whether their weights are here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.table import Table

from seesaw.actors.engines import TTI_ENGINES, VQA_ENGINES
from seesaw.actors.plugins import find_plugin
from seesaw.experiments.dataset.load import DATASETS, load_dataset
from seesaw.results.errors import SeesawError
from seesaw.results.secrets import first_line
from seesaw.runner.cluster.node_probe import engine_lacks
from seesaw.runner.config import CONFIGS, ModelConfig, VLMConfig, load_named
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape
from seesaw.runner.plan import licence_of

__all__ = ["show_datasets", "show_models"]

_COLUMNS = ("name", "engine", "GPUs", "memory GB", "licence", "weights")


def show_models(kind: str, as_json: bool) -> None:
    """Print the shipped models (`kind` is `models`) or VLMs (`vlms`)."""
    specs = list(_shipped(kind))
    with ThreadPoolExecutor() as pool:
        lacking = list(pool.map(_lacks, specs))
    rows = [_row(spec, lacks) for spec, lacks in zip(specs, lacking, strict=True)]
    if as_json:
        for row in rows:
            say(json.dumps({"event": kind.removesuffix("s"), **row}))
        return
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("GPUs", "memory GB") else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row["name"]),
            escape(row["engine"]),
            f"{row['gpus']:g}",
            f"{row['memory_gb']:g}",
            escape(row["licence"]),
            "here" if not row["lacks"] else escape(row["lacks"])[:60],
        )
    Console(width=160).print(table)


def show_datasets(as_json: bool) -> None:
    """Print the shipped datasets."""
    for path in sorted(DATASETS.glob("*.yaml")):
        dataset = load_dataset(path.stem)
        axes = {axis.name: list(axis.attributes) for axis in dataset.axes}
        if as_json:
            subjects = list(dataset.subjects)
            say(json.dumps({"event": "dataset", "name": dataset.name, "subjects": subjects, "axes": axes}))
            continue
        say(f"{dataset.name}: {len(dataset.subjects)} subjects ({', '.join(dataset.subjects[:4])}, ...)")
        for name, attributes in axes.items():
            say(f"  {name}: {', '.join(attributes)}")


def _shipped(kind: str) -> Iterator[ModelConfig | VLMConfig]:
    for path in sorted((CONFIGS / kind).glob("*.yaml")):
        if kind == "models":
            yield load_named(ModelConfig, kind, path.stem, [])
        else:
            yield load_named(VLMConfig, kind, path.stem, [])


def _row(spec: ModelConfig | VLMConfig, lacks: str) -> Mapping[str, Any]:
    return {
        "name": spec.name,
        "engine": spec.engine,
        "gpus": spec.gpus,
        "memory_gb": spec.memory_gb,
        "licence": licence_of(spec),
        "lacks": lacks,
    }


def _lacks(spec: ModelConfig | VLMConfig) -> str:
    """The first line of what keeps a model from loading here; empty if nothing does."""
    engine = find_plugin(spec.engine, TTI_ENGINES if isinstance(spec, ModelConfig) else VQA_ENGINES)
    try:
        return engine_lacks((spec.name, engine, spec.settings))
    except SeesawError as error:
        return first_line(error)
