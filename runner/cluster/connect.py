"""Joining Ray: one of our own on this machine, or the cluster that this machine is a node of; and who is in it.

Of a Ray of our own, all that listens is on loopback, the dashboard is off, and whoever connects needs the token that
Ray keeps in ~/.ray/auth_token (RAY_AUTH_MODE=disabled in the environment turns that off). Two things stay open: other
users of this machine can reach loopback, and who may read the token's file depends on their umask. What a cluster
listens on is decided by whoever starts it with `ray start`: see configs/clusters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import ray
from ray._private import ray_constants, services, state, worker
from ray.job_config import JobConfig

from seesaw.results.errors import ConfigError, EnvironmentFault, HeadLost
from seesaw.results.secrets import without_secrets
from seesaw.runner.cluster.head_watch import check_head, watched
from seesaw.runner.cluster.machine import check_machine, session_folder
from seesaw.runner.config import CLIENT, ClusterConfig
from seesaw.runner.experiment import Experiment
from seesaw.runner.scheduling.resources import Node

if TYPE_CHECKING:
    from seesaw.runner.cluster.node_probe import NodeReport

__all__ = [
    "available",
    "call_in_thread",
    "connected",
    "labels",
    "leaving",
    "list_nodes",
    "named",
    "nodes",
    "own_node_died",
]

Result = TypeVar("Result")
NAMES_SHOWN = 3  #: nodes that a message names
STALE_SECONDS = 600  #: age after which the folder of a driver that is gone is removed
LEAVE_SECONDS = 10  #: that calls of Ray in threads have to end when Ray is left
_ADDRESS = re.compile(r"\[?([\w.:-]+?)\]?:(\d+)")

leaving = threading.Event()  #: set while Ray is being left: whoever waits for Ray in a thread is to wait no more
_threads = ThreadPoolExecutor(
    2, "ray"
)  # not asyncio's own, which would wait at its end for an answer that may not come
_calls: set[Future[Any]] = set()


async def call_in_thread(call: Callable[..., Result], *arguments: Any) -> Result:
    """The result of `call`, which asks Ray and may wait, in a thread that `connected` knows. Raises what it raises.

    No other thread may call Ray: one that is in a call when Ray is shut down ends the process (SIGSEGV).
    """
    future = _threads.submit(call, *arguments)
    _calls.add(future)
    future.add_done_callback(_calls.discard)
    return await asyncio.wrap_future(future)


@contextmanager
def connected(experiment: Experiment, stderr: TextIO | None = None) -> Iterator[None]:
    """A Ray to run on while the block runs: one of our own, or the cluster that this machine belongs to.

    If the head of a cluster is lost while Ray cannot be asked, the process ends with a message on `stderr`.

    Afterwards Ray is shut down. If it cannot be, since its head is lost or a call does not end, it stays initialized:
    then the process must end with `os._exit`, as `seesaw` does, for what Ray does when Python ends would wait, too.

    Raises:
        ConfigError: an address that no run can be on.
        EnvironmentFault: no head answers at the address, Ray cannot start here, or this process uses Ray already.
    """
    cluster = experiment.cluster
    if ray.is_initialized():
        raise EnvironmentFault("Ray is in use in this process already; call ray.shutdown() before a run")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    log = logging.getLogger("ray")
    level = log.level
    log.setLevel(logging.ERROR)
    with ExitStack() as session:
        try:
            if cluster.address == "local":
                check_machine(_cpus(cluster), cluster.object_store_gb)  # the session's folder among the rest
                _start(cluster, session.enter_context(_session_folder()))
            else:
                _join(cluster.address, lambda head: session.enter_context(watched(head, stderr or sys.stderr)))
            yield
        except HeadLost:
            _abandon()
            raise
        except BaseException:
            _leave()
            raise
        else:
            _leave()
        finally:
            log.setLevel(level)


@contextmanager
def _session_folder() -> Iterator[str]:
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


class _JobWithoutDriverPaths(JobConfig):
    """A job whose workers import nothing from the driver's current directory or the folder of its script.

    By default Ray puts both first on every worker's `sys.path`, where a user's `random.py` would replace the standard
    library's. It leaves them out for a job with a working directory of its own, so this one says that it has one.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def own_node_died() -> bool:
    """Whether the only node of a Ray of our own has died: seen at once, where Ray's head takes half a minute."""
    node = worker._global_node
    raylets: list[Any] = node.all_processes.get(ray_constants.PROCESS_TYPE_RAYLET, []) if node is not None else []
    return any(raylet.process.poll() is not None for raylet in raylets)


