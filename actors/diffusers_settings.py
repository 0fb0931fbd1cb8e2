"""`settings` of a diffusers model: what a YAML may say, checked before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # Python's own will do from 3.12 on

from seesaw.actors.settings import STRICT, Fraction, Number, Positive, Text, read_settings
from seesaw.results.errors import ConfigError, EnvironmentFault

__all__ = ["EMBEDDED", "DiffusersSettings"]

EMBEDDED: Mapping[str, Path] = {"pictogram": Path(__file__).parent / "pictogram" / "tti"}  #: pipelines that are shipped
#: where weights lie is not what they are; the rest takes memory, and changes images by the noise of batching at most
_NO_PIXELS = ("repo", "revision", "prior", "loras", "batch", "offload", "vae_slicing")
_RESERVED = (
    "prompt", "num_images_per_prompt", "generator", "output_type", "return_dict", "height", "width",
    "num_inference_steps", "guidance_scale", "negative_prompt", "latents",
)  # fmt: skip


def _no_reserved(call: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in call:
        if key in _RESERVED:
            raise ValueError(f"call.{key} is not for `call`: it has a setting of its own, or none")
    return call


def _with(key: str) -> AfterValidator:
    """For a mapping that must have a text under `key`."""

    def check(given: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(given.get(key), str):
            raise PydanticCustomError("key", "Input should have a key")
        return given

    return AfterValidator(check)


Repository = Annotated[str, Field(min_length=1, description="a hub repository or a local folder")]
Side = Annotated[int, Field(ge=1)]


class Prior(TypedDict):
    """Where the prior of a decoder is."""

    __pydantic_config__ = STRICT  # type: ignore[misc]  # what pydantic reads it from
    repo: Repository
    revision: NotRequired[Text]


class Lora(TypedDict):
    """Where a LoRA is, and how much of it is added."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    repo: Repository
    weight_name: Annotated[str, Field(description="its .safetensors file")]
    revision: NotRequired[Text]
    scale: NotRequired[Fraction]


@dataclass(frozen=True, config=STRICT)
class DiffusersSettings:
    """What is left out is the pipeline's own default.

    `repo` is a hub repository, a local folder, or a pipeline that is shipped (`pictogram`). `size` is pixels a side, or
    [width, height]; `guidance` the guidance scale; `batch` the images of one pipeline call, at most the 8 that are one
    unit of work; `call` whatever else the pipeline's call takes; `without` components that are left out;
    `scheduler` a class of diffusers and what differs from the repository's own configuration; `prior` the repository of
    a decoder's prior, if its model card does not name one. `safety: keep` does without the pipeline's safety checker.
    `truncate` lets a prompt be cut that is longer than the text encoders read; without it such a prompt is refused.
    """

    repo: Repository
    revision: Text = "main"
    variant: Text | None = None
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    size: Annotated[
        Side | Annotated[Sequence[Side], Field(min_length=2, max_length=2)] | None,
        Field(description="pixels a side, or [width, height]"),
    ] = None
    steps: Positive | None = None
    guidance: Number | None = None
    negative_prompt: Text | None = None
    batch: Annotated[int, Field(ge=1, le=8, description="a whole number from 1 to 8")] = 8
    scheduler: Annotated[
        Annotated[Mapping[str, Any], _with("class")] | None,
        Field(description="a mapping with a 'class', for example {class: EulerDiscreteScheduler}"),
    ] = None
    prior: Prior | None = None
    loras: Annotated[Sequence[Lora], Field(description="a list")] = ()
    call: Annotated[Mapping[str, Any], AfterValidator(_no_reserved)] | None = None
    without: Annotated[Sequence[str], Field(description="a list of components")] = ()
    offload: Literal["none", "model", "sequential"] = "none"
    vae_slicing: bool = False
    vae_tiling: bool = False
    channels_last: bool = False
    compile: bool = False
    attention: Text | None = None
    quantization: Annotated[
        Annotated[Mapping[str, Any], _with("backend")] | None,
        Field(description="a mapping with a 'backend', for example {backend: bitsandbytes_4bit}"),
    ] = None
    trust_remote_code: bool = False
    safety: Literal["drop", "keep"] = "drop"
    truncate: bool = False

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> DiffusersSettings:
        """Validated settings. Raises ConfigError that names the key that is wrong and what would be right."""
        read = read_settings(cls, settings, "a diffusers model")
        if read.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", read.revision):
            raise ConfigError("trust_remote_code needs a pinned revision: the 40 hex digits of a commit that you read")
        return read

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
        """The settings, except weights, that change a pixel and are not the default; in one form, however given."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_PIXELS}
        values["without"] = sorted(values["without"]) or None
        values["size"] = list(self.sides) if self.size is not None else None
        values["guidance"] = None if self.guidance is None else float(self.guidance)
        defaults = {f.name: f.default for f in fields(self)}
        return {key: value for key, value in values.items() if value not in (None, {}, defaults[key])}

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
