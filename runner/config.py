"""The config of an experiment: one structured schema, YAML onto it, `k=v` onto that.

CONFIG is the path of a YAML file or the name of one in configs/. A model or VLM is the name of a YAML file in
configs/models or configs/vlms or beside the config, a path, or a mapping in place; so is a dataset. Unknown names are
refused, with the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from seesaw.actors.settings import Number, Positive, Whole, read_settings
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.secrets import without_secrets
from seesaw.runner.config_file import find_yaml, override, read_yaml
from seesaw.runner.run_places import places_of

__all__ = [
    "CLIENT",
    "CONFIGS",
    "ClusterConfig",
    "Config",
    "ModelConfig",
    "VLMConfig",
    "load_config",
    "load_named",
    "override_config",
]

#: why no run goes through a Ray client
CLIENT = (
    "the driver of a Ray client is outside the cluster, and all data would go through one connection of a proxy; run "
    "the driver on a node of the cluster (`ray job submit`, or ssh to the head) with cluster.address=auto"
)
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


#: numbers in YAML are text too where text is asked for: `name: 2024`
_LAX = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


def _address(text: str) -> str:
    if text not in ("local", "auto") and not re.fullmatch(r"[\w.-]+:\d+", text):
        hint = CLIENT if text.startswith("ray://") else "expected 'local', 'auto' or HOST:PORT of a Ray head"
        raise ValueError(f"cluster.address: '{text}' is not supported: {hint}")
    return text


def _host_and_port(text: str) -> str:
    match = re.fullmatch(r"(?:[a-zA-Z0-9-]{1,63}\.)*[a-zA-Z0-9-]{1,63}:(\d{1,5})", text)
    if match is None or not 0 < int(match[1]) < 2**16:
        raise ValueError(f"cluster.metrics: expected HOST:PORT, for example 127.0.0.1:9400, got '{text}'")
    return text


def _local(run: str) -> str:
    if "://" in run:
        raise ValueError(f"run: '{run}' is a URI; a run directory is a local one (store may be a URI)")
    return run


def _folder_name(name: str) -> str:
    if not name.strip() or "/" in name or name.startswith(".") or len(name.encode()) > 200 or not name.isprintable():
        raise ValueError(f"name must be usable as a folder's name, got {name[:200]!r}")
    return name


def _label(name: str) -> str:
    if len(name) > 100 or not name.isprintable():
        raise ValueError(f"name must be printable and have at most 100 letters, got {name!r}")
    return name


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number of seconds above 0")]


@dataclass(config=_LAX)
class ClusterConfig:
    """Where and how wide a run goes. Nothing here changes a result, so nothing here is part of any identity."""

    #: `local`: a Ray of its own; `auto`: the cluster of which this machine is a node; HOST:PORT
    address: Annotated[str, AfterValidator(_address)] = "local"
    cpus: Positive | None = None  #: CPUs of a local Ray; all of the machine's by default
    gpus: Whole | None = None  #: GPUs of a local Ray; all that are found by default
    #: how many replicas of a model or VLM, by name; by default as many as are worth their load
    replicas: dict[str, Positive] = field(default_factory=dict)
    in_flight: Positive = 2  #: batches at a replica at once: one that runs and the next, so that it never waits
    attempts: Positive = 4  #: how often a batch is tried before it is set aside
    hang_seconds: Seconds = 1800.0  #: a replica that makes no progress for so long is taken to hang, and is replaced
    #: how long a run waits for a store that is full or unavailable, a node that can serve, or a service
    wait_seconds: Seconds = 3600.0
    #: HOST:PORT where the driver serves its figures to Prometheus; nowhere by default
    metrics: Annotated[str, AfterValidator(_host_and_port)] | None = None
    #: memory of a local Ray for images on their way to VQA
    object_store_gb: Annotated[float, Field(ge=0.075, lt=100_000, description="at least 0.075")] = 1.0


@dataclass(config=_LAX)
class Config:
    """Top-level keys. Keys of type Any have several forms; what reads them checks them."""

    name: Annotated[str, AfterValidator(_folder_name)] = ""  #: by default the name of its file
    dataset: Annotated[
        Annotated[str, Field(strict=True)] | dict[str, Any], Field(description="a name, a path or a mapping")
    ] = "occupation"
    models: Any = None
    subjects: Any = "all"
    axes: Any = "all"
    images: Any = None  #: a number, or {initial: 192, counterfactual: 48}, the default: `seesaw.experiments.images`
    seed: Whole = 0
    metric: Any = "nominal"
    targets: Any = None
    intervention: str | None = None  #: where not given, `uniform` for a sweep and `target` for a mitigation
    priorities: Any = None  #: of mitigate, as the seven keys below: `seesaw.experiments.assignments`
    epsilon: Any = 0.35
    margin: Any = 0.0
    strategy: Any = "greedy"
    mitigator: str = "pm"
    normalize: bool = False
    max_steps: Any = 5
    fresh: bool = True
    vqa: Any = "pictogram-vlm"  #: one VLM, or a list of two: a sweep asks both, and figures are those of the first
    store: str | None = None
    run: Annotated[str, AfterValidator(_local)] | None = None
    cluster: ClusterConfig = field(default_factory=ClusterConfig)


@dataclass(config=_LAX)
class _Served:
    """What a model or a VLM is, and what it takes to serve it."""

    name: Annotated[str, AfterValidator(_label)] = ""
    engine: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  #: all of it is identity
    gpus: Number = 0.0
    cpus: Number = 1.0
    threads: Positive = 1  #: CPU threads of the engine; fixed, because sums of floats depend on their number
    memory_gb: Number = 0.0  #: of the GPU with gpus > 0, else of the machine
    load_seconds: Number = 0.0
    licence: str = ""


@dataclass(config=_LAX)
class ModelConfig(_Served):
    seconds_per_image: Number = 0.0
    image_kb: Number = 0.0
    gated: bool = False
    truth: str | None = None  #: the pictogram world that it draws or was trained on; its exact IS is shown beside


@dataclass(config=_LAX)
class VLMConfig(_Served):
    seconds_per_question: Number = 0.0
    questions: list[str] = field(default_factory=list)  #: the only ones that it can answer; empty: any


Spec = TypeVar("Spec", ModelConfig, VLMConfig)


def load_config(source: str, overrides: Sequence[str] = ()) -> tuple[Config, list[Path]]:
    """A config and the folders where what it names is looked up first.

    The config.yaml of a run directory is about that directory and its store, wherever they lie now.

    Raises:
        ConfigError: no such config, not YAML, an unknown key, a wrong type, an override that is not `k=v`.
    """
    path = find_yaml(source, CONFIGS, "config")
    read_settings(Config, override({}, overrides), where="overrides: ")
    values = override({**read_yaml(path), **places_of(path)}, overrides)
    config = read_settings(Config, {**values, "name": values.get("name") or path.stem}, where=f"{path}: ")
    return config, [path.resolve().parent, Path.cwd()]


def override_config(config: Config, overrides: Sequence[str], allowed: Sequence[str]) -> Config:
    """`config` with `k=v` overrides of the allowed keys. Raises ConfigError as `load_config` does."""
    values = override({}, overrides)
    for key in values:
        if key not in allowed:
            raise ConfigError(f"'{key}' cannot be set here{nearest(str(key), allowed)}")
    return read_settings(Config, {**{k: getattr(config, k) for k in allowed}, **values}, where="overrides: ")


def load_named(schema: type[Spec], kind: str, entry: Any, search: Sequence[Path]) -> Spec:
    """A model or VLM from its name, its path or a mapping in place; `kind` is `models` or `vlms`."""
    what = kind.removesuffix("s")
    if isinstance(entry, Mapping):
        where = f"the {kind} entry"
        loaded = read_settings(schema, entry, where=f"{where}: ")
    elif isinstance(entry, str) and entry:
        beside = [folder / f"{entry}{suffix}" for folder in search for suffix in ("", ".yaml", ".yml")]
        path = next((p for p in beside if p.suffix in (".yaml", ".yml") and p.is_file()), None)
        path = path or find_yaml(entry, CONFIGS / kind, what)
        where, values = str(path), read_yaml(path)
        loaded = read_settings(schema, {**values, "name": values.get("name") or path.stem}, where=f"{where}: ")
    else:
        raise ConfigError(f"{kind}: expected a name, a path or a mapping, got {entry!r}")
    for key in ("name", "engine"):
        if not getattr(loaded, key):
            raise ConfigError(f"{where}: a {what} needs a '{key}'")
    settings = loaded.settings
    secret = [
        key for key, value in settings.items() if value and re.search(r"(?i)token$|secret|password|api_?key", key)
    ]
    if secret or without_secrets(str(settings)) != str(settings):
        raise ConfigError(f"{where}: settings hold a token or password; set it in the environment (HF_TOKEN)")
    return loaded
