"""The events of `--json`: what programs read, so their names, keys, order and values are frozen in events.jsonl."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from seesaw.results.errors import BatchFailed
from seesaw.runner.display import event_types
from seesaw.runner.display.event_types import Event, FleetState, ModelState, ReplicaReady, ReplicaState
from seesaw.runner.display.events import Events, json_lines

GOLDEN = Path(__file__).with_name("events.jsonl")  #: written by version 0.1.0
BATCH = SimpleNamespace(label="one / nurse / gender=female / images 0-7", model="one")
CELL = {
    "model": "one",
    "subject": "nurse",
    "source_axis": "",
    "source_value": "",
    "images": 16,
    "blank": 1,
    "flagged": 2,
}


def one_of_each(events: Events) -> None:
    events.asked(3, 6)
    events.start(message="small: 6 batches")
    events.note("a note")
    events.replica(ReplicaReady("one", "one-1", pid=7, load_seconds=1.5, start_seconds=2.5))
    events.lost("one-1", "it died", 2)
    events.decided("start one on n1: 6 batches wait")
    replicas = {"one-1": ReplicaState("10.0.0.7", "busy", 3)}
    events.fleet(FleetState(0.25, {"one": ModelState(left=7, done=5, replicas=2, rate=0.5)}, replicas))
    events.images(made=8)
    events.images(held=8)
    events.answers(40)
    events.reused(images=8)
    events.failed(BATCH, BatchFailed("bad work", stage="generate", error="ValueError", attempts=3))
    events.blank(BATCH, 2)
    events.withheld(pd.DataFrame([CELL]))
    events.cell(failed=True)
    step = {"axis": "age", "tau": [0.5, 0.25], "mitigated": ("age",), "outcome": "reached", "reason": ""}
    events.step("nurse on one, greedy, a", 64, **step)
    events.metrics("vlm-1", {"questions": 12, "seconds": 0.5, "hit_rate": 0.75})
    events.end(message="interrupted", state="interrupted")
    report = "/tmp/a b/report/index.html"
    events.end(message=f"done in 3 s; report: {report}", state="done", report=report)


def test_every_event_prints_the_json_that_it_always_has():
    stream = io.StringIO()
    one_of_each(Events(json_lines(stream)))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    golden = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    assert all(isinstance(line["time"], float) for line in lines)
    assert [list({**line, "time": 0}.items()) for line in lines] == [list(line.items()) for line in golden]


def test_every_kind_of_event_is_in_the_golden_file():
    kinds = {json.loads(line)["event"] for line in GOLDEN.read_text().splitlines()}
    types = [t for t in vars(event_types).values() if isinstance(t, type) and issubclass(t, Event) and t is not Event]
    assert {event.kind for event in types} == kinds
    assert len(types) == len(kinds)
