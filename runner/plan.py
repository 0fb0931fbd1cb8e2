"""What a run consists of: cells cut into batches by rule, what doing them will take, and how long on which GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from seesaw.experiments.prompts import Prompt, sweep_prompts
from seesaw.results.store.costs import read_costs
from seesaw.results.store.identity import BATCH, batch_key, batch_size, image_key, image_seed
from seesaw.results.store.store import Store
from seesaw.results.words import prompt_label
from seesaw.runner.config import ModelConfig, VLMConfig
from seesaw.runner.experiment import Experiment, ResolvedModel
from seesaw.runner.scheduling.resources import Demand, Node, places
from seesaw.runner.scheduling.simulate import Simulation, simulate

__all__ = [
    "Batch",
    "Cost",
    "ModelPlan",
    "Plan",
    "Timing",
    "all_answered",
    "batches_of",
    "batches_to_ask",
    "costs_of",
    "demand_of",
    "in_whole_batches",
    "licence_of",
    "make_plan",
    "nodes_of",
    "time_plan",
]

NODE_GPUS = 8  #: GPUs of one node of an assumed cluster
GPU_CPUS = 16  #: CPUs of it for each GPU


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
        where = prompt_label(self.prompt.source_axis, self.prompt.source_value)
        return f"{self.model} / {self.prompt.subject} / {where} / images {self.index[0]}-{self.index[-1]}"


def in_whole_batches(stated: int, images: int) -> int:
    """How many images the batches have that `images` of a prompt take, which states so many axes: batches are whole."""
    size = batch_size(stated)
    return size * math.ceil(images / size)


@lru_cache(maxsize=10_000)
def _images(root: int, start: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers and seeds of consecutive images. They are the same for every cell, and kept once for all."""
    index = tuple(range(start, start + size))
    return index, tuple(image_seed(root, i) for i in index)


def batches_of(
    experiment: Experiment, model: ResolvedModel[ModelConfig], prompt: Prompt, images: int, start: int = 0
) -> list[Batch]:
    """Cut a cell, or its images from number `start` on, into batches.

    The last one is whole too, so that a cell that grows later keeps all its images. Raises ValueError for a `start` at
    which no batch begins.
    """
    cut, size = [], batch_size(prompt.stated)
    if start % size:
        raise ValueError(f"no batch of {size} images begins at image {start}")
    for first in range(start, start + images, size):
        index, seeds = _images(experiment.seed, first, size)
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
    #: of this model's device, for the batches that the store lacks; None: its YAML gives no figures
    hours: float | None
    disk_gb: float | None


@dataclass(frozen=True)
class Plan:
    models: tuple[ModelPlan, ...]
    vqa_hours: float
    memory: tuple[tuple[str, float, float, float, str], ...]  #: (name, GPUs, CPUs, GB, licence) of one replica
    strays: tuple[str, ...]  #: files in the run's folders of the store that count nowhere
    second_asks: int = 0  #: batches that the second VLM still has to read

    def total(self, what: str) -> Any:
        return sum(getattr(model, what) or 0 for model in self.models)


def all_batches(experiment: Experiment, model: ResolvedModel[ModelConfig]) -> Iterator[Batch]:
    for prompt in sweep_prompts(experiment.dataset):
        yield from batches_of(experiment, model, prompt, experiment.images.of(prompt))


def all_answered(experiment: Experiment, store: Store) -> bool:
    """Whether the store holds all answers of a sweep. Images are not looked at: they are not needed any more."""
    return not batches_to_ask(experiment, store.names(experiment.vlm.folder))


def batches_to_ask(experiment: Experiment, answered: Collection[str]) -> int:
    """How many batches of a sweep the VLM has not answered; `answered` are the names of its shards."""
    return sum(batch.answers not in answered for model in experiment.models for batch in all_batches(experiment, model))


def licence_of(spec: ModelConfig | VLMConfig) -> str:
    """The licence of a model or VLM, and whether its weights are gated; empty if its YAML says neither."""
    gated = isinstance(spec, ModelConfig) and spec.gated
    return ", ".join([*([spec.licence] if spec.licence else []), *(["gated"] if gated else [])])


