"""`diffusers`: any text-to-image pipeline of diffusers, from a hub repository or a local folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from actors.weights import content_identity, need_package, need_weights
from results.errors import ConfigError, EnvironmentFault, nearest

__all__ = ["DiffusersEngine", "DiffusersSettings"]

_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class DiffusersSettings:
    """`settings` of a model's YAML; what is left out is the pipeline's own default.

    `repo` is a hub repository or a local folder, `size` pixels a side, `guidance` the guidance scale.
    """

    repo: str
    revision: str = "main"
    variant: str | None = None
    dtype: str = "float32"
    size: int | None = None
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> DiffusersSettings:
        """Validated settings; ConfigError names the key that is wrong."""
        known = [f.name for f in fields(cls)]
        for key in settings:
            if key not in known:
                raise ConfigError(f"a diffusers model has no setting '{key}'{nearest(key, known)}")
        if not isinstance(settings.get("repo"), str):
            raise ConfigError("a diffusers model needs the setting 'repo': a hub repository or a local folder")
        read = cls(**settings)
        if read.dtype not in _DTYPES:
            raise ConfigError(f"dtype cannot be '{read.dtype}'{nearest(read.dtype, _DTYPES)}")
        for key in ("size", "steps"):
            value = getattr(read, key)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{key} must be a whole number of at least 1, got {value!r}")
        return read

    @property
    def folder(self) -> Path | None:
        """The local folder, or None for a hub repository."""
        path = Path(self.repo).expanduser()
        if (path / "model_index.json").is_file():
            return path
        if self.repo.startswith(("/", "./", "../", "~")):
            raise EnvironmentFault(f"no diffusers pipeline in '{path}': model_index.json is missing")
        return None

    def call(self) -> dict[str, Any]:
        """What the pipeline is called with beside the prompt."""
        given = {
            "height": self.size,
            "width": self.size,
            "num_inference_steps": self.steps,
            "guidance_scale": self.guidance,
            "negative_prompt": self.negative_prompt,
        }
        return {key: value for key, value in given.items() if value is not None}


class DiffusersEngine:
    """One pipeline on one device: the GPU that Ray gave to this process, or the CPU."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import torch
        from diffusers import AutoPipelineForText2Image

        read = DiffusersSettings.read(settings)
        self._call = read.call()
        load: Any = AutoPipelineForText2Image.from_pretrained
        self._pipeline: Any = load(
            read.folder or read.repo,
            revision=None if read.folder else read.revision,
            variant=read.variant,
            torch_dtype=getattr(torch, read.dtype),
            use_safetensors=True,
        ).to("cuda" if torch.cuda.is_available() else "cpu")
        self._pipeline.set_progress_bar_config(disable=True)

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        folder = DiffusersSettings.read(settings).folder
        return {"content": content_identity(folder)} if folder else {}

    @classmethod
    def preflight(cls, settings: Mapping[str, Any]) -> None:
        """EnvironmentFault if diffusers or the weights are missing."""
        need_package("diffusers", "diffusers")
        read = DiffusersSettings.read(settings)
        if read.folder is None:
            need_weights(read.repo, read.revision, "model_index.json")

    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[bytes]:
        """One call a batch, one CPU generator an image: image j depends on its own seed (diffusers#3158)."""
        import torch

        if adapter:
            raise ConfigError("the diffusers engine loads no adapters yet")
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        call = {**self._call}
        if "negative_prompt" in call:
            call["negative_prompt"] = [call["negative_prompt"]] * len(seeds)
        images = self._pipeline([prompt] * len(seeds), generator=generators, **call).images
        encoded = []
        for image in images:
            file = io.BytesIO()
            image.save(file, "PNG")
            encoded.append(file.getvalue())
        return encoded
