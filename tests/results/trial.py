"""Run directories with their stores, made by the project's own writers without Ray, and the page that one becomes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from seesaw.actors.engines import TTI_ENGINES
from seesaw.actors.pictogram.engine import PictogramDraw
from seesaw.actors.plugins import find_plugin
from seesaw.experiments.dataset.load import Dataset, load_dataset
from seesaw.experiments.images import images_of
from seesaw.experiments.lab import Answers, Observations
from seesaw.experiments.prompts import Prompt, prompts_of
from seesaw.experiments.questionnaire import observations_of
from seesaw.experiments.settings import make_settings
from seesaw.results.store.identity import digest
from seesaw.results.store.store import IMAGE_SHARD, Store, shard_folder
from seesaw.runner.config import ClusterConfig, Config, ModelConfig, VLMConfig
from seesaw.runner.display.events import Events, Failure
from seesaw.runner.experiment import Experiment, ResolvedModel
from seesaw.runner.jobs.mitigate import MitigateJob
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.plan import Batch, batches_of
from seesaw.runner.report import write_report
from seesaw.runner.rundir import RunDirectory

HOSTILE = "<script>alert('nurse & co')</script>"
Condition = Callable[[Prompt], bool]


def never(_: Prompt) -> bool:
    return False


def experiment_of(
    root: Path,
    worlds: Sequence[str],
    dataset: Dataset,
    images: int | dict[str, int],
    known: Sequence[str],
    keys: Mapping[str, Any] | None = None,
) -> Experiment:
    models = []
    for world in worlds:
        truth = world if world in known else None
        spec = ModelConfig(name=f"pictogram-{world}", engine="pictogram-draw", settings={"world": world}, truth=truth)
        identity = digest("model", {"engine": spec.engine, "settings": spec.settings})
        engine = find_plugin(spec.engine, TTI_ENGINES)
        models.append(ResolvedModel(spec, identity, shard_folder("images", spec.name, identity), engine))
    vlm = ResolvedModel(
        VLMConfig(name="true state", engine="none:None"),
        digest("model", {}),
        "answers/true-state",
        find_plugin("none:None", {}),
    )
    config = Config(**(keys or {}))
    return Experiment(
        name="trial",
        dataset=dataset,
        models=tuple(models),
        vlm=vlm,
        images=images_of(images),
        seed=3,
        settings=make_settings(dataset),
        store=str(root / "store"),
        run=root / "run",
        cluster=ClusterConfig(),
        config=config,
        priorities=config.priorities,
    )


@dataclass
class DrawnLab:
    """Cells as a run makes them: their batches in the store, their answers the very states that were drawn."""

    experiment: Experiment
    empty: Condition = never
    failed: Condition = never
    side: int = 64

    async def observe(self, model: str, prompts: Sequence[Prompt], images: int, start: int = 0) -> list[Observations]:
        served = next(each for each in self.experiment.models if each.name == model)
        return [self._observed(served, prompt, images, start) for prompt in prompts]

    def _observed(self, model: ResolvedModel[ModelConfig], prompt: Prompt, images: int, start: int) -> Observations:
        dataset = self.experiment.dataset
        if self.failed(prompt):
            return observations_of(dataset, prompt, [], images, [f"{prompt.text}: it broke"])
        engine, store = PictogramDraw(model.spec.settings), Store(self.experiment.store)
        batches = batches_of(self.experiment, model, prompt, images, start)
        for batch in batches:
            store.commit(batch.images, shard(batch, engine.generate(prompt.text, batch.seeds), self.side))
        answers = [read_truly(dataset, engine, batch, self.empty(prompt)) for batch in batches]
        return observations_of(dataset, prompt, answers, images, start=start)


def shard(batch: Batch, images: list[bytes], side: int) -> pa.Table:
    if side != 64:
        images = [enlarged(image, side) for image in images]
    n = len(images)
    columns = {
        "image_key": list(batch.image_keys),
        "image": [{"bytes": image, "path": f"{key}.png"} for key, image in zip(batch.image_keys, images, strict=True)],
        "model": [batch.model] * n,
        "prompt": [batch.prompt.text] * n,
        "adapter": [""] * n,
        "seed": list(batch.seeds),
        "withheld": [""] * n,
    }
    return pa.table(columns, schema=IMAGE_SHARD)


def enlarged(image: bytes, side: int) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(image)).resize((side, side)).save(file, "PNG")
    return file.getvalue()


def read_truly(dataset: Dataset, engine: PictogramDraw, batch: Batch, empty: bool) -> Answers:
    states = [None if empty else engine.world.sample(batch.prompt.text, seed) for seed in batch.seeds]
    n = len(states)
    return Answers(
        index=np.array(batch.index),
        seed=np.array(batch.seeds),
        image_key=batch.image_keys,
        person=np.array([state is not None for state in states]),
        person_probability=np.ones(n),
        value={a.name: np.array([a.attributes.index(s[a.name]) if s else -1 for s in states]) for a in dataset.axes},
        probability={a.name: np.ones(n) for a in dataset.axes},
        vlm="true state",
    )


def run_of(
    root: Path,
    worlds: Sequence[str] = ("birch",),
    subjects: Sequence[str] = ("nurse",),
    axes: Sequence[str] | None = ("gender", "clothing", "disability"),
    images: int | dict[str, int] = 10,
    empty: Condition = never,
    failed: Condition = never,
    side: int = 64,
    person: bool = True,
    known: Sequence[str] = (),
    sweep: bool = True,
    mitigate: Mapping[str, Any] | None = None,
) -> tuple[Path, str]:
    """A run directory and its store, made by the project's own writers: (run, store).

    `known` worlds are a truth; it is of a sweep, of a mitigation where there are keys of a config for one, or of both.
    """
    root.mkdir(exist_ok=True)
    dataset = replace(load_dataset("occupation").select(axes=axes), subjects=tuple(subjects))
    dataset = dataset if person else replace(dataset, person=None)
    experiment = experiment_of(root, worlds, dataset, images, known, mitigate)
    lab = DrawnLab(experiment, empty, failed, side)
    jobs = ([SweepJob(experiment)] if sweep else []) + ([] if mitigate is None else [MitigateJob(experiment)])
    for job in jobs:
        directory = RunDirectory(job)
        with directory.claimed():
            directory.write_config()
            events = Events(lambda event, counts: None)
            asyncio.run(job.observe(lab, events))
            job.write(events)
            broken = [
                Failure(f"{model.name} / {prompt.text}", "generate", "OOM", 4, f"{prompt.text}: it broke")
                for model in experiment.models
                for subject in subjects
                for prompt in prompts_of(dataset, subject)
                if failed(prompt)
            ]
            directory.write_failures(broken)
            times = {"began": "2030-01-02T03:04:05+00:00", "ended": "2030-01-02T04:00:00+00:00"}
            directory.write_run_json("done", **times, notes=events.counts.notes)
    return experiment.run, experiment.store


def page_of(run: Path, store: str) -> str:
    return write_report(run, store).read_text(encoding="utf-8")


def article_of(page: str, heading: str) -> str:
    """The article under `heading`, tags within it and what follows it left out."""
    for article in page.split("<article")[1:]:
        if unescape(article.split("<h3>")[1]).startswith(heading):
            return article.split("</article>")[0]
    raise AssertionError(f"no article about {heading}")