def make_plan(experiment: Experiment, store: Store | None = None) -> Plan:
    """Count what a sweep would do and what the store already holds. Reads names in the store, and nothing else.

    `store` is the experiment's, if it is open already.

    Example::

        plan = seesaw.make_plan(seesaw.load_experiment("demo"))
        plan.total("images"), plan.total("answers_held"), plan.vqa_hours
    """
    store = Store(experiment.store) if store is None else store
    answered, problems = store.look(experiment.vlm.folder)
    axes, questions = len(experiment.dataset.axes), len(experiment.questionnaire.all)
    subjects, counterfactuals = len(experiment.dataset.subjects), experiment.dataset.counterfactuals
    images = subjects * (experiment.images.initial + counterfactuals * experiment.images.counterfactual)
    stored = subjects * (
        in_whole_batches(0, experiment.images.initial)
        + counterfactuals * in_whole_batches(1, experiment.images.counterfactual)
    )
    models, asks = [], 0
    for model in experiment.models:
        stored_images, odd = store.look(model.folder)
        problems += odd
        with_answers = with_images = total = 0
        for batch in all_batches(experiment, model):
            total += 1
            with_answers += batch.answers in answered
            with_images += batch.images in stored_images or batch.answers in answered
        asks += total - with_answers
        models.append(
            ModelPlan(
                name=model.name,
                cells=subjects * (1 + counterfactuals),
                images=images,
                attributes=images * axes * len(experiment.vlms),
                questions=images * questions * len(experiment.vlms),
                batches=total,
                images_held=with_images,
                answers_held=with_answers,
                hours=(total - with_images) * BATCH * model.spec.seconds_per_image / 3600
                if model.spec.seconds_per_image
                else None,
                disk_gb=stored * model.spec.image_kb / 1e6 if model.spec.image_kb else None,
            )
        )
    second, second_asks = experiment.second, 0
    if second is not None:
        answered, odd = store.look(second.vlm.folder)
        problems += odd
        second_asks = batches_to_ask(second, answered)
    served: list[ModelConfig | VLMConfig] = [
        *(model.spec for model in experiment.models),
        *(vlm.spec for vlm in experiment.vlms),
    ]
    seconds = [BATCH * questions * vlm.spec.seconds_per_question for vlm in experiment.vlms]
    return Plan(
        models=tuple(models),
        vqa_hours=sum(n * each for n, each in zip((asks, second_asks), seconds, strict=False)) / 3600,
        second_asks=second_asks,
        memory=tuple((s.name, s.gpus, s.cpus, s.memory_gb, licence_of(s)) for s in served),
        strays=tuple(f"{p.name}: {p.message}" for p in problems),
    )


@dataclass(frozen=True)
class Cost:
    """What a model's work costs on the GPUs of a `Timing`, and where the figures come from."""

    name: str
    seconds: float  #: a batch
    load_seconds: float
    source: str
    loads: int
    gpu_hours: float  #: spent on batches; loading is counted apart


@dataclass(frozen=True)
class Timing:
    """How long a plan would take on machines that need not exist: the fleet's policy against a virtual clock."""

    gpus: int
    gpu_gb: float  #: of one GPU
    cpus: float  #: of all nodes
    hours: float  #: until the last answer
    bound_hours: float  #: the least that any policy needs (`runner.scheduling.simulate.lower_bound`)
    utilisation: tuple[float, ...]  #: of every GPU, the share of `hours` that it works; loading is not work
    loading_gpu_hours: float
    costs: tuple[Cost, ...]
    one_more_hours: float | None  #: until the last answer, with one GPU more; None if no model needs a GPU
    left_out: tuple[str, ...]  #: models whose work is not in these figures, and why
    log: tuple[str, ...]  #: the policy's decisions


def demand_of(spec: ModelConfig | VLMConfig, replicas: Mapping[str, int], seconds: float) -> Demand:
    """What the policy needs to know about a model or VLM, with nothing queued; `seconds` are those of a batch."""
    # a VLM is spread over its GPUs; a model is on one of them, or on its share of one
    share = spec.gpus if isinstance(spec, VLMConfig) else min(spec.gpus, 1.0)
    return Demand(
        name=spec.name,
        queued=0,
        running=0,
        seconds=seconds,
        load_seconds=spec.load_seconds,
        gpus=spec.gpus,
        gpu_gb=spec.memory_gb / share if spec.gpus else 0.0,
        cpus=spec.cpus,
        memory_gb=0.0 if spec.gpus else spec.memory_gb,
        pinned=replicas.get(spec.name),
    )


def costs_of(experiment: Experiment) -> dict[str, tuple[Demand, str]]:
    """By name, the demand of each model and the VLM with nothing queued, and where its seconds come from.

    They come from measured batches if the store has records of any, else from the YAML.
    """
    questions = len(experiment.questionnaire.all)
    estimates: list[tuple[ResolvedModel[Any], float]] = [
        *((model, BATCH * model.spec.seconds_per_image) for model in experiment.models),
        *((vlm, BATCH * questions * vlm.spec.seconds_per_question) for vlm in experiment.vlms),
    ]
    costs, store = {}, Store(experiment.store)
    for served, seconds in estimates:
        demand, source = demand_of(served.spec, experiment.cluster.replicas, seconds), "its YAML"
        measured = read_costs(store, served.folder)
        if measured is not None:
            demand = replace(demand, seconds=measured.seconds, load_seconds=measured.load_seconds)
            source = f"{measured.batches:,} batches that were measured"
        costs[served.name] = demand, source
    return costs


