"""The settings of the engines that run a VLM (`vllm`, `transformers`), and what identifies a VLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from seesaw.actors.settings import STRICT, Text, read_settings
from seesaw.actors.weights import content_identity, need_package, need_weights
from seesaw.results.errors import ConfigError, EnvironmentFault

__all__ = ["PROMPT_FORMAT", "VLMSettings", "vlm_identity", "vlm_preflight"]

PROMPT_FORMAT = 1  #: raised whenever the same settings make another prompt, or weigh the choices otherwise
EMBEDDED = Path(__file__).parent / "pictogram" / "vlm"
PINNED = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, config=STRICT)
class VLMSettings:
    """`settings` of a VLM's YAML.

    `model` is a Hugging Face id, a folder, or `pictogram`, the embedded one. `prefix` and `suffix` stand around the
    question, `system` before everything. `leading_space` says whether an answer begins with a space; unset, the chat
    template says it (`Assistant: yes` or `assistant\\nyes`). `either_case` counts `Male` as `male`. `engine_args` go to
    `vllm.LLM` as they are; the transformers engine reads `mm_processor_kwargs` alone.
    """

    model: Annotated[str, Field(min_length=1, description="a Hugging Face id, a folder, or 'pictogram'")]
    revision: Text | None = None
    dtype: Text = "auto"
    answers: Literal["score", "constrain"] = "score"
    system: Text = ""
    prefix: Text = ""
    suffix: Text = ""
    leading_space: bool | None = None
    either_case: bool = False
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> VLMSettings:
        """Validated settings. Raises ConfigError that names the key that is wrong."""
        read = read_settings(cls, settings, "a VLM")
        remote = read.engine_args.get("trust_remote_code") and not read.folder
        if remote and not PINNED.fullmatch(read.revision or ""):
            raise ConfigError(
                f"'{read.model}': trust_remote_code runs code from the hub; pin 'revision' to a commit (40 hex digits)"
            )
        return read

    @property
    def folder(self) -> Path | None:
        """The folder that holds the model, or None for a hub id; EnvironmentFault if it should exist and does not."""
        path = EMBEDDED if self.model == "pictogram" else Path(self.model).expanduser()
        looks_local = self.model == "pictogram" or self.model.startswith(("/", "./", "../", "~"))
        if not looks_local and not path.is_dir():
            return None
        if not (path / "config.json").is_file():
            mend = "; run python -m seesaw.actors.pictogram.train_vlm" if path == EMBEDDED else ""
            raise EnvironmentFault(f"no VLM in {path}: config.json is missing{mend}")
        return path

    @property
    def source(self) -> str:
        """What `from_pretrained` and `vllm.LLM` take."""
        return str(self.folder or self.model)

    @property
    def precision(self) -> str:
        """The embedded VLM computes in float32, as it was trained; vLLM's `auto` would halve it."""
        return "float32" if self.model == "pictogram" and self.dtype == "auto" else self.dtype


def vlm_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies a VLM beyond its settings: the content of its folder, or its revision on the hub."""
    read = VLMSettings.read(settings)
    if read.folder is None:
        return {"prompt_format": PROMPT_FORMAT, "revision": read.revision or "main"}
    return {"prompt_format": PROMPT_FORMAT, "content": content_identity(read.folder)}


def vlm_preflight(settings: Mapping[str, Any], package: str, install: str) -> None:
    """EnvironmentFault if `package` or the weights of a hub model are missing."""
    read = VLMSettings.read(settings)
    need_package(package, install)
    need_weights(read.model, read.revision or "main", "config.json", read.folder)
