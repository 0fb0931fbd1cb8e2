"""Joining Ray, and asking before anything starts whether it has what the run needs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from actors.engines import TTI_ENGINES, VQA_ENGINES, engine_class
from results.errors import EnvironmentFault
from runner.config import ModelConfig, VLMConfig
from runner.experiment import Experiment, Served

__all__ = ["check_resources", "connected", "preflight"]


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
            f"no Ray cluster can be joined at cluster.address={cluster.address}: {str(error).splitlines()[0]}; start "
            "one with `ray start --head`, or run on this machine alone with cluster.address=local"
        ) from error
    except (RuntimeError, ValueError, OSError) as error:
        raise EnvironmentFault(f"Ray cannot start here: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def preflight(experiment: Experiment) -> None:
    """Look for packages and weights of every model, before Ray starts. Raises EnvironmentFault naming all that lack.

    Only for a run on this machine: a cluster's driver may sit on a node without either, and there each actor says it.
    """
    if experiment.cluster.address != "local":
        return
    lacking = []
    served: list[Served[Any]] = [*experiment.models, experiment.vlm]
    for model in served:
        known = TTI_ENGINES if isinstance(model.spec, ModelConfig) else VQA_ENGINES
        engine = engine_class(model.spec.engine, known)
        if hasattr(engine, "preflight"):
            try:
                engine.preflight(model.spec.settings)
            except EnvironmentFault as fault:
                lacking.append(f"{model.name}: {fault}")
    if lacking:
        raise EnvironmentFault("\n  ".join(["this run cannot start here:", *lacking]))


def check_resources(experiment: Experiment) -> None:
    """Compare what the run needs with what the cluster has, all of it at once.

    Raises:
        EnvironmentFault: what is missing, with what would be right. Never a wait for what will not come.
    """
    have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    lines, cpus, gpus = [], 0.0, 0.0
    specs: list[ModelConfig | VLMConfig] = [*(m.spec for m in experiment.models), experiment.vlm.spec]
    for spec in specs:
        replicas = experiment.cluster.replicas.get(spec.name, 1)
        cpus += replicas * spec.cpus
        gpus += replicas * spec.gpus
        each = f"{replicas} x ({spec.gpus:g} GPU, {spec.cpus:g} CPU)"
        lines.append(f"  {spec.name}: {each}")
    for kind, need, key in (("GPUs", gpus, "GPU"), ("CPUs", cpus, "CPU")):
        if need > have.get(key, 0) + 1e-9:
            raise EnvironmentFault(
                f"this run needs {need:g} {kind} at once, and the cluster has {have.get(key, 0):g}:\n"
                + "\n".join(lines)
                + "\nask for fewer replicas (cluster.replicas), or models one at a time (models=[...])"
            )
