"""The device of an engine that runs on torch: a GPU if its replica was given one, else the CPU, never the other way.

The process of an actor calls `give_gpus` before its engine is loaded. In any other process, such as a notebook, an
engine takes a GPU if torch sees one.
"""

from __future__ import annotations

import logging
import os

from seesaw.results.errors import EnvironmentFault
from seesaw.results.secrets import first_line

__all__ = ["CACHE_SHARE", "give_gpus", "given_gpus", "is_out_of_memory", "torch_device"]

CACHE_SHARE = 0.9  #: of the GPU memory that a VLM may take: weights, activations and its cache together
_GPUS = "SEESAW_GPUS"  #: in the environment of an actor: how many GPUs it was given, or which share of one
#: which devices a process sees, by maker; Ray leaves all visible to an actor that asks for none
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: how libraries say that a device is full: PyTorch, and cuBLAS and cuDNN where they ask for memory of their own
_FULL = (
    "out of memory",
    "can't allocate memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_not_supported",
    "unable to find an engine",
)
log = logging.getLogger(__name__)


def give_gpus(gpus: float) -> None:
    """Say how many GPUs, or which share of one, this process was given; with none it sees none."""
    os.environ[_GPUS] = f"{gpus:g}"
    if not gpus:
        os.environ.update(dict.fromkeys(_VISIBLE, ""))


def given_gpus() -> float | None:
    """How many GPUs this process was given, or which share of one; None if nobody has said."""
    given = os.environ.get(_GPUS)
    return None if given is None else float(given)


def torch_device() -> str:
    """`cuda` or `cpu`. A share of a GPU is made that share of its memory, beyond which torch allocates nothing.

    Raises EnvironmentFault if a GPU was given and torch cannot use it, with torch's own reason.
    """
    import torch

    gpus = given_gpus()
    if gpus is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        log.info("device %s: %s", device, "torch sees a GPU" if device == "cuda" else "torch sees no GPU")
        return device
    if not gpus:
        log.info("device cpu: the replica was given no GPU")
        return "cpu"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # a build for CPUs raises the first, a driver too old the second
        raise EnvironmentFault(
            f"torch {torch.__version__} cannot use the GPU that this model asks for (gpus: {gpus:g}): "
            f"{first_line(error)}; `seesaw doctor` says what torch sees there. Install the extra for GPUs "
            "(pip install 'seesaw[cuda]') and a driver that is new enough for it, or set gpus: 0"
        ) from error
    if gpus < 1:
        torch.cuda.set_per_process_memory_fraction(gpus)
    log.info("device cuda: the replica was given %g GPU", gpus)
    return "cuda"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine is full, whichever library says it; a smaller batch may then do."""
    import torch

    words = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(full in words for full in _FULL)
