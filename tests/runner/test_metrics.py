"""The same figures from another terminal and for Prometheus, while a driver works."""

import json
import socket
import urllib.request

import pytest

from seesaw.results.errors import EnvironmentFault
from seesaw.runner.display.event_types import FleetState, ImagesDone, ModelState, ReplicaState
from seesaw.runner.display.events import Counts
from seesaw.runner.display.metrics import exported
from seesaw.runner.display.progress import fleet_lines

FLEET = FleetState(
    gpu_idle=0.25,
    models={"flux": ModelState(left=7, done=5, replicas=2, rate=0.5)},
    replicas={
        "flux-1": ReplicaState("10.0.0.7", "busy", done=3),
        "flux-2": ReplicaState("10.0.0.8", "loading", done=2),
    },
)


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def scraped(address: str) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}


def test_prometheus_reads_the_figures_of_the_run(address):
    seen = []
    with exported(address, lambda *event: seen.append(event)) as show:
        counts = Counts(batches=12, images_made=40)
        show(FLEET, counts)
        figures = scraped(address)
        counts.images_made = 48
        show(ImagesDone(made=8, held=0), counts)
        assert scraped(address)["seesaw_images_made"] == 48
    assert figures["seesaw_batches"] == 12
    assert figures["seesaw_gpu_idle"] == 0.25
    assert figures['seesaw_model_left{model="flux"}'] == 7
    assert figures['seesaw_model_replicas{model="flux"}'] == 2
    assert [event.kind for event, _ in seen] == ["fleet", "images"]  # shown as before
    with pytest.raises(OSError, match="refused"):
        scraped(address)


def test_a_port_that_is_taken_is_said(address):
    host, port = address.split(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(EnvironmentFault, match="choose another port"), exported(address, lambda *_: None):
            pass


def test_who_runs_where_is_told_in_lines():
    assert fleet_lines({}) == []
    assert fleet_lines(json.loads(json.dumps(FLEET.fields()))) == [
        "flux: 5 batches done, 7 left, 0.5 batches/s; 1 on 10.0.0.7 (busy), 1 on 10.0.0.8 (loading)",
        "GPUs idle: 25% of their time, loading included",
    ]
