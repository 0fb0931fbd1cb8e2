"""What an actor's process does: first its own log file and share of the CPU; and when its engine dies, so does it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seesaw.results.errors import StoreUnavailable
from seesaw.results.secrets import without_secrets

__all__ = ["DEAD", "begin", "kept", "mortal"]

DEAD = 70  #: exit status of an actor whose engine or device died
log = logging.getLogger(__name__)


def begin(name: str, log_file: str, threads: int) -> None:
    """Send this process' output to `log_file` and limit its CPU threads.

    On a node that cannot see the run directory the output stays in Ray's own log of the worker. Threads are fixed by
    the config because float sums on a CPU depend on their number.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    folder = os.path.dirname(log_file)
    if os.path.isdir(folder):
        handle = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    logging.basicConfig(level=logging.INFO, force=True)
    logging.getLogger().handlers[0].setFormatter(_Masked(f"%(asctime)s {name} %(levelname)s %(message)s"))
    log.info("process %d starts", os.getpid())


class _Masked(logging.Formatter):
    """Messages and tracebacks without tokens: both may quote a URL or a header."""

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


@contextmanager
def mortal(engine: Any) -> Iterator[None]:
    """End the process (status DEAD) if the engine or its device dies in the block, so that no retry meets a corpse.

    A dead engine in a living actor fails every batch that it is sent (ray#60145); a dead process is replaced.
    """
    try:
        yield
    except Exception as error:
        if not _died(engine, error):
            log.exception("a batch failed")
            raise
        log.exception("the engine died; process %d ends", os.getpid())
        sys.stderr.flush()
        os._exit(DEAD)


@contextmanager
def kept(work: dict[str, Any], key: str) -> Iterator[None]:
    """Forget `work[key]` after the block, unless that ends for want of the store: then the same call goes on later."""
    away = False
    try:
        yield
    except StoreUnavailable:
        away = True
        raise
    finally:
        if not away:
            work.pop(key, None)


def _died(engine: Any, error: Exception) -> bool:
    """Whether nothing can be asked any more: vLLM's engine is gone, or the device is (by name: neither is imported)."""
    names = {kind.__name__ for kind in type(error).__mro__}
    device = "CUDA error" in str(error) or "HIP error" in str(error)
    return not getattr(engine, "alive", True) or device or bool(names & {"EngineDeadError", "AcceleratorError"})
