"""What a node says of itself when it is asked: its versions, its memory, what its engines lack, if it sees the store.

Every node is asked by a task of its own that takes no CPU and no GPU, all at once, within `PATIENCE`.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from pyarrow import fs
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from seesaw.actors.plugins import Plugin
from seesaw.results.errors import EnvironmentFault, SeesawError
from seesaw.results.secrets import first_line
from seesaw.results.store.filesystem import open_filesystem

__all__ = ["LIBRARIES", "Asked", "NodeReport", "StoreMarker", "ask", "engine_lacks", "look", "versions"]

PATIENCE = 60.0  #: seconds that a node has for its answer
STEP = 0.5  #: seconds after which it is seen that nobody waits for an answer any more
LIBRARIES = ("torch", "diffusers", "transformers", "vllm")  #: what numbers come from
UNSEEN = "unseen"  #: a node that does not see the driver's mark in the store

Asked = tuple[str, Plugin, Mapping[str, Any]]  #: the name of a model or VLM, its engine, the engine's settings


@dataclass(frozen=True)
class NodeReport:
    versions: Mapping[str, str]  #: of what is installed of Seesaw, Python, Ray and LIBRARIES
    gpu_gb: float = math.inf  #: of its largest GPU, if it says
    memory_gb: float = math.inf
    lacks: Mapping[str, str] = field(default_factory=dict)  #: model or VLM -> why it cannot be loaded there
    store: str = ""  #: why its work cannot be kept


@dataclass(frozen=True)
class StoreMarker:
    """A file of a few bytes in the store, that one end writes and the other reads. Raises what pyarrow raises."""

    place: fs.FileSystem
    path: str

    @classmethod
    def at(cls, store: str, name: str) -> StoreMarker:
        """Raises ConfigError, EnvironmentFault or StoreUnavailable, as the store itself does."""
        place, base = open_filesystem(store)
        return cls(place, f"{base}/{name}")

    def write(self) -> None:
        with self.place.open_output_stream(self.path) as stream:
            stream.write(self._content)

    def seen(self) -> bool:
        try:
            with self.place.open_input_stream(self.path, compression=None) as stream:
                return bool(stream.read() == self._content)
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        with suppress(FileNotFoundError):
            self.place.delete_file(self.path)

    def of(self, node: str) -> StoreMarker:
        """What a node writes when it has seen this one."""
        return StoreMarker(self.place, f"{self.path.removesuffix('.tmp')}-{node}.tmp")

    @property
    def _content(self) -> bytes:
        return os.path.basename(self.path).encode()


def versions() -> dict[str, str]:
    """Of what must be the same on every node. Imports nothing; Seesaw's has the first digits of its code's SHA-256."""
    found = {"Seesaw": f"{metadata.version('seesaw')} (code {_code()})"}
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    for package in ("ray", *LIBRARIES):
        for name in (package, f"{package}-cpu"):  # vLLM has another name where it is made for CPUs
            with suppress(metadata.PackageNotFoundError):
                found.setdefault(package, metadata.version(name))
    return found


def _code() -> str:
    root, whole = Path(__file__).resolve().parents[2], hashlib.sha256()
    for room in ("actors", "experiments", "results", "runner"):
        for file in sorted((root / room).rglob("*.py")):
            whole.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return whole.hexdigest()[:8]


def look(models: Sequence[Asked], store: str = "", mark: str = "", node: str = "") -> NodeReport:
    """The facts of the machine that this runs on; with a `mark`, seen from another, whether they share the store."""
    with ThreadPoolExecutor() as pool:  # each may wait some seconds for what the hub says
        lacks = {model[0]: why for model, why in zip(models, pool.map(_lacks, models), strict=True) if why}
    return NodeReport(versions(), _gpu_gb(), _machine_gb(), lacks, _kept(store, mark, node) if mark else "")


def engine_lacks(model: Asked) -> str:
    """What the engine's own preflight finds to be missing, or nothing. Raises ConfigError as the engine does."""
    _, plugin, settings = model
    engine = plugin.load()
    try:
        if hasattr(engine, "preflight"):
            engine.preflight(settings)
    except EnvironmentFault as fault:
        return str(fault)
    return ""


def _lacks(model: Asked) -> str:
    try:
        return engine_lacks(model)
    except SeesawError as error:  # the driver found nothing wrong with these settings: it is the node's files
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"


def _kept(store: str, name: str, node: str) -> str:
    try:
        mark = StoreMarker.at(store, name)
        if not mark.seen():
            return UNSEEN
        mark.of(node).write()
    except (SeesawError, OSError, pa.ArrowException) as error:
        return f"store '{store}' cannot be read and written: {first_line(error)}"
    return ""


def _gpu_gb() -> float:
    """Memory of the largest GPU that this process may use; infinite if nvidia-smi does not say."""
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
        return math.inf


def _machine_gb() -> float:
    """This machine's memory, or what its container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            total = min(total, int(Path(limit).read_text()))
    return total / 1e9


def ask(
    nodes: Sequence[str], models: Sequence[Asked], store: str, mark: str, leaving: Callable[[], bool]
) -> dict[str, NodeReport | str]:
    """The facts of every node, by its Ray node id, or why there are none. Waits no longer once it is `leaving`."""
    task: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_afar())
    plain = [(name, asdict(engine), settings) for name, engine, settings in models]
    asked = {}
    for node in nodes:
        there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        asked[there.remote(plain, store, mark, node)] = node
    ready: list[Any] = []
    late, deadline = [*asked], time.monotonic() + PATIENCE
    while late and not leaving() and (left := deadline - time.monotonic()) > 0:
        ready, late = ray.wait([*asked], num_returns=len(asked), timeout=min(left, STEP))
    for ref in late:
        ray.cancel(ref, force=True)
    answers: dict[str, NodeReport | str] = {asked[ref]: f"no answer within {PATIENCE:g} seconds" for ref in late}
    for ref in ready:
        try:
            answers[asked[ref]] = ray.get(ref)
        except RayError as error:
            answers[asked[ref]] = f"no answer: {first_line(error)}"
    return answers


def _afar() -> Callable[..., Any]:
    """`look` for a node that may have another Seesaw, or none: as a function in a function Ray sends its code along.

    Its arguments are plain, for the same reason: a class of Seesaw's would not arrive where Seesaw does not have it.
    """

    def afar(models: list[tuple[str, dict[str, Any], Mapping[str, Any]]], *asked: Any) -> Any:
        from importlib import metadata

        try:
            from seesaw.actors.plugins import Plugin
            from seesaw.runner.cluster.node_probe import look

            return look([(name, Plugin(**engine), settings) for name, engine, settings in models], *asked)
        except (ImportError, AttributeError, TypeError) as error:
            try:
                there = metadata.version("seesaw")
            except metadata.PackageNotFoundError:
                return "Seesaw is not installed there"
            return f"its Seesaw ({there}) is another than the driver's: {error}"

    return afar
