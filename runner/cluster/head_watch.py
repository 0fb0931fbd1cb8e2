"""The head of a cluster that others started, watched from joining it until the run has left it.

Ray's C++ code ends a process whose head has been gone for a minute: with exit code 1 and without a word, whatever the
process is doing. While a run is at work, `runner.cluster.nodes` notices the silence first and ends the run in order.
This watch is for all other times: while Ray is joined, while nodes are probed, while the run is closed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import grpc
from ray._private import gcs_utils
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from seesaw.results.errors import HeadLost
from seesaw.runner.display.streams import say

__all__ = ["HEAD_SECONDS", "check_head", "watched"]

HEAD_SECONDS = 5  #: that a head has to answer whether it is one; Ray itself tries for many minutes
PAUSE_SECONDS = 3.0  #: between two questions
SILENCE_SECONDS = 40.0  #: until the process ends: after `nodes.HEAD_SILENCE_SECONDS`, and before Ray's own minute
SILENT_QUESTIONS = 5  #: that must have gone unanswered as well: the clock goes on while this process is stopped


def check_head(address: str) -> None:
    """Ask whether a Ray head is alive at an address: within seconds, where Ray itself would try for many minutes.

    The channel is Ray's own, so TLS and the token are as Ray's settings say. Raises ConnectionError if none answers.
    """
    with gcs_utils.create_gcs_channel(address) as channel:
        head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)  # type: ignore[no-untyped-call]
        question = gcs_service_pb2.CheckAliveRequest()  # type: ignore[attr-defined]
        try:
            head.CheckAlive(question, timeout=HEAD_SECONDS)
        except grpc.RpcError as error:
            reason = error.details() or error.code().name
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                reason = f"no answer within {HEAD_SECONDS} seconds"
            raise ConnectionError(f"no Ray head answers there ({reason})") from error


@contextmanager
def watched(address: str, stderr: TextIO) -> Iterator[None]:
    """End this process with exit code 3 and a message on `stderr` if the head at `address` falls silent in the block.

    The process ends from another thread, since this one may be in a call of Ray's that never returns.
    """
    left = threading.Event()
    threading.Thread(target=_watch, args=(address, stderr, left), name="head-watch", daemon=True).start()
    try:
        yield
    finally:
        left.set()


def _watch(address: str, stderr: TextIO, left: threading.Event) -> None:
    answered, unanswered = time.monotonic(), 0
    while not left.wait(PAUSE_SECONDS):
        try:
            check_head(address)
        except ConnectionError:
            unanswered += 1
            if time.monotonic() - answered > SILENCE_SECONDS and unanswered >= SILENT_QUESTIONS and not left.is_set():
                say(
                    f"seesaw: Ray's head at {address} does not answer any more; what was committed is kept: start the "
                    "head again, and the same command goes on",
                    stderr,
                )
                os._exit(HeadLost.exit_code)
        else:
            answered, unanswered = time.monotonic(), 0