def _leave() -> None:
    """Shut Ray down once no thread is in a call of it."""
    leaving.set()
    idle = False
    try:
        for call in [*_calls]:
            call.cancel()  # those that have not begun
        idle = not wait([*_calls], LEAVE_SECONDS).not_done
    finally:
        if idle:
            leaving.clear()
            ray.shutdown()
        else:
            _abandon()


def _abandon() -> None:
    """End what this process has started of Ray, without its head: `ray.shutdown` would wait for it."""
    node = worker._global_node
    if node is not None and node.is_head():
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def _start(cluster: ClusterConfig, folder: str) -> None:
    if "RAY_AUTH_TOKEN" not in os.environ and not _home_is_writable():  # where Ray would keep its token
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        with _on_loopback():
            ray.init(
                address="local",  # without it Ray joins whatever cluster was last started on this machine
                num_cpus=_cpus(cluster),
                _temp_dir=folder,
                num_gpus=cluster.gpus,
                object_store_memory=int(cluster.object_store_gb * 2**30),
                include_dashboard=False,
                job_config=_JobWithoutDriverPaths(),
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
    except Exception as error:  # Ray raises a bare Exception, too, if its raylet dies while it starts
        raise EnvironmentFault(
            f"Ray cannot start here: {without_secrets(str(error)).strip() or type(error).__name__}; `seesaw doctor` "
            "says what this machine lacks"
        ) from error


def _cpus(cluster: ClusterConfig) -> int:
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


def _join(address: str, watch: Callable[[str], object]) -> None:
    """Join the cluster at `address`; `watch` is called with the address of its head once that has answered."""
    place, where = address, f"cluster.address={address}"
    if address == "auto" and "RAY_ADDRESS" in os.environ:
        place = os.environ["RAY_ADDRESS"]
        where += f" with RAY_ADDRESS={place}"
    if place.startswith("ray://"):
        raise ConfigError(f"{where} is not supported: {CLIENT}")
    if place != "auto" and not _ADDRESS.fullmatch(place):
        raise ConfigError(f"{where}: expected HOST:PORT of a Ray head")
    try:
        head = services.canonicalize_bootstrap_address(place) or place
        check_head(head)
        watch(head)
        ray.init(
            address=address,
            job_config=_JobWithoutDriverPaths(),
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except Exception as error:  # Ray raises a bare Exception, too
        reason = without_secrets(str(error)).strip()
        raise EnvironmentFault(
            f"no Ray cluster can be joined at {where}: {reason}; this machine must be a node of it (`ray start "
            "--head`, or `ray start --address=HEAD:6379`), and if the head asks for a token, RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN or ~/.ray/auth_token must say it; or run on this machine alone with cluster.address=local"
        ) from error


def list_nodes() -> list[dict[str, Any]]:
    """What Ray's head says of every node that it knows, for `nodes` and `labels`. Cheap: asks the head alone."""
    listing: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return listing


def nodes(
    facts: Mapping[str, NodeReport] | None = None, listing: Sequence[Mapping[str, Any]] | None = None
) -> list[Node]:
    """The nodes of the cluster that are alive, by their Ray node id (56 hex digits), as in `listing` or asked for now.

    With the `facts` of nodes that were asked (`seesaw.runner.cluster.preflight`), only those, with the memory that they
    have. Without, the memory is what Ray may give away, and that of a GPU is unknown (infinite).
    """
    listing = list_nodes() if listing is None else listing
    alive = {node["NodeID"]: node["Resources"] for node in listing if node["Alive"]}
    return [
        Node(
            name,
            int(has.get("GPU", 0)),
            facts[name].gpu_gb if facts else math.inf,
            has.get("CPU", 0.0),
            facts[name].memory_gb if facts else has.get("memory", math.inf) / 1e9,
        )
        for name, has in alive.items()
        if facts is None or name in facts
    ]


def labels(listing: Sequence[Mapping[str, Any]] | None = None) -> dict[str, str]:
    """A name for every node that its owner knows: its address, with the start of Ray's id where several share one."""
    listing = list_nodes() if listing is None else listing
    sharing = Counter(node["NodeManagerAddress"] for node in listing if node["Alive"])
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        + (f" ({node['NodeID'][:8]})" if sharing[node["NodeManagerAddress"]] > 1 else "")
        for node in listing
    }


def available() -> dict[str, dict[str, float]]:
    """By Ray node id, the GPUs and CPUs that nobody holds now. Cheap, and some moments old."""
    free: dict[str, dict[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return free


def named(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:NAMES_SHOWN]) + more
