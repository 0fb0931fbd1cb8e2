"""`diffusers`: any text-to-image pipeline of diffusers, from a hub repository or a local folder."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seesaw.actors.cut_prompts import CutPrompts
from seesaw.actors.device import is_out_of_memory
from seesaw.actors.diffusers_load import load_pipeline
from seesaw.actors.diffusers_settings import EMBEDDED, DiffusersSettings
from seesaw.actors.engines import BLANK, FLAGGED, PromptLength, Withheld
from seesaw.actors.prompt_length import own_prompts, tokenizers_of, whole_length
from seesaw.actors.weights import content_identity, need_package, need_pipeline, need_weights
from seesaw.results.errors import ConfigError, EnvironmentFault
from seesaw.results.secrets import first_line, without_secrets

__all__ = ["DiffusersEngine"]

log = logging.getLogger(__name__)
MAX_ENCODED = 4  #: encoded prompts that are kept (FLUX: 35 MB each), since the batches of a cell follow each other


class DiffusersEngine:
    """One pipeline on one device: the GPU that Ray gave to this process, or the CPU.

    An image depends on its prompt and its own seed: each has a generator of its own, on the CPU (diffusers#3158). The
    same images made in another call differ by the numerical noise of batching alone, and `batch` says what a call
    makes.
    """

    #: `identity` has all of them that change a pixel, in one form
    inert = frozenset(f.name for f in fields(DiffusersSettings))

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = DiffusersSettings.read(settings)
        self.preflight(settings)  # the driver has checked its own machine alone
        self._pipeline, self._checker = load_pipeline(self.settings)
        self._most = self.settings.batch  #: images a call; halved for good when memory runs out
        self._tokenizers = tokenizers_of(self.settings) or ()
        self._cuts = CutPrompts(self._pipeline)
        self._encode_once()
        self._try()

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All that changes a pixel, in one form; weights by content, or by repository and revision."""
        read = DiffusersSettings.read(settings)

        def source(folder: Path | None, repo: str, revision: str, file: str = "") -> dict[str, str]:
            return {"content": content_identity(folder, file)} if folder else {"repo": repo, "revision": revision}

        identity: dict[str, Any] = {**read.pixels(), **source(read.folder, read.repo, read.revision)}
        if read.prior:
            repo, revision = read.prior["repo"], read.prior.get("revision", "main")
            identity["prior"] = source(read.folder_of(repo), repo, revision)
        if read.loras:
            identity["loras"] = [
                {
                    "scale": float(lora.get("scale", 1.0)),
                    "weight_name": lora["weight_name"],
                    **source(
                        read.folder_of(lora["repo"]), lora["repo"], lora.get("revision", "main"), lora["weight_name"]
                    ),
                }
                for lora in read.loras
            ]
        return identity

    @classmethod
    def absolute(cls, settings: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
        """The settings with absolute local folders; a relative one is looked for in `folders`."""

        def absolute(source: Any) -> Any:
            if isinstance(source, Mapping):
                return {**source, "repo": absolute(source.get("repo"))}
            if not isinstance(source, str) or source in EMBEDDED or not source:
                return source
            path = Path(source).expanduser()
            return next((str(p.absolute()) for p in (folder / path for folder in folders) if p.exists()), source)

        resolved = {**settings}
        for key in ("repo", "prior"):
            if key in resolved:
                resolved[key] = absolute(resolved[key])
        if isinstance(resolved.get("loras"), (list, tuple)):
            resolved["loras"] = [absolute(lora) for lora in resolved["loras"]]
        return resolved

    @classmethod
    def preflight(cls, settings: Mapping[str, Any]) -> None:
        """Raise EnvironmentFault if a package or weights are missing."""
        need_package("diffusers", "diffusers")
        read = DiffusersSettings.read(settings)
        need_package("accelerate", "accelerate")
        if read.loras:
            need_package("peft", "peft")
        need_pipeline(read.repo, read.revision, read.variant, read.folder, read.without, connected=not read.prior)
        if read.prior:
            repo, revision = read.prior["repo"], read.prior.get("revision", "main")
            need_pipeline(repo, revision, read.variant, read.folder_of(repo))
        for lora in read.loras:
            folder = read.folder_of(lora["repo"])
            if folder and not (folder / lora["weight_name"]).is_file():
                raise EnvironmentFault(f"no '{lora['weight_name']}' in '{folder}', where a LoRA should be")
            if folder is None:
                need_weights(lora["repo"], lora.get("revision", "main"), lora["weight_name"])

    @classmethod
    def prompt_lengths(cls, settings: Mapping[str, Any], prompts: Sequence[str]) -> list[PromptLength] | None:
        """How much the text encoders read of each prompt; None if their tokenizers are not on this machine.

        Raises ConfigError if a prompt in the settings themselves (`negative_prompt`) is too long.
        """
        read = DiffusersSettings.read(settings)
        tokenizers = tokenizers_of(read)
        if not tokenizers:
            return None
        for name, text in own_prompts(read).items():
            length = whole_length(text, tokenizers, read.truncate)
            if length.lost and not read.truncate:
                raise ConfigError(f"settings.{name}: {_too_long(length)}")
        return [whole_length(prompt, tokenizers, read.truncate) for prompt in prompts]

    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[bytes | Image.Image | Withheld]:
        """One image a seed. Withheld as `blank` if it has a NaN, as `flagged` if the safety checker caught it.

        Raises:
            torch.OutOfMemoryError: not even one image fits.
            ValueError: the text encoders would not read all of the prompt, and `truncate` is not set.
        """
        if adapter:
            raise ConfigError("the diffusers engine loads no adapters that a mitigator made")
        self._check_length(prompt)
        images: list[bytes | Image.Image | Withheld] = []
        while len(images) < len(seeds):
            part = seeds[len(images) : len(images) + self._most]
            pixels = self._call(prompt, part)
            if pixels is None:
                self._most = max(1, len(part) // 2)
                log.warning("out of memory at %d images a call; from now on %d", len(part), self._most)
            else:
                images += self._judged(pixels)
        return images

    def _check_length(self, prompt: str) -> None:
        if self._tokenizers and not self.settings.truncate:
            length = whole_length(prompt, self._tokenizers, truncate=False)
            if length.lost:
                raise ValueError(_too_long(length))

    def _call(self, prompt: str, seeds: Sequence[int]) -> Any | None:
        """Pixels in [0, 1] of one pipeline call, float32 (n, height, width, 3); None if there was too little memory."""
        import torch

        try:
            generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
            if hasattr(self._pipeline, "prior_pipe") and self.settings.negative_prompt is not None:
                generators *= 2  # the prior doubles the batch, and both halves need the same noise
            arguments = self.settings.call_arguments
            with torch.random.fork_rng(), torch.inference_mode():
                torch.manual_seed(seeds[0])  # for schedulers that draw noise of their own
                made = self._pipeline(
                    prompt=prompt, num_images_per_prompt=len(seeds), generator=generators, output_type="np", **arguments
                ).images
            self._refuse_cuts()
            return made
        except (MemoryError, RuntimeError) as error:  # what torch raises of a full device is a RuntimeError
            if not is_out_of_memory(error) or len(seeds) == 1:
                raise
        # outside of the handler, where a traceback would keep every tensor of the failed call alive
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None

    def _refuse_cuts(self) -> None:
        """ValueError if the pipeline has cut a prompt, which no rule foresaw."""
        cut = self._cuts.look()
        if cut and not self.settings.truncate:
            self._forget_encoded()  # or the next call would find it encoded, and nothing would be cut any more
            raise ValueError(
                f"{type(self._pipeline).__name__} has cut {cut[0]!r}: words at its end were lost; shorten it, or set "
                "truncate: true to let it be cut"
            )

    def _try(self) -> None:
        """Make one image like all others, so that settings that do not work are reported before work starts."""
        began = time.monotonic()
        try:
            self._call("A photo of a person", [0])
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            name = type(self._pipeline).__name__
            if is_out_of_memory(error):
                raise RuntimeError(  # another try may succeed: the process before may still hold the device
                    f"not even one image of {name} fits into memory; settings.offload=model, a smaller dtype or "
                    f"quantization take less: {first_line(error)}"
                ) from error
            if "CUDA error" in str(error) or "HIP error" in str(error):
                raise
            log.exception("the trial image failed")
            raise ConfigError(
                f"{name} cannot make an image with these settings: {without_secrets(str(error))}"
            ) from error
        log.info("one image takes %.1f s", time.monotonic() - began)

    def _judged(self, pixels: Any) -> list[bytes | Image.Image | Withheld]:
        finite = np.isfinite(pixels).all(axis=(1, 2, 3))
        grey = (np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8)
        images = [Image.fromarray(image) for image in grey]
        flagged = self._checker(images) if self._checker else [False] * len(images)
        return [
            Withheld(image, BLANK) if not valid else Withheld(image, FLAGGED) if caught else image
            for image, valid, caught in zip(images, finite, flagged, strict=True)
        ]

    def _encode_once(self) -> None:
        """Let the pipeline keep the prompts that it encoded: a cell is many batches of one prompt."""
        self._encoders: list[Encoder] = []
        for owner in (self._pipeline, getattr(self._pipeline, "prior_pipe", None)):
            for name in ("encode_prompt", "_encode_prompt"):
                if hasattr(owner, name):
                    self._encoders.append(Encoder(getattr(owner, name)))
                    setattr(owner, name, self._encoders[-1])
                    break

    def _forget_encoded(self) -> None:
        for encoder in self._encoders:
            encoder.results.clear()


class Encoder:
    """A pipeline's method to encode a prompt, with its latest results kept. Calls with tensors are not kept."""

    def __init__(self, encode: Callable[..., Any]) -> None:
        self._encode = encode
        self.results: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        if any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
            return self._encode(*args, **kwargs)
        key = repr((args, sorted(kwargs.items())))
        if key not in self.results:
            if len(self.results) >= MAX_ENCODED:
                del self.results[next(iter(self.results))]
            self.results[key] = self._encode(*args, **kwargs)
        return self.results[key]


def _too_long(length: PromptLength) -> str:
    return (
        f"a prompt of {length.used} tokens is longer than the {length.limit} that the text encoder reads; lost would "
        f"be '{length.lost}'; shorten it, or set truncate: true to let it be cut"
    )
