"""What a run consists of: cells cut into batches by rule, and what doing them will take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from experiments.prompts import Prompt, prompts_of
from results.identity import BATCH, batch_key, batch_size, image_key, image_seed
from results.store import Store
from runner.config import ModelConfig, VLMConfig
from runner.experiment import Experiment, Served

__all__ = ["Batch", "ModelPlan", "Plan", "batches_of", "make_plan", "whole"]


@dataclass(frozen=True)
class Batch:
    """A fixed run of seeds of one cell: the unit of work, of commit and of retry."""

    model: str
    identity: str  #: of the model
    prompt: Prompt
    index: tuple[int, ...]
    seeds: tuple[int, ...]
    images: str  #: name of its image shard
    answers: str  #: name of its answers shard

    @cached_property
    def image_keys(self) -> tuple[str, ...]:
        return tuple(image_key(self.identity, self.prompt.text, self.prompt.adapter, seed) for seed in self.seeds)

    @property
    def label(self) -> str:
        where = f"{self.prompt.source_axis}={self.prompt.source_value}" if self.prompt.source_axis else "initial prompt"
        return f"{self.model} / {self.prompt.subject} / {where} / images {self.index[0]}-{self.index[-1]}"


def whole(stated: int, images: int) -> int:
    """Images in the whole batches that hold `images` of a prompt that states so many axes."""
    size = batch_size(stated)
    return size * math.ceil(images / size)


def batches_of(experiment: Experiment, model: Served[ModelConfig], prompt: Prompt, images: int) -> list[Batch]:
    """Cut a cell into batches. The last is whole too, so that a cell that is extended later keeps all it has."""
    cut, size = [], batch_size(prompt.stated)
    for start in range(0, images, size):
        index = tuple(range(start, start + size))
        seeds = tuple(image_seed(experiment.seed, i) for i in index)
        key = batch_key(model.identity, prompt.text, prompt.adapter, seeds)
        cut.append(
            Batch(
                model.name,
                model.identity,
                prompt,
                index,
                seeds,
                f"{model.folder}/{key}.parquet",
                f"{experiment.vlm.folder}/{key}-{experiment.questionnaire_key}.parquet",
            )
        )
    return cut


@dataclass(frozen=True)
class ModelPlan:
    name: str
    cells: int
    images: int
    attributes: int  #: one an image and axis
    questions: int  #: at most: an image without a person is asked one
    batches: int
    images_held: int  #: batches of images that the store holds already
    answers_held: int  #: batches of answers that the store holds already
    hours: float | None  #: of this model's device, for the batches that are not held; None: its YAML does not say
    disk_gb: float | None


@dataclass(frozen=True)
class Plan:
    models: tuple[ModelPlan, ...]
    vqa_hours: float
    memory: tuple[tuple[str, float, float, float, str], ...]  #: (name, GPUs, CPUs, GB, licence) of one replica
    strays: tuple[str, ...]  #: what lies in the run's folders of the store and counts nowhere

    def total(self, what: str) -> Any:
        return sum(getattr(model, what) or 0 for model in self.models)

    @property
    def done(self) -> bool:
        return all(model.answers_held == model.batches for model in self.models)


def all_batches(experiment: Experiment, model: Served[ModelConfig]) -> Iterator[Batch]:
    for subject in experiment.dataset.subjects:
        for prompt in prompts_of(experiment.dataset, subject):
            yield from batches_of(experiment, model, prompt, experiment.images)


def _licence(spec: ModelConfig | VLMConfig) -> str:
    gated = isinstance(spec, ModelConfig) and spec.gated
    return ", ".join([*([spec.licence] if spec.licence else []), *(["gated"] if gated else [])])


def make_plan(experiment: Experiment, store: Store) -> Plan:
    """Count what a sweep would do and what the store already holds. Reads names in the store, and nothing else."""
    answered = store.names(experiment.vlm.folder)
    strays = [f"{p.name}: {p.message}" for p in store.problems(experiment.vlm.folder)]
    axes, questions = len(experiment.dataset.axes), len(experiment.questionnaire.all)
    prompts = 1 + sum(len(axis.attributes) for axis in experiment.dataset.axes)
    whole = BATCH * math.ceil(experiment.images / BATCH)
    models, asks = [], 0
    for model in experiment.models:
        held = store.names(model.folder)
        strays += [f"{p.name}: {p.message}" for p in store.problems(model.folder)]
        cells = prompts * len(experiment.dataset.subjects)
        done = made = total = 0
        for batch in all_batches(experiment, model):
            total += 1
            done += batch.answers in answered
            made += batch.images in held or batch.answers in answered
        asks += total - done
        models.append(
            ModelPlan(
                name=model.name,
                cells=cells,
                images=cells * experiment.images,
                attributes=cells * experiment.images * axes,
                questions=cells * experiment.images * questions,
                batches=total,
                images_held=made,
                answers_held=done,
                hours=(total - made) * BATCH * model.spec.seconds_per_image / 3600
                if model.spec.seconds_per_image
                else None,
                disk_gb=cells * whole * model.spec.image_kb / 1e6 if model.spec.image_kb else None,
            )
        )
    served: list[ModelConfig | VLMConfig] = [*(m.spec for m in experiment.models), experiment.vlm.spec]
    return Plan(
        models=tuple(models),
        vqa_hours=asks * BATCH * questions * experiment.vlm.spec.seconds_per_question / 3600,
        memory=tuple((s.name, s.gpus, s.cpus, s.memory_gb, _licence(s)) for s in served),
        strays=tuple(strays),
    )
