"""What a node reports about itself: its versions, its memory, what its engines lack, whether it sees the store.

Each node runs one probe, a Ray task that takes no CPU and no GPU. All nodes are probed at once, within `PATIENCE`.
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

from seesaw.actors.engines import PromptLength
from seesaw.actors.plugins import Plugin
from seesaw.results.errors import EnvironmentFault, SeesawError
from seesaw.results.secrets import first_line
from seesaw.results.store.filesystem import open_filesystem

__all__ = [
    "LIBRARIES",
    "EngineCheck",
    "NodeReport",
    "StoreMarker",
    "engine_lacks",
    "probe_nodes",
    "probe_this_machine",
    "versions",
]

PATIENCE = 60.0  #: seconds that a node has to answer
STEP = 0.5  #: seconds between two looks whether anything still waits for the answers
LIBRARIES = ("torch", "diffusers", "transformers", "vllm")  #: whose versions change the numbers
UNSEEN = "unseen"  #: what a node reports of the store if it does not see the driver's marker there

EngineCheck = tuple[str, Plugin, Mapping[str, Any]]  #: the name of a model or VLM, its engine, the engine's settings


@dataclass(frozen=True)
class NodeReport:
    versions: Mapping[str, str]  #: of Seesaw, Python, Ray and LIBRARIES, as far as they are installed
    gpu_gb: float = math.inf  #: of its largest GPU; infinite if unknown
    memory_gb: float = math.inf
    lacks: Mapping[str, str] = field(default_factory=dict)  #: model or VLM -> why it cannot be loaded there
    store: str = ""  #: why its results could not be stored; "" if they can
    #: model -> how much it reads of each prompt that was to be counted, where its tokenizer is there
    lengths: Mapping[str, Sequence[PromptLength]] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreMarker:
    """A file of a few bytes in the store, which one machine writes and another reads. Raises what pyarrow raises."""

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

    def reply_of(self, node: str) -> StoreMarker:
        """The marker that a node writes once it has seen this one."""
        return StoreMarker(self.place, f"{self.path.removesuffix('.tmp')}-{node}.tmp")

    @property
    def _content(self) -> bytes:
        return os.path.basename(self.path).encode()


def versions() -> dict[str, str]:
    """The versions that must be the same on every node. Imports none of the libraries.

    Seesaw's version has the first digits of the SHA-256 of its code.
    """
    installed = {"Seesaw": f"{metadata.version('seesaw')} (code {_code()})"}
    installed["Python"] = ".".join(platform.python_version_tuple()[:2])
    for package in ("ray", *LIBRARIES):
        for name in (package, f"{package}-cpu"):  # vLLM for CPUs has another name
            with suppress(metadata.PackageNotFoundError):
                installed.setdefault(package, metadata.version(name))
    return installed


def _code() -> str:
    """The first digits of the SHA-256 of Seesaw's Python files; the same in a checkout and where it is installed."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    top = root / "seesaw" if (root / "seesaw").is_dir() else root  # a checkout, whose rooms lie beside seesaw/
    files = {file.name: file for file in top.glob("*.py")}
    for room in ("actors", "experiments", "results", "runner"):
        files |= {str(file.relative_to(root)): file for file in (root / room).rglob("*.py")}
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name].read_bytes())
    return digest.hexdigest()[:8]


def probe_this_machine(
    models: Sequence[EngineCheck],
    store: str = "",
    marker: str = "",
    node: str = "",
    uncounted: Mapping[str, Sequence[str]] | None = None,
) -> NodeReport:
    """The report of the machine that this runs on.

    `marker` is the name of the driver's marker in the store, where the driver is on another machine: then the report
    says whether the two share the store. `uncounted` are the prompts to count the tokens of, by model.
    """
    with ThreadPoolExecutor() as pool:  # each may wait some seconds for what the hub says
        lacks = {model[0]: why for model, why in zip(models, pool.map(_lacks, models), strict=True) if why}
    problem = _store_problem(store, marker, node) if marker else ""
    return NodeReport(versions(), _gpu_gb(), _machine_gb(), lacks, problem, _lengths(models, lacks, uncounted or {}))


