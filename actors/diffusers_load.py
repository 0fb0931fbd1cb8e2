"""From settings to a pipeline on its device. Every choice that is made for the user is logged with its reason."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from seesaw.actors.device import torch_device
from seesaw.actors.diffusers_settings import DiffusersSettings
from seesaw.actors.hub import snapshot
from seesaw.actors.weights import need_package
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.secrets import first_line

__all__ = ["load_pipeline"]

log = logging.getLogger(__name__)
Checker = Callable[[Sequence[Image.Image]], list[bool]]


def load_pipeline(settings: DiffusersSettings) -> tuple[Any, Checker | None]:
    """The pipeline, and its safety checker as a function of images (None without one, or with `safety: keep`).

    The checker is taken out of the pipeline, which would blacken the images that it catches and not say so.

    Raises:
        ConfigError: this pipeline does not have an option, or is not called with an argument.
        EnvironmentFault: a package that an option needs is missing, or torch cannot use the GPU that was given.
    """
    from diffusers import AutoPipelineForText2Image, DiffusionPipeline

    device = torch_device()
    # always from a folder: given a revision, diffusers would ask for it of a connected repository too
    source = settings.folder or snapshot(settings.repo, settings.revision, "model_index.json")
    components = _components(settings, source)
    arguments = _arguments(settings)
    if settings.safety == "keep" and "safety_checker" in components:
        log.info("safety checker left out: safety=keep")
        arguments |= {"safety_checker": None, "requires_safety_checker": False}
    load: Any = AutoPipelineForText2Image.from_pretrained
    load_own_class: Any = DiffusionPipeline.from_pretrained
    try:
        if settings.prior:
            pipeline = _joined(settings.prior, settings, load_own_class(source, **arguments), arguments)
        else:
            try:
                pipeline = load(source, **arguments)
            except ValueError as error:
                if "AutoPipeline" not in str(error):
                    raise
                log.info("AutoPipelineForText2Image does not know %s; loaded as the class that it names", settings.repo)
                pipeline = load_own_class(source, **arguments)
    except (AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        log.exception("loading failed")
        raise ConfigError(f"'{settings.repo}' cannot be loaded: {first_line(error)}") from error
    pipeline.set_progress_bar_config(disable=True)
    takes = [p.name for p in inspect.signature(pipeline.__call__).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name in ("prompt", "num_images_per_prompt", "generator", "output_type", *settings.call_arguments):
        if name not in takes:
            raise ConfigError(f"{type(pipeline).__name__} is not called with '{name}'{nearest(name, takes)}")
    if settings.scheduler is not None:
        scheduler = _scheduler(settings, pipeline.scheduler)
        for part in (pipeline, getattr(pipeline, "decoder_pipe", None)):
            if part is not None:
                part.register_modules(scheduler=scheduler)
    for number, lora in enumerate(settings.loras):
        _add_lora(settings, pipeline, lora, f"lora-{number}")
    if settings.loras:
        scales = [float(lora.get("scale", 1.0)) for lora in settings.loras]
        pipeline.set_adapters([f"lora-{n}" for n in range(len(scales))], adapter_weights=scales)
    checker = _take_checker(pipeline, device)
    _place(pipeline, settings, device)
    return pipeline, checker


def _components(settings: DiffusersSettings, source: Path | None) -> list[str]:
    """The pipeline's components.

    Raises ConfigError for one in `without` that it does not have, or a prior without use.
    """
    index: Any = json.loads((source / "model_index.json").read_text()) if source else {}
    components = [name for name in index if not name.startswith("_")] if isinstance(index, dict) else []
    for name in settings.without:
        if name not in components:
            raise ConfigError(f"without: '{settings.repo}' has no component '{name}'{nearest(name, components)}")
    if settings.prior and "Kandinsky" not in str(index.get("_class_name")):
        raise ConfigError(f"prior: a {index.get('_class_name')} takes none")
    return components


def _arguments(settings: DiffusersSettings) -> dict[str, Any]:
    import torch
    from diffusers.quantizers.pipe_quant_config import PipelineQuantizationConfig

    dtype = getattr(torch, settings.dtype)
    arguments: dict[str, Any] = {
        "variant": settings.variant,
        "dtype": dtype,
        "use_safetensors": True,
        "local_files_only": True,
        **dict.fromkeys(settings.without),
    }
    if settings.trust_remote_code:
        arguments["trust_remote_code"] = True
    if settings.quantization:
        given = dict(settings.quantization)
        backend, components = given.pop("backend"), given.pop("components", None)
        if backend.startswith("bitsandbytes"):
            need_package("bitsandbytes", "bitsandbytes")
        arguments["quantization_config"] = PipelineQuantizationConfig(
            quant_backend=backend, quant_kwargs=given or {}, components_to_quantize=components
        )
    return arguments


def _joined(prior: Mapping[str, Any], settings: DiffusersSettings, decoder: Any, arguments: Mapping[str, Any]) -> Any:
    """A decoder with the prior that the YAML names, whatever prior the decoder's model card names."""
    from diffusers import AutoPipelineForText2Image, DiffusionPipeline

    repo, revision = prior["repo"], prior.get("revision", "main")
    load: Any = DiffusionPipeline.from_pretrained
    first = load(settings.folder_of(repo) or snapshot(repo, revision, "model_index.json"), **arguments)
    join: Any = AutoPipelineForText2Image.from_pipe
    return join(decoder, **{f"prior_{name}": component for name, component in first.components.items()})


