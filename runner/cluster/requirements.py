"""What each model and the VLM needs by itself, compared with what the nodes have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from seesaw.results.errors import EnvironmentFault
from seesaw.runner.cluster.connect import labels, named, nodes
from seesaw.runner.cluster.node_probe import NodeReport
from seesaw.runner.config import ModelConfig, VLMConfig
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import demand_of
from seesaw.runner.scheduling.resources import Demand, Node, places

__all__ = ["Spec", "check_resources", "lines_by_problem", "models_lack", "resources_of", "specs_of"]

Spec = ModelConfig | VLMConfig


def check_resources(experiment: Experiment) -> None:
    """Compare the CPUs and GPUs that each model and the VLM takes by itself with those of the nodes.

    Models that do not fit beside each other run in turns. Of each, as many replicas must fit at once as
    `cluster.replicas` asks for.

    Raises:
        EnvironmentFault: what is missing, and what would be right; the run does not wait for what will never come.
    """
    have, specs = nodes(), specs_of(experiment)
    if any(spec.gpus for spec in specs) and not any(node.gpus for node in have):
        most = max(specs, key=lambda spec: spec.gpus * _count(experiment, spec))
        raise EnvironmentFault(
            f"this run needs {most.gpus * _count(experiment, most):g} GPUs, and Ray finds none here:\n"
            + "\n".join(_line(experiment, spec) for spec in specs)
            + "\nrun it where nvidia-smi "
            "lists a GPU and CUDA_VISIBLE_DEVICES does not hide it, join a cluster that has some "
            "(cluster.address=auto), or choose models and a VLM that need none"
        )
    short = []
    for spec in specs:
        fitting = places(resources_of(spec), have)
        if fitting < _count(experiment, spec):
            short.append(f"{_line(experiment, spec)}, and there is room for {fitting}")
    if short:
        largest = max(have, key=lambda node: (node.gpus, node.cpus), default=Node("", 0, 0.0, 0.0))
        raise EnvironmentFault(
            f"this run needs more GPUs or CPUs at once than there are; the largest of {len(have)} nodes has "
            f"{largest.gpus} GPUs and {largest.cpus:g} CPUs:\n"
            + "\n".join(short)
            + "\nask for fewer replicas (cluster.replicas), or let nodes join first (an autoscaler starts none for a "
            "question: raise its min_workers)"
        )


def models_lack(
    experiment: Experiment, have: Sequence[Node], reports: Mapping[str, NodeReport], cluster: bool
) -> tuple[list[str], list[str]]:
    """What keeps a model or the VLM from being served at all, and notes about nodes that cannot serve it."""
    lacking, notes = [], []
    for spec in specs_of(experiment):
        count, demand = _count(experiment, spec), demand_of(spec, {}, 0.0)
        there = [node for node in have if places(resources_of(spec), [node])]
        fit = [node for node in there if places(demand, [node])]
        wrong = [
            (node.name, f"{spec.name}: {reports[node.name].lacks[spec.name]}")
            for node in fit
            if spec.name in reports[node.name].lacks
        ]
        able = [node for node in fit if spec.name not in reports[node.name].lacks]
        fitting = places(demand, able)
        if not there:
            lacking.append(f"{spec.name}: no node that can be used has room for it")
        elif not fit:
            lacking.append(_too_large(spec, there, cluster))
        elif wrong and fitting < count:
            lacking += lines_by_problem(wrong, len(fit)) if cluster else [why for _, why in wrong]
        elif fitting < count:
            lacking.append(
                f"{spec.name}: {count} replicas of {spec.memory_gb:g} GB are asked for, and there is room for "
                f"{fitting}; "
                "ask for fewer (cluster.replicas)"
            )
        elif wrong:
            notes += lines_by_problem(wrong, len(fit))
    return lacking, notes


def _too_large(spec: Spec, there: Sequence[Node], cluster: bool) -> str:
    if not spec.gpus:
        most = max(node.memory_gb for node in there)
        where = "the largest node" if cluster else "this machine"
        return (
            f"{spec.name}: it takes {spec.memory_gb:,.1f} GB of memory, and {where} has {most:,.1f}: take a smaller one"
        )
    where = "of this cluster" if cluster else "here"
    smaller = (
        "a quantized one, or several GPUs (gpus and settings.engine_args.tensor_parallel_size)"
        if isinstance(spec, VLMConfig)
        else "settings.offload=model, settings.quantization or another settings.dtype (and memory_gb)"
    )
    return (
        f"{spec.name}: it takes {spec.memory_gb:g} GB on {spec.gpus:g} GPU, and the largest GPU {where} has "
        f"{max(node.gpu_gb for node in there):.0f} GB: take a larger GPU, or {smaller}"
    )


def lines_by_problem(problems: Iterable[tuple[str, str]], of: int | None = None) -> list[str]:
    """A line for each problem, which names the nodes that have it; `of` is how many nodes there are."""
    label_of, nodes_with = labels(), dict[str, list[str]]()
    for node, why in problems:
        nodes_with.setdefault(why, []).append(label_of.get(node, node))
    of = of or len(nodes())
    return [
        f"on {len(names)} of {of} node{'s' * (of > 1)} ({named(names)}): {why}" for why, names in nodes_with.items()
    ]


def specs_of(experiment: Experiment) -> list[Spec]:
    return [*(model.spec for model in experiment.models), experiment.vlm.spec]


def resources_of(spec: Spec) -> Demand:
    """A replica's GPUs and CPUs without its memory: what Ray counts."""
    return replace(demand_of(spec, {}, 0.0), gpu_gb=0.0, memory_gb=0.0)


def _count(experiment: Experiment, spec: Spec) -> int:
    return experiment.cluster.replicas.get(spec.name, 1)


def _line(experiment: Experiment, spec: Spec) -> str:
    return f"  {spec.name}: {_count(experiment, spec)} x ({spec.gpus:g} GPU, {spec.cpus:g} CPU)"