def _lengths(
    models: Sequence[EngineCheck], lacks: dict[str, str], uncounted: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[PromptLength]]:
    """The lengths of the prompts of each model that can be loaded here; `lacks` gets those whose settings are wrong."""
    lengths: dict[str, Sequence[PromptLength]] = {}
    for name, plugin, settings in models:
        if name not in uncounted or name in lacks:
            continue
        try:
            counted = plugin.load().prompt_lengths(settings, uncounted[name])
        except SeesawError as error:  # a prompt in the settings themselves is too long
            lacks[name] = str(error)
        else:
            lengths |= {name: counted} if counted is not None else {}
    return lengths


def engine_lacks(model: EngineCheck) -> str:
    """What the engine's own preflight finds missing; "" if nothing. Raises ConfigError as the engine does."""
    _, plugin, settings = model
    engine = plugin.load()
    try:
        if hasattr(engine, "preflight"):
            engine.preflight(settings)
    except EnvironmentFault as fault:
        return str(fault)
    return ""


def _lacks(model: EngineCheck) -> str:
    try:
        return engine_lacks(model)
    except SeesawError as error:  # the driver found nothing wrong with the settings, so it is due to the node's files
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"


def _store_problem(store: str, name: str, node: str) -> str:
    try:
        marker = StoreMarker.at(store, name)
        if not marker.seen():
            return UNSEEN
        marker.reply_of(node).write()
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
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return max(float(line) for line in output.splitlines()) * 2**20 / 1e9
    except (OSError, subprocess.SubprocessError, ValueError):
        return math.inf


def _machine_gb() -> float:
    """This machine's memory, or what its container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            total = min(total, int(Path(limit).read_text()))
    return total / 1e9


def probe_nodes(
    nodes: Sequence[str],
    models: Sequence[EngineCheck],
    store: str,
    marker: str,
    leaving: Callable[[], bool],
    uncounted: Mapping[str, Sequence[str]],
) -> dict[str, NodeReport | str]:
    """The report of every node, by its Ray node id, or why there is none. Stops waiting once `leaving` is true."""
    task: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_remote_probe())
    plain = [(name, asdict(engine), settings) for name, engine, settings in models]
    node_of = {}
    for node in nodes:
        there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        node_of[there.remote(plain, store, marker, node, dict(uncounted))] = node
    ready: list[Any] = []
    late, deadline = [*node_of], time.monotonic() + PATIENCE
    while late and not leaving() and (left := deadline - time.monotonic()) > 0:
        ready, late = ray.wait([*node_of], num_returns=len(node_of), timeout=min(left, STEP))
    for ref in late:
        ray.cancel(ref, force=True)
    answers: dict[str, NodeReport | str] = {node_of[ref]: f"no answer within {PATIENCE:g} seconds" for ref in late}
    for ref in ready:
        try:
            answers[node_of[ref]] = ray.get(ref)
        except RayError as error:
            answers[node_of[ref]] = f"no answer: {first_line(error)}"
    return answers


def _remote_probe() -> Callable[..., Any]:
    """`probe_this_machine` for a node that may have another version of Seesaw, or none.

    Ray sends the code of a function that is defined inside another one along with the task. The arguments are plain,
    since a class that the node's Seesaw does not have would not arrive.
    """

    def probe(models: list[tuple[str, dict[str, Any], Mapping[str, Any]]], *asked: Any) -> Any:
        from importlib import metadata

        try:
            from seesaw.actors.plugins import Plugin
            from seesaw.runner.cluster.node_probe import probe_this_machine

            return probe_this_machine([(name, Plugin(**engine), settings) for name, engine, settings in models], *asked)
        except (ImportError, AttributeError, TypeError) as error:
            try:
                there = metadata.version("seesaw")
            except metadata.PackageNotFoundError:
                return "Seesaw is not installed there"
            return f"its Seesaw ({there}) is another than the driver's: {error}"

    return probe
