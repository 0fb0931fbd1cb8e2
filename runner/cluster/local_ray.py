"""A Ray of a run's own, on this machine: what it listens on, where its files are, and which processes it has.

All that listens is on loopback, and whoever connects needs the token that Ray keeps in ~/.ray/auth_token
(RAY_AUTH_MODE=disabled in the environment turns that off). Two things stay open: other users of this machine can reach
loopback, and who may read the token's file depends on their umask.

Only the processes start that a run needs: Ray's head, its raylet with two agents, and a worker for each task or actor.
There is no dashboard (Ray starts its server even if it is to show nothing, and waits for it), nothing that adds nodes,
nothing that copies logs, and no worker in advance for each CPU. That halves the time to the first batch.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import node, ray_constants, worker
from ray.job_config import JobConfig

from seesaw.results.errors import EnvironmentFault
from seesaw.results.secrets import without_secrets
from seesaw.runner.cluster.machine import session_folder
from seesaw.runner.config import ClusterConfig

__all__ = ["JobWithoutDriverPaths", "cpus", "own_node_died", "private_folder", "start"]

STALE_SECONDS = 600  #: age after which the folder of a driver that is gone is removed


class JobWithoutDriverPaths(JobConfig):
    """A job whose workers import nothing from the driver's current directory or the folder of its script.

    By default Ray puts both first on every worker's `sys.path`, where a user's `random.py` would replace the standard
    library's. It leaves them out for a job with a working directory of its own, so this one says that it has one.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


@contextmanager
def private_folder() -> Iterator[str]:
    """A folder for Ray's sockets and logs that this user alone may enter; it is gone after the block.

    Those of drivers that were killed are removed, too.
    """
    place = session_folder()
    for left in place.glob("seesaw-*-*"):
        with suppress(OSError, ValueError):  # another user's, or gone by now
            ended = not Path(f"/proc/{int(left.name.split('-')[1])}").exists()
            if ended and left.stat().st_uid == os.getuid() and time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"seesaw-{os.getpid()}-", dir=place, ignore_cleanup_errors=True) as folder:
        yield os.path.join(folder, "r")  # Ray opens its own folder to everyone, and cannot open the one around it


def own_node_died() -> bool:
    """Whether the only node of a Ray of our own has died: seen at once, where Ray's head takes half a minute."""
    node = worker._global_node
    raylets: list[Any] = node.all_processes.get(ray_constants.PROCESS_TYPE_RAYLET, []) if node is not None else []
    return any(raylet.process.poll() is not None for raylet in raylets)


def start(cluster: ClusterConfig, folder: str) -> None:
    """Start Ray with its files in `folder`, and make this process its driver.

    Raises:
        EnvironmentFault: Ray cannot start here.
    """
    if "RAY_AUTH_TOKEN" not in os.environ and not _home_is_writable():  # where Ray would keep its token
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        with _on_loopback(), _few_processes():
            ray.init(
                address="local",  # without it Ray joins whatever cluster was last started on this machine
                num_cpus=cpus(cluster),
                _temp_dir=folder,
                num_gpus=cluster.gpus,
                object_store_memory=int(cluster.object_store_gb * 2**30),
                include_dashboard=False,
                job_config=JobWithoutDriverPaths(),
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                _system_config={"prestart_worker_first_driver": False},  # else one for each CPU, and the driver waits
            )
    except Exception as error:  # Ray raises a bare Exception, too, if its raylet dies while it starts
        raise EnvironmentFault(
            f"Ray cannot start here: {without_secrets(str(error)).strip() or type(error).__name__}; `seesaw doctor` "
            "says what this machine lacks"
        ) from error


def cpus(cluster: ClusterConfig) -> int:
    """CPUs that a Ray of the run's own may give away."""
    return cluster.cpus or os.cpu_count() or 1


def _home_is_writable() -> bool:
    place = Path.home() / ".ray"
    return os.access(place if place.exists() else place.parent, os.W_OK)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take loopback for this machine's address, as it does where it knows of no clusters (macOS, Windows).

    `ray.init(_node_ip_address="127.0.0.1")` is not enough: Ray puts the address of a network card in its place.
    """
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    before_in_environment = os.environ.get(name)
    os.environ[name] = "0"  # for the processes that it starts
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one, which read the environment when it imported Ray
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if before_in_environment is None:
            del os.environ[name]
        else:
            os.environ[name] = before_in_environment


class _NodeOfFewProcesses(node.Node):
    """A node of Ray that starts nothing which nobody here asks. Ray has no options for these in `ray.init`."""

    def start_api_server(self, **_: Any) -> None:
        """No dashboard, not even the server without pages that `include_dashboard=False` starts and waits for."""

    def start_monitor(self) -> None:
        """No autoscaler: this cluster is one machine."""

    def start_log_monitor(self) -> None:
        """Nothing that follows the workers' logs: replicas write their own into the run directory."""


@contextmanager
def _few_processes() -> Iterator[None]:
    """Let `ray.init` start a `_NodeOfFewProcesses`."""
    before = node.Node
    node.Node = _NodeOfFewProcesses  # type: ignore[misc]
    try:
        yield
    finally:
        node.Node = before  # type: ignore[misc]
