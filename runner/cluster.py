"""Joining Ray, and asking before anything starts whether it has what the run needs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from actors.engines import TTI_ENGINES, VQA_ENGINES, engine_class
from actors.hub import free_space
from results.errors import EnvironmentFault
from results.secrets import first_line, without_secrets
from runner.config import ModelConfig, VLMConfig
from runner.experiment import Experiment, Served
from runner.plan import Plan

__all__ = ["check_disk", "check_resources", "connected", "preflight"]

Spec = ModelConfig | VLMConfig


@contextmanager
def connected(experiment: Experiment) -> Iterator[None]:
    """A Ray to run on, ended with the block: one of our own, or the cluster that this machine belongs to.

    Raises:
        EnvironmentFault: no cluster to join, or Ray cannot start here.
    """
    cluster = experiment.cluster
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # actors find an engine of the user's own where the driver does: beside the config, or in the current directory
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if cluster.address == "local":
            ray.init(
                address="local",  # without it Ray joins whatever cluster was last started on this machine
                num_cpus=cluster.cpus or max(os.cpu_count() or 1, 1),
                num_gpus=cluster.gpus,
                object_store_memory=int(cluster.object_store_gb * 2**30),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        else:
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except ConnectionError as error:
        raise EnvironmentFault(
            f"no Ray cluster can be joined at cluster.address={cluster.address}: {first_line(error)}; start "
            "one with `ray start --head`, or run on this machine alone with cluster.address=local"
        ) from error
    except (RuntimeError, ValueError, OSError) as error:
        raise EnvironmentFault(f"Ray cannot start here: {without_secrets(str(error))}") from error
    try:
        yield
    finally:
        ray.shutdown()


def preflight(experiment: Experiment) -> None:
    """Look for packages, weights and memory for every model, before any work. EnvironmentFault names all that lack.

    Only for a run on this machine: a cluster's driver may sit on a node without either, and there each actor says it.
    """
    if experiment.cluster.address != "local":
        return
    served: list[Served[Any]] = [*experiment.models, experiment.vlm]
    with ThreadPoolExecutor() as pool:  # each may wait some seconds for what the hub says
        found = [*pool.map(_engine_lacks, served), *_memory_lacks(experiment)]
    lacking = [message for message in found if message]
    if lacking:
        raise EnvironmentFault("\n  ".join(["this run cannot start here:", *lacking]))


def _engine_lacks(model: Served[Any]) -> str:
    known = TTI_ENGINES if isinstance(model.spec, ModelConfig) else VQA_ENGINES
    engine = engine_class(model.spec.engine, known)
    try:
        if hasattr(engine, "preflight"):
            engine.preflight(model.spec.settings)
    except EnvironmentFault as fault:
        return f"{model.name}: {fault}"
    return ""


def _memory_lacks(experiment: Experiment) -> Iterator[str]:
    """What does not fit into a GPU of this machine, or, of what runs on its CPU, into its memory."""
    served, total = _replicas(experiment), _machine_gb()
    largest = _gpu_gb() if any(spec.gpus for spec, _ in served) else None
    need, lines = 0.0, []
    for spec, replicas in served:
        if spec.gpus == 0:
            need += replicas * spec.memory_gb
            lines.append(f"  {spec.name}: {replicas} x {spec.memory_gb:g} GB")
            continue
        # a VLM is spread over its GPUs; a model is on one of them, or on its share of one
        spread = isinstance(spec, VLMConfig)
        share = spec.gpus if spread else min(spec.gpus, 1)
        if largest is not None and spec.memory_gb / share > largest:
            smaller = (
                "a quantized one, or several GPUs (gpus and settings.engine_args.tensor_parallel_size)"
                if spread
                else "settings.offload=model, settings.quantization or another settings.dtype (and memory_gb)"
            )
            yield (
                f"{spec.name}: it takes {spec.memory_gb:g} GB on {spec.gpus:g} GPU, and the largest GPU here has "
                f"{largest:.0f} GB: take a larger GPU, or {smaller}"
            )
    if need > total:
        yield "\n".join(
            [
                f"this run needs {need:,.1f} GB of memory at once, and this machine has {total:,.1f}:",
                *lines,
                "ask for fewer replicas (cluster.replicas), or models one at a time (models=[...])",
            ]
        )


def _gpu_gb() -> float | None:
    """Memory of the largest GPU that this process may use; None if nvidia-smi does not say."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = [
        "nvidia-smi",
        "--query-gpu=memory.total",
        "--format=csv,noheader,nounits",
        *(["-i", chosen] if chosen else []),
    ]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return max(float(line) for line in told.splitlines()) * 2**20 / 1e9
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _machine_gb() -> float:
    """This machine's memory, or what its container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            total = min(total, int(Path(limit).read_text()))
    return total / 1e9


def check_disk(plan: Plan, store: str) -> None:
    """EnvironmentFault if the images that a run would still make do not fit where a local store lies."""
    if "://" in store:
        return
    left = sum((model.disk_gb or 0) * (1 - model.images_held / model.batches) for model in plan.models)
    free = free_space(Path(store)) / 1e9
    if left > free:
        raise EnvironmentFault(
            f"this run makes about {left:,.1f} GB of images, and the file system of the store '{store}' has "
            f"{free:,.1f} GB free: make room, choose another place (store=DIR), or ask for fewer images (images=N)"
        )


def check_resources(experiment: Experiment) -> None:
    """Compare the CPUs and GPUs that the run needs with those that the cluster has.

    Raises:
        EnvironmentFault: what is missing, with what would be right. Never a wait for what will not come.
    """
    have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    served = _replicas(experiment)
    lines = [f"  {spec.name}: {count} x ({spec.gpus:g} GPU, {spec.cpus:g} CPU)" for spec, count in served]
    gpus, cpus = (sum(count * getattr(spec, kind) for spec, count in served) for kind in ("gpus", "cpus"))
    if gpus and not have.get("GPU"):
        raise EnvironmentFault(
            f"this run needs {gpus:g} GPUs, and Ray finds none here:\n"
            + "\n".join(lines)
            + "\nrun it where nvidia-smi "
            "lists a GPU and CUDA_VISIBLE_DEVICES does not hide it, join a cluster that has some "
            "(cluster.address=auto), or choose models and a VLM that need none"
        )
    for kind, need, key in (("GPUs", gpus, "GPU"), ("CPUs", cpus, "CPU")):
        if need > have.get(key, 0) + 1e-9:
            raise EnvironmentFault(
                f"this run needs {need:g} {kind} at once, and the cluster has {have.get(key, 0):g}:\n"
                + "\n".join(lines)
                + "\nask for fewer replicas (cluster.replicas), or models one at a time (models=[...])"
            )


def _replicas(experiment: Experiment) -> list[tuple[Spec, int]]:
    """Everything that is served, and how many times."""
    specs: list[Spec] = [*(model.spec for model in experiment.models), experiment.vlm.spec]
    return [(spec, experiment.cluster.replicas.get(spec.name, 1)) for spec in specs]
