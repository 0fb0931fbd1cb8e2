"""What an engine is, and where the named ones live.

An engine turns prompts into images (TTI) or images and questions into answers (VQA). It knows nothing of Ray, of the
store or of the experiment; the actors around it know nothing of diffusers, vLLM or pictograms. A config names one of
`TTI_ENGINES` or `VQA_ENGINES`, or a class of the user's as `module:Class` (`seesaw.actors.plugins`).

An engine class is made as `Engine(settings)` in the actor's own process. `settings` is the YAML's mapping of the same
name. All of it is part of the identity of what the engine makes, except for the names in the class attribute `inert`,
if there is one: settings that change no pixel. The classmethod `identity(settings)`, if there is one, returns what the
engine adds to the identity by itself (weights' content, a renderer's version); it must be cheap and need no
accelerator. The classmethod `preflight(settings)`, if there is one, raises EnvironmentFault before anything starts if a
package or weights are missing. The classmethod `prompt_lengths(settings, prompts)` of a TTI engine, if there is one,
says how much of each prompt the model reads (a PromptLength each, in order); None where that cannot be told on this
machine, for want of the tokenizer. A prompt that is too long is refused before work starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

__all__ = [
    "ABSENT",
    "BLANK",
    "FLAGGED",
    "REASONS",
    "TTI_ENGINES",
    "VQA_ENGINES",
    "PromptLength",
    "Reply",
    "TTIEngine",
    "VQAEngine",
    "VQAQuestion",
    "Withheld",
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
    "misreading": "seesaw.actors.misreading:MisreadingVQA",
    "simulated": "seesaw.actors.simulated:SimulatedVQA",
}


@dataclass(frozen=True)
class PromptLength:
    """How much of a prompt a model reads. A model with several text encoders reads what any of them reads."""

    used: int  #: tokens of the prompt, with those that mark its beginning and end
    limit: int | None  #: tokens that the model reads; None if it reads all, or if it is not known
    lost: str = ""  #: the words that it would not read
    cut_by: tuple[str, ...] = ()  #: text encoders that do not read all of it, though another one does
    is_cut_on_purpose: bool = False  #: the settings say that words may be lost


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


#: why an image is withheld: it shows nothing; it is unsafe, a checker or a service says; there is none in a batch that
#: must be whole
BLANK, FLAGGED, ABSENT = REASONS = ("blank", "flagged", "absent")


@dataclass(frozen=True)
class Withheld:
    """An image that must not be asked about; `reason` is one of REASONS.

    `image` is None if there is no picture, as when a service refuses to make one: `Withheld(None, "flagged")`. It is
    recorded and counted by group like one that was caught after it was made; the others of its batch count.

    Example::

        return [seesaw.Withheld(None, "flagged") if refused(reply) else reply.image for reply in replies]
    """

    image: bytes | Image.Image | None
    reason: str


class TTIEngine(Protocol):
    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[bytes | Image.Image | Withheld]:
        """One image a seed, in order: encoded (PNG), or a PIL image, which is encoded while the next batch is made.

        Image j depends on prompt, adapter and seeds[j] alone. The actor looks for blank images too. An image that is
        refused is `Withheld(None, "flagged")`.

        Raises:
            TryLater: the service asks for patience; the batch is tried again after a pause.
        """
        ...


class VQAEngine(Protocol):
    def check(self, questions: Sequence[VQAQuestion]) -> None:
        """Raise EnvironmentFault if this engine could never give one of the choices of these questions as an answer."""
        ...

    def ask(self, requests: Sequence[tuple[bytes, Sequence[VQAQuestion]]]) -> list[list[Reply]]:
        """Ask the questions about every image (encoded bytes); the replies are in the same order.

        The same call always gives the same replies.
        """
        ...
