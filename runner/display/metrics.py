"""The figures of a run as Prometheus metrics, to watch many runs at once: `cluster.metrics: HOST:PORT`.

The same figures as `seesaw status --follow` shows, served by the driver for as long as it works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from seesaw.results.errors import EnvironmentFault
from seesaw.runner.display.event_types import Event, FleetState
from seesaw.runner.display.events import Counts, Show

__all__ = ["exported"]

_COUNTS = {
    "batches": "Batches that were asked for, those that the store had included",
    "batches_done": "Batches whose answers are in",
    "images_made": "Images made in this run",
    "images_reused": "Images that the store held, or that were asked for twice",
    "answers": "Answers of the VLM in this run",
    "cells_done": "Cells that are done",
    "cells_failed": "Cells with a batch that was set aside",
    "replicas_lost": "Replicas that died or hung",
}
_MODELS = {
    "left": "Batches that are left for a model or the VLM",
    "done": "Batches that a model or the VLM did in this run",
    "replicas": "Replicas of a model or the VLM",
    "rate": "Batches a second of all replicas of a model or the VLM together, while they work",
}


@contextmanager
def exported(address: str | None, show: Show) -> Iterator[Show]:
    """`show`, which also serves the figures at `address` (HOST:PORT) while the block runs; None serves nothing.

    Raises:
        EnvironmentFault: the address is taken, or is not one of this machine.
    """
    if address is None:
        yield show
        return
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    counts = {name: Gauge(f"seesaw_{name}", about, registry=registry) for name, about in _COUNTS.items()}
    models = {
        name: Gauge(f"seesaw_model_{name}", about, ["model"], registry=registry) for name, about in _MODELS.items()
    }
    failures = Gauge("seesaw_failures", "Batches that were set aside", registry=registry)
    idle = Gauge("seesaw_gpu_idle", "Share of the GPUs' time so far in which they had no batch", registry=registry)

    def show_and_export(event: Event, so_far: Counts) -> None:
        for name, gauge in counts.items():
            gauge.set(getattr(so_far, name))
        failures.set(len(so_far.failures))
        if isinstance(event, FleetState):
            idle.set(event.gpu_idle or 0.0)
            for model, state in event.models.items():
                for name, gauge in models.items():
                    gauge.labels(model).set(getattr(state, name))
        show(event, so_far)

    try:
        server, thread = start_http_server(int(port), addr=host, registry=registry)
    except OSError as error:
        raise EnvironmentFault(
            f"cluster.metrics: nothing can be served at '{address}': {error.strerror or error}; choose another port"
        ) from error
    try:
        yield show_and_export
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
