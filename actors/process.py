"""What every actor's process does first: its own log file, its share of the CPU, and no noise on the driver."""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["begin"]


def begin(name: str, log: str, threads: int) -> None:
    """Send this process' output to the file `log` and limit its CPU threads.

    On a node that cannot see the run directory the output stays in Ray's own log of the worker. Threads are fixed by
    the config because float sums on a CPU depend on their number.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    folder = os.path.dirname(log)
    if os.path.isdir(folder):
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", force=True)
    logging.info("process %d starts", os.getpid())