def nodes_of(gpus: int, gpu_gb: float, cpus: int | None = None) -> list[Node]:
    """Nodes of up to 8 GPUs with 16 CPUs a GPU. Without GPUs: one node with `cpus`, or as many as this machine has."""
    if not gpus:
        return [Node("node-0", 0, 0.0, float(cpus or os.cpu_count() or 1))]
    sizes = [min(NODE_GPUS, gpus - first) for first in range(0, gpus, NODE_GPUS)]
    return [Node(f"node-{i}", size, gpu_gb, float(GPU_CPUS * size)) for i, size in enumerate(sizes)]


def time_plan(experiment: Experiment, plan: Plan, gpus: int, gpu_gb: float) -> Timing:
    """Simulate what is left of a plan on `gpus` GPUs of `gpu_gb` GB each (0: on CPUs alone), and on one GPU more."""
    nodes = nodes_of(gpus, gpu_gb, experiment.cluster.cpus)
    costs = costs_of(experiment)
    models, left_out, stored = [], [], 0
    for served, counts in zip(experiment.models, plan.models, strict=True):
        demand = replace(costs[served.name][0], queued=counts.batches - counts.images_held)
        stored += counts.images_held - counts.answers_held
        why = _not_timed(demand, "seconds_per_image", nodes)
        if not demand.queued or not why:
            models.append(demand)
        else:
            left_out.append(why)
    asks = costs[experiment.vlm.name][0]
    vlm: Demand | None = replace(asks, queued=stored)
    if why := _not_timed(asks, "seconds_per_question", nodes):
        left_out.append(why)
        vlm = None
    second = _second_demand(experiment, plan, costs)
    if second is not None and (why := _not_timed(second, "seconds_per_question", nodes)):
        left_out.append(why)
        second = None
    passes = _passes(models, vlm, second, nodes)
    demands = [*models, *(each for each in (vlm, second) if each)]
    more = None
    if gpus and any(demand.gpus for demand in demands):
        wider = _passes(models, vlm, second, nodes_of(gpus + 1, gpu_gb))
        more = sum(each.makespan for each in wider) / 3600
    names = [replica.demand.name for each in passes for replica in each.replicas]
    hours = sum(each.makespan for each in passes) / 3600
    busy = {
        gpu: sum(each.utilisation.get(gpu, 0.0) * each.makespan for each in passes) for gpu in passes[0].utilisation
    }
    return Timing(
        gpus=gpus,
        gpu_gb=gpu_gb,
        cpus=sum(node.cpus for node in nodes),
        hours=hours,
        bound_hours=sum(each.bound for each in passes) / 3600,
        utilisation=tuple(seconds / (3600 * hours) if hours else 0.0 for seconds in busy.values()),
        loading_gpu_hours=sum(each.loading_hours for each in passes),
        costs=tuple(
            Cost(
                w.name,
                w.seconds,
                w.load_seconds,
                costs[w.name][1],
                names.count(w.name),
                sum(each.gpu_hours.get(w.name, 0.0) for each in passes),
            )
            for w in demands
        ),
        one_more_hours=more,
        left_out=tuple(left_out),
        log=tuple(line for each in passes for line in each.log),
    )


def _passes(
    models: Sequence[Demand], vlm: Demand | None, second: Demand | None, nodes: Sequence[Node]
) -> list[Simulation]:
    """What is made and read, then what the second VLM reads: it begins when the first has ended."""
    return [simulate(models, vlm, nodes), *([simulate([], second, nodes)] if second else [])]


def _second_demand(experiment: Experiment, plan: Plan, costs: Mapping[str, tuple[Demand, str]]) -> Demand | None:
    """What the second VLM takes, which reads all images after the first; None if there is none, or nothing is left."""
    if experiment.second_vlm is None or not plan.second_asks:
        return None
    return replace(costs[experiment.second_vlm.name][0], queued=plan.second_asks)


def _not_timed(demand: Demand, key: str, nodes: Sequence[Node]) -> str:
    if not demand.seconds:
        return f"{demand.name}: its YAML gives no {key}"
    if not places(demand, nodes):
        need = f"{demand.gpus:g} GPU of {demand.gpu_gb:g} GB and " if demand.gpus else ""
        return f"{demand.name}: it fits on no node; it takes {need}{demand.cpus:g} CPU"
    return ""
