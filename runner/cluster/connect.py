"""Joining Ray: one of our own on this machine, or the cluster that this machine is a node of; and who is in it.

What a Ray of our own has and listens on is in `local_ray`. What a cluster listens on is decided by whoever starts it
with `ray start`: see configs/clusters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import ray
from ray._private import services, state, worker

from seesaw.results.errors import ConfigError, EnvironmentFault, HeadLost
from seesaw.results.secrets import without_secrets
from seesaw.runner.cluster.head_watch import check_head, watched
from seesaw.runner.cluster.local_ray import JobWithoutDriverPaths, cpus, private_folder, start
from seesaw.runner.cluster.machine import check_machine
from seesaw.runner.config import CLIENT
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
]

Result = TypeVar("Result")
NAMES_SHOWN = 3  #: nodes that a message names
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
                check_machine(cpus(cluster), cluster.object_store_gb)  # the session's folder among the rest
                start(cluster, session.enter_context(private_folder()))
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
            job_config=JobWithoutDriverPaths(),
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
    reports: Mapping[str, NodeReport] | None = None, listing: Sequence[Mapping[str, Any]] | None = None
) -> list[Node]:
    """The nodes of the cluster that are alive, by their Ray node id (56 hex digits), as in `listing` or asked for now.

    With the `reports` of nodes that were asked (`seesaw.runner.cluster.preflight`), only those, with the memory that
    they have. Without, the memory is what Ray may give away, and that of a GPU is unknown (infinite).
    """
    listing = list_nodes() if listing is None else listing
    alive = {node["NodeID"]: node["Resources"] for node in listing if node["Alive"]}
    return [
        Node(
            name,
            int(has.get("GPU", 0)),
            reports[name].gpu_gb if reports else math.inf,
            has.get("CPU", 0.0),
            reports[name].memory_gb if reports else has.get("memory", math.inf) / 1e9,
        )
        for name, has in alive.items()
        if reports is None or name in reports
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