def _scheduler(settings: DiffusersSettings, own: Any) -> Any:
    """A scheduler of the given class, with the repository's configuration where the settings give no other."""
    import diffusers

    given = dict(settings.scheduler or {})
    name = given.pop("class")
    kind = getattr(diffusers, name, None)
    if not name.endswith("Scheduler") or not isinstance(kind, type):
        schedulers = [n for n in dir(diffusers) if n.endswith("Scheduler") and not n.startswith(("Flax", "_"))]
        raise ConfigError(f"diffusers has no scheduler '{name}'{nearest(name, schedulers)}")
    make: Any = kind
    try:
        scheduler = make.from_config(own.config, **given)
    except (ImportError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise ConfigError(f"scheduler {name}: {first_line(error)}") from error
    for key in given:
        if key not in scheduler.config:
            raise ConfigError(f"scheduler {name} has no option '{key}'{nearest(key, scheduler.config)}")
    return scheduler


def _add_lora(settings: DiffusersSettings, pipeline: Any, lora: Any, name: str) -> None:
    if not hasattr(pipeline, "load_lora_weights"):
        raise ConfigError(f"{type(pipeline).__name__} loads no LoRA")
    from safetensors import SafetensorError

    folder = settings.folder_of(lora["repo"])
    given = {"weight_name": lora["weight_name"]} if "weight_name" in lora else {}
    if folder is None:
        given["revision"] = lora.get("revision", "main")
    try:
        pipeline.load_lora_weights(
            str(folder or lora["repo"]), adapter_name=name, use_safetensors=True, local_files_only=True, **given
        )
    except (AttributeError, LookupError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ConfigError(
            f"LoRA '{lora['weight_name']}' of '{lora['repo']}' cannot be loaded: {first_line(error)}"
        ) from error


def _take_checker(pipeline: Any, device: str) -> Checker | None:
    checker: Any = getattr(pipeline, "safety_checker", None)
    extractor: Any = getattr(pipeline, "feature_extractor", None)
    if type(checker).__name__ != "StableDiffusionSafetyChecker":
        if checker is not None:
            log.info(
                "safety checker %s left in the pipeline: it does not report what it catches", type(checker).__name__
            )
        return None
    if extractor is None:
        raise ConfigError(
            "its safety checker has no feature extractor and cannot see; settings.safety=keep does without"
        )
    pipeline.register_modules(safety_checker=None)
    if "requires_safety_checker" in pipeline.config:
        pipeline.register_to_config(requires_safety_checker=False)
    checker.to(device)
    log.info("safety checker on: images that it catches are kept and recorded as flagged, and are not asked")

    def check(images: Sequence[Image.Image]) -> list[bool]:
        import numpy as np
        import torch
        from diffusers.utils import logging as diffusers_logging

        pixels = extractor(list(images), return_tensors="pt").pixel_values
        blanks = [np.zeros((1, 1, 3)) for _ in images]  # the checker blackens these instead of the images
        level = diffusers_logging.get_verbosity()
        diffusers_logging.set_verbosity_error()
        try:
            with torch.inference_mode():
                _, caught = checker(images=blanks, clip_input=pixels.to(device, checker.dtype))
        finally:
            diffusers_logging.set_verbosity(level)
        return [bool(each) for each in caught]

    return check


def _place(pipeline: Any, settings: DiffusersSettings, device: str) -> None:
    """Set the options for memory and speed, then move the pipeline to its device."""
    vae = getattr(pipeline, "vae", None) or getattr(pipeline, "movq", None)
    for option, method in (("vae_slicing", "enable_slicing"), ("vae_tiling", "enable_tiling")):
        if getattr(settings, option):
            if not hasattr(vae, method):
                raise ConfigError(f"{option}: the decoder of {type(pipeline).__name__} cannot do it")
            getattr(vae, method)()
    denoiser: Any = getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)
    if settings.channels_last:
        import torch

        for module in (denoiser, vae):
            if module is not None:
                module.to(memory_format=torch.channels_last)
    if settings.attention:
        try:
            denoiser.set_attention_backend(settings.attention)
        except (AttributeError, ValueError) as error:
            raise ConfigError(f"attention '{settings.attention}': {error}") from error
    if settings.offload != "none" and device == "cpu":
        log.info("offload=%s left out: there is no GPU to offload from", settings.offload)
        pipeline.to(device)
    elif settings.offload == "model":
        pipeline.enable_model_cpu_offload()
    elif settings.offload == "sequential":
        pipeline.enable_sequential_cpu_offload()
    else:
        pipeline.to(device)
    if settings.compile:
        if getattr(denoiser, "_repeated_blocks", None):
            denoiser.compile_repeated_blocks(fullgraph=True)
            log.info("compile: the repeated blocks of %s, compiled by region", type(denoiser).__name__)
        else:
            denoiser.compile()
            log.info("compile: %s as a whole, since it names no repeated blocks", type(denoiser).__name__)
