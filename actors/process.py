"""The process of an actor: its log file, its CPU threads, and its end when its engine dies."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from seesaw.actors.device import give_gpus
from seesaw.actors.engine_errors import plain_error
from seesaw.results.errors import StoreUnavailable
from seesaw.results.printable import printable
from seesaw.results.secrets import without_values

__all__ = ["ENGINE_DIED", "exit_if_engine_died", "forget_after", "set_up_process"]

ENGINE_DIED = 70  #: exit status of an actor whose engine or device died
log = logging.getLogger(__name__)


def set_up_process(name: str, log_file: str, threads: int, gpus: float) -> None:
    """Send this process' output to `log_file`, limit its CPU threads, and let it see the GPUs that it was given.

    On a node that cannot see the run directory the output stays in Ray's own log of the worker. The config fixes the
    number of threads because sums of floats on a CPU depend on it.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    give_gpus(gpus)
    if os.path.isdir(os.path.dirname(log_file)):
        descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr)
    logging.basicConfig(level=logging.INFO, force=True)
    logging.getLogger().handlers[0].setFormatter(_Masked(f"%(asctime)s {name} %(levelname)s %(message)s"))
    log.info("process %d starts", os.getpid())


class _Masked(logging.Formatter):
    """Messages and tracebacks without tokens: both may quote a URL or a header."""

    def format(self, record: logging.LogRecord) -> str:
        return without_values(super().format(record))


class MaskedStream(io.TextIOBase):
    """A stream for what an engine prints, without secrets and escape codes, a line at a time.

    What a library of C prints does not come by here.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._line, self._lock = stream, "", threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._line = re.split(r"\r\n?|\n", self._line + text)  # a bar of progress ends its lines with \r
            for line in lines:
                self._stream.write(printable(without_values(line)) + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


@contextmanager
def exit_if_engine_died(engine: Any) -> Iterator[None]:
    """End the process (status ENGINE_DIED) if the engine or its device dies in the block; raise other errors plainly.

    A dead engine in a living actor fails every batch that it is given (ray#60145). The fleet replaces a dead process.
    """
    try:
        yield
    except Exception as error:
        if not _died(engine, error):
            log.exception("a batch failed")
            raise plain_error(error) from None
        log.exception("the engine died; process %d ends", os.getpid())
        sys.stderr.flush()
        os._exit(ENGINE_DIED)


@contextmanager
def forget_after(waiting: dict[str, Any], key: str) -> Iterator[None]:
    """Remove `waiting[key]` after the block, unless the store was unavailable: the same call then commits it later."""
    unavailable = False
    try:
        yield
    except StoreUnavailable:
        unavailable = True
        raise
    finally:
        if not unavailable:
            waiting.pop(key, None)


def _died(engine: Any, error: Exception) -> bool:
    """Whether the engine can be asked nothing any more: vLLM's engine or the device is gone.

    Errors are known by their names, so that neither vLLM nor torch is imported for this.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    device = "CUDA error" in str(error) or "HIP error" in str(error)
    return not getattr(engine, "alive", True) or device or bool(names & {"EngineDeadError", "AcceleratorError"})
