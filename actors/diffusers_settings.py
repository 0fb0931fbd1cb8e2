"""`settings` of a diffusers model: what a YAML may say, checked before anything is loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from seesaw.results.errors import ConfigError, EnvironmentFault, nearest

__all__ = ["EMBEDDED", "DiffusersSettings"]

DTYPES = ("float32", "float16", "bfloat16")
OFFLOAD = ("none", "model", "sequential")
SAFETY = ("drop", "keep")
EMBEDDED: Mapping[str, Path] = {"pictogram": Path(__file__).parent / "pictogram" / "tti"}  #: pipelines that are shipped
#: where weights lie is not what they are; the rest takes memory, and changes images by the noise of batching at most
_NO_PIXELS = ("repo", "revision", "prior", "loras", "batch", "offload", "vae_slicing")
_RESERVED = (
    "prompt", "num_images_per_prompt", "generator", "output_type", "return_dict", "height", "width",
    "num_inference_steps", "guidance_scale", "negative_prompt", "latents",
)  # fmt: skip


@dataclass(frozen=True)
class DiffusersSettings:
    """What is left out is the pipeline's own default.

    `repo` is a hub repository, a local folder, or a pipeline that is shipped (`pictogram`). `size` is pixels a side, or
    [width, height]; `guidance` the guidance scale; `batch` the images of one pipeline call, at most the 8 that are one
    unit of work; `call` whatever else the pipeline's call takes; `without` components that are left out;
    `scheduler` a class of diffusers and what differs from the repository's own configuration; `prior` the repository of
    a decoder's prior, if its model card does not name one. `safety: keep` does without the pipeline's safety checker.
    """

    repo: str
    revision: str = "main"
    variant: str | None = None
    dtype: str = "float32"
    size: int | Sequence[int] | None = None
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    batch: int = 8
    scheduler: Mapping[str, Any] | None = None
    prior: Mapping[str, Any] | None = None
    loras: Sequence[Mapping[str, Any]] = ()
    call: Mapping[str, Any] | None = None
    without: Sequence[str] = ()
    offload: str = "none"
    vae_slicing: bool = False
    vae_tiling: bool = False
    channels_last: bool = False
    compile: bool = False
    attention: str | None = None
    quantization: Mapping[str, Any] | None = None
    trust_remote_code: bool = False
    safety: str = "drop"

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> DiffusersSettings:
        """Validated settings; ConfigError names the key that is wrong and what would be right."""
        known = [f.name for f in fields(cls)]
        for key in settings:
            if key not in known:
                raise ConfigError(f"a diffusers model has no setting '{key}'{nearest(key, known)}")
        if not isinstance(settings.get("repo"), str) or not settings["repo"]:
            raise ConfigError("a diffusers model needs the setting 'repo': a hub repository or a local folder")
        read = cls(**settings)
        for key, choices in (("dtype", DTYPES), ("offload", OFFLOAD), ("safety", SAFETY)):
            if getattr(read, key) not in choices:
                raise ConfigError(f"{key} cannot be {getattr(read, key)!r}{nearest(str(getattr(read, key)), choices)}")
        for key in ("vae_slicing", "vae_tiling", "channels_last", "compile", "trust_remote_code"):
            if not isinstance(getattr(read, key), bool):
                raise ConfigError(f"{key} must be true or false, got {getattr(read, key)!r}")
        for key in ("revision", "variant", "negative_prompt", "attention"):
            value = getattr(read, key)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{key} must be text, got {value!r}; a number needs quotes there")
        read._check_numbers()
        read._check_mappings()
        if read.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", read.revision):
            raise ConfigError("trust_remote_code needs a pinned revision: the 40 hex digits of a commit that you read")
        return read

    def _check_numbers(self) -> None:
        if self.steps is not None and not _whole(self.steps):
            raise ConfigError(f"steps must be a whole number of at least 1, got {self.steps!r}")
        if self.size is not None:
            sides = self.size if isinstance(self.size, (list, tuple)) else [self.size]
            if not all(map(_whole, sides)) or (isinstance(self.size, (list, tuple)) and len(sides) != 2):
                raise ConfigError(f"size must be pixels a side, or [width, height], got {self.size!r}")
        if not _whole(self.batch) or self.batch > 8:
            raise ConfigError(f"batch must be a whole number from 1 to 8, got {self.batch!r}")
        if self.guidance is not None and (
            isinstance(self.guidance, bool)
            or not isinstance(self.guidance, (int, float))
            or not 0 <= self.guidance < math.inf
        ):
            raise ConfigError(f"guidance must be a number of at least 0, got {self.guidance!r}")

    def _check_mappings(self) -> None:
        for key in ("scheduler", "call", "quantization", "prior"):
            if getattr(self, key) is not None and not isinstance(getattr(self, key), Mapping):
                raise ConfigError(f"{key} must be a mapping, got {getattr(self, key)!r}")
        if self.scheduler is not None and not isinstance(self.scheduler.get("class"), str):
            raise ConfigError("scheduler needs a 'class', for example {class: EulerDiscreteScheduler}")
        if self.quantization is not None and not isinstance(self.quantization.get("backend"), str):
            raise ConfigError("quantization needs a 'backend', for example {backend: bitsandbytes_4bit}")
        for key in self.call or {}:
            if key in _RESERVED:
                raise ConfigError(f"call.{key} is not for `call`: it has a setting of its own, or none")
        if not isinstance(self.without, (list, tuple)) or not all(isinstance(name, str) for name in self.without):
            raise ConfigError(f"without must be a list of components, got {self.without!r}")
        if not isinstance(self.loras, (list, tuple)):
            raise ConfigError(f"loras must be a list, got {self.loras!r}")
        for lora in self.loras:
            scale = lora.get("scale", 1.0) if isinstance(lora, Mapping) else 1.0
            if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
                raise ConfigError(f"loras: scale must be a number, got {scale!r}")
        sources = [("loras", ("repo", "revision", "weight_name", "scale"), lora) for lora in self.loras]
        for what, keys, source in [*sources, *([("prior", ("repo", "revision"), self.prior)] if self.prior else [])]:
            if not isinstance(source, Mapping) or not isinstance(source.get("repo"), str) or not source["repo"]:
                raise ConfigError(f"{what} needs a 'repo': a hub repository or a local folder, got {source!r}")
            if not isinstance(source.get("revision", "main"), str):
                raise ConfigError(f"{what}: revision must be text, got {source['revision']!r}; a number needs quotes")
            if what == "loras" and not isinstance(source.get("weight_name"), str):
                raise ConfigError(f"loras: '{source['repo']}' needs a 'weight_name', its .safetensors file")
            for key in source:
                if key not in keys:
                    raise ConfigError(f"{what} has no '{key}'{nearest(key, keys)}")

    def folder_of(self, repo: str) -> Path | None:
        """The local folder (or file) that `repo` means, or None for a hub repository.

        Raises EnvironmentFault for what can only be a path and does not exist.
        """
        path = EMBEDDED.get(repo, Path(repo).expanduser())
        if path.exists():
            return path
        if repo.startswith(("/", "./", "../", "~")) or repo in EMBEDDED:
            raise EnvironmentFault(f"'{path}' does not exist; expected the folder of a diffusers pipeline")
        return None

    @property
    def folder(self) -> Path | None:
        """The pipeline's local folder, or None for a hub repository; EnvironmentFault if it is no pipeline's."""
        path = self.folder_of(self.repo)
        if path is not None and not (path / "model_index.json").is_file():
            raise EnvironmentFault(f"no diffusers pipeline in '{path}': model_index.json is missing")
        return path

    def pixels(self) -> dict[str, Any]:
        """What changes a pixel and is not weights, where it is not the default; the same whatever way it was said."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_PIXELS}
        said["without"] = sorted(said["without"]) or None
        said["size"] = list(self.sides) if self.size is not None else None
        said["guidance"] = None if self.guidance is None else float(self.guidance)
        defaults = {f.name: f.default for f in fields(self)}
        return {key: value for key, value in said.items() if value not in (None, {}, defaults[key])}

    @property
    def sides(self) -> tuple[Any, Any]:
        """Width and height in pixels; None for the pipeline's own."""
        return tuple(self.size) if isinstance(self.size, (list, tuple)) else (self.size, self.size)

    @cached_property
    def call_arguments(self) -> dict[str, Any]:
        """What the pipeline is called with beside prompt, number, generators and output type."""
        width, height = self.sides
        given = {
            "height": height,
            "width": width,
            "num_inference_steps": self.steps,
            "guidance_scale": self.guidance,
            "negative_prompt": self.negative_prompt,
            **(self.call or {}),
        }
        return {key: value for key, value in given.items() if value is not None}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
