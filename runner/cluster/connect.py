"""Joining Ray: one of our own on this machine, or the cluster that this machine is a node of; and who is in it.

What Ray leaves open, of one of our own: all that it listens on is on loopback, the dashboard is off, and who connects
needs the token that Ray keeps in ~/.ray/auth_token (RAY_AUTH_MODE=disabled in the environment turns that off). Other
users of this machine can reach loopback, and the file's mode is as their umask lets it. What a cluster listens on says
who starts it with `ray start`: see configs/clusters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray._private import ray_constants, state, worker
from ray.exceptions import RayError

from seesaw.results.errors import ConfigError, EnvironmentFault, HeadLost
from seesaw.results.secrets import first_line, without_secrets
from seesaw.runner.config import CLIENT, ClusterConfig
from seesaw.runner.experiment import Experiment
from seesaw.runner.scheduling.resources import Node

if TYPE_CHECKING:
    from seesaw.runner.cluster.node_probe import NodeReport

__all__ = ["aside", "available", "connected", "labels", "leaving", "listed", "named", "nodes"]

Result = TypeVar("Result")
MOST = 3  #: nodes that a message names
LEAVE = 10  #: seconds that calls of Ray's in threads have for their end when Ray is left
JOIN = 30  #: seconds that joining a cluster may take; Ray itself tries for many minutes
_HEAD = re.compile(r"\[?([\w.:-]+?)\]?:(\d+)")
#: how a client of HTTP/2 begins, and the kind of frame with which a server answers (RFC 9113, sections 3.4 and 6.5)
_GREETING, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), b"\4"

leaving = threading.Event()  #: set when Ray is left: what waits in a thread for Ray is to wait no more
_threads = ThreadPoolExecutor(2, "ray")  # not asyncio's own, whose end waits for an answer that may not come
_calls: set[Future[Any]] = set()


async def aside(call: Callable[..., Result], *arguments: Any) -> Result:
    """What `call` returns, which asks Ray and may wait: in a thread, of which `connected` knows. Raises what it raises.

    No other thread may call Ray: one that is in a call when Ray is shut down takes the process with it (SIGSEGV).
    """
    future = _threads.submit(call, *arguments)
    _calls.add(future)
    future.add_done_callback(_calls.discard)
    return await asyncio.wrap_future(future)


@contextmanager
def connected(experiment: Experiment) -> Iterator[None]:
    """A Ray to run on, ended with the block: one of our own, or the cluster that this machine belongs to.

    Where Ray cannot be shut down, for its head is lost or a call has no end, it stays initialized: the process must end
    with `os._exit`, as `seesaw` does, for what Ray does when Python ends would wait, too.

    Raises:
        ConfigError: an address that no run can be on.
        EnvironmentFault: no cluster can be joined within `JOIN` seconds or so, or Ray cannot start here.
    """
    cluster = experiment.cluster
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # actors find an engine of the user's own where the driver does: beside the config, or in the current directory
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if cluster.address == "local":
            _start(cluster)
        else:
            _join(cluster.address)
        yield
    except HeadLost:
        _abandon()
        raise
    except BaseException:
        _leave()
        raise
    _leave()


def _leave() -> None:
    """Shut Ray down once no thread is in a call of it."""
    leaving.set()
    idle = False
    try:
        for call in [*_calls]:
            call.cancel()  # what has not begun
        idle = not wait([*_calls], LEAVE).not_done
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


def _start(cluster: ClusterConfig) -> None:
    try:
        with _on_loopback():
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
    except (RayError, RuntimeError, ValueError, OSError) as error:
        raise EnvironmentFault(f"Ray cannot start here: {without_secrets(str(error))}") from error


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take loopback for this machine's address, as it does where it knows of no clusters (macOS, Windows).

    `ray.init(_node_ip_address="127.0.0.1")` does not do: Ray puts the address of a network card in its place.
    """
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    told = os.environ.get(name)
    os.environ[name] = "0"  # for the processes that it starts
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one, which read the environment when it imported Ray
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if told is None:
            del os.environ[name]
        else:
            os.environ[name] = told


def _join(address: str) -> None:
    place, where = address, f"cluster.address={address}"
    if address == "auto" and "RAY_ADDRESS" in os.environ:
        place = os.environ["RAY_ADDRESS"]
        where += f" with RAY_ADDRESS={place}"
    if place.startswith("ray://"):
        raise ConfigError(f"{where} is not supported: {CLIENT}")
    if place != "auto":
        head = _HEAD.fullmatch(place)
        if not head:
            raise ConfigError(f"{where}: expected HOST:PORT of a Ray head")
        _knock(where, head[1], int(head[2]))
    try:
        with _within(JOIN):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (RayError, RuntimeError, ValueError, OSError) as error:
        raise _not_joined(where, without_secrets(str(error)).strip()) from error


def _knock(where: str, host: str, port: int) -> None:
    """Whether anything there speaks HTTP/2, as a Ray head does: Ray itself would try again for many minutes."""
    try:
        with socket.create_connection((host, port), timeout=5) as line:
            line.sendall(_GREETING)
            greeted = line.recv(9)[3:4] == _SETTINGS
    except OSError as error:
        raise _not_joined(where, first_line(error)) from error
    if not greeted:
        raise _not_joined(where, "what listens there is no Ray head")


def _not_joined(where: str, said: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"no Ray cluster can be joined at {where}: {said}; this machine must be a node of it (`ray start --head`, or "
        "`ray start --address=HEAD:6379`), and if the head asks for a token, RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
        "or ~/.ray/auth_token must say it; or run on this machine alone with cluster.address=local"
    )


class _Late(BaseException):
    """Not an Exception, which Ray would take for a reason to try again."""


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer; of Ray's tries to connect, the one under way goes on to its end."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    except _Late:
        raise TimeoutError(f"no answer of a Ray head within {seconds} seconds") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def listed() -> list[dict[str, Any]]:
    """What Ray's head says of every node that it knows, for `nodes` and `labels`. Cheap: asks the head alone."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def nodes(
    facts: Mapping[str, NodeReport] | None = None, found: Sequence[Mapping[str, Any]] | None = None
) -> list[Node]:
    """The nodes of the cluster that are alive, by their Ray node id (56 hex digits), as `found` or asked for now.

    With `facts` of nodes that were asked (`runner.cluster.preflight`) only those, with the memory that they have. Without, the
    memory is what Ray may give away, and that of a GPU is unknown (infinite).
    """
    found = listed() if found is None else found
    alive = {node["NodeID"]: node["Resources"] for node in found if node["Alive"]}
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


def labels(found: Sequence[Mapping[str, Any]] | None = None) -> dict[str, str]:
    """A name for every node that its owner knows: its address, with the start of Ray's id where several share one."""
    found = listed() if found is None else found
    shared = Counter(node["NodeManagerAddress"] for node in found if node["Alive"])
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        + (f" ({node['NodeID'][:8]})" if shared[node["NodeManagerAddress"]] > 1 else "")
        for node in found
    }


def available() -> dict[str, dict[str, float]]:
    """By Ray node id, the GPUs and CPUs that nobody holds now. Cheap, and some moments old."""
    found: dict[str, dict[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return found


def named(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(sorted(names)[:MOST]) + more
