"""What an engine is, and where the named ones live.

An engine turns prompts into images (TTI) or images and questions into answers (VQA). It knows nothing of Ray, of the
store or of the experiment; the actors around it know nothing of diffusers, vLLM or pictograms. A config names one of
`TTI_ENGINES` or `VQA_ENGINES`, or any `package.module:Class` that can be imported where the actor runs.

An engine class is made as `Engine(settings)` in the actor's own process. `settings` is the YAML's mapping of the same
name, and all of it is part of the identity of what the engine makes, except for the names in the class' `inert`, if it
has that: what changes no pixel. What an engine adds to identity by itself (weights' content, a renderer's version) its
class says in the classmethod `identity(settings)`, if it has one; it must be cheap and needs no accelerator. A
classmethod `preflight(settings)`, if there is one, raises EnvironmentFault before anything starts when a package or
weights are missing.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from seesaw.results.errors import ConfigError, nearest
from seesaw.results.secrets import first_line

__all__ = [
    "ABSENT",
    "BLANK",
    "FLAGGED",
    "REASONS",
    "TTI_ENGINES",
    "VQA_ENGINES",
    "Reply",
    "TTIEngine",
    "VQAEngine",
    "VQAQuestion",
    "Withheld",
    "engine_class",
    "own_code",
]

TTI_ENGINES: Mapping[str, str] = {
    "diffusers": "seesaw.actors.diffusers_engine:DiffusersEngine",
    "folder": "seesaw.actors.folder_engine:FolderEngine",
    "pictogram-draw": "seesaw.actors.pictogram.engine:PictogramDraw",
    "simulated": "seesaw.actors.simulated:SimulatedTTI",
}
VQA_ENGINES: Mapping[str, str] = {
    "vllm": "seesaw.actors.vllm_engine:VLLMEngine",
    "transformers": "seesaw.actors.transformers_engine:TransformersEngine",
    "simulated": "seesaw.actors.simulated:SimulatedVQA",
}


@dataclass(frozen=True)
class VQAQuestion:
    """A question to an image and the answers that it allows."""

    text: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Reply:
    """An answer, always one of the choices.

    `probabilities` over the choices in their order, summing to 1; `mass` is the probability that the VLM itself put on
    the choices together before they were normalised (near 0: it would rather have said something else).
    """

    answer: str
    probabilities: tuple[float, ...]
    mass: float


#: Why an image is withheld: it shows nothing; a safety checker caught it; there is none (the rest of a whole batch).
BLANK, FLAGGED, ABSENT = REASONS = ("blank", "flagged", "absent")


@dataclass(frozen=True)
class Withheld:
    """An image that was made and must not be asked: `reason` is one of REASONS."""

    image: bytes | Image.Image
    reason: str


class TTIEngine(Protocol):
    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[bytes | Image.Image | Withheld]:
        """One image a seed, in order: encoded (PNG), or to be encoded while the next batch is made.

        Image j depends on prompt, adapter and seeds[j] alone. What is blank is found out by the actor too.
        """
        ...


class VQAEngine(Protocol):
    def check(self, questions: Sequence[VQAQuestion]) -> None:
        """Raise EnvironmentFault if a choice of these questions could never be answered by this engine."""
        ...

    def ask(self, requests: Sequence[tuple[bytes, Sequence[VQAQuestion]]]) -> list[list[Reply]]:
        """Ask every image (encoded bytes) its questions; replies in the same order. Deterministic for one call."""
        ...


def engine_class(name: str, known: Mapping[str, str], what: str = "engine") -> type[Any]:
    """The class behind the name of an engine, or of `what` else; ConfigError (exit 2) for a name that is none."""
    path = known.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(f"{what} '{name}' is unknown{nearest(name, known)}; or give 'package.module:Class'")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name and module.split(".")[0] == error.name.split(".")[0]:
            raise ConfigError(f"{what} '{name}': no module '{error.name}' can be imported") from error
        raise
    except AttributeError as error:
        raise ConfigError(f"{what} '{name}': module '{module}' has no '{attribute}'") from error
    except Exception as error:
        if name in known:
            raise
        told = f"{type(error).__name__}: {first_line(error)}"  # a user's own file, which has a mistake
        raise ConfigError(f"{what} '{name}': module '{module}' cannot be imported: {told}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{what} '{name}': '{path}' is not a class")
    return found


def own_code(name: str, found: type[Any]) -> dict[str, str]:
    """What identifies the class of a user's own (`module:Class`): its source file; nothing for one by name."""
    if ":" not in name:
        return {}
    return {"code": hashlib.sha256(inspect.getsource(inspect.getmodule(found) or found).encode()).hexdigest()}
