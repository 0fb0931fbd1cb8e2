"""An engine for a service over HTTP, as the documentation has it: refusals are data, patience is had."""

import hashlib
import http.server
import io
import json
import re
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from PIL import Image

pytestmark = pytest.mark.slow  # starts Ray

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
CONFIG = {
    "models": [{"name": "service", "engine": "my_service:MyService", "cpus": 0.25}],
    "vqa": "simulated",
    "subjects": ["nurse"],
    "axes": ["gender", "age"],
    "images": 8,
    "store": "store",
    "run": "run",
}


class Service(http.server.ThreadingHTTPServer):
    """Images of noise. For its first seconds it says 429; it refuses about a third of the images of women."""

    def __init__(self, busy: float = 0.0, closed: bool = False) -> None:
        self.busy, self.closed, self.began, self.calls, self.made = busy, closed, 0.0, [], []
        super().__init__(("127.0.0.1", 0), Handler)

    def refuses(self, prompt: str, noise: bytes) -> bool:
        return " female " in prompt and noise[0] % 3 == 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        server, now = self.server, time.monotonic()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, seed = asked["prompt"], asked["seed"]
        server.began = server.began or now
        server.calls.append(now - server.began)
        noise = hashlib.sha256(f"{prompt}{seed}".encode()).digest()
        if server.closed:
            self.reply(401, b"no such key")
        elif now - server.began < server.busy:
            self.reply(429, b"slow down", {"Retry-After": "2"})
        elif server.refuses(prompt, noise):
            self.reply(400, b"content_policy_violation")
        else:
            server.made.append((prompt, seed))
            file = io.BytesIO()
            Image.frombytes("RGB", (4, 4), (noise * 2)[:48]).save(file, "PNG")
            self.reply(200, file.getvalue())

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def serve(tmp_path):
    """`serve(**how)` starts a service, and writes the config and the engine of the documentation for it."""
    running = []

    def start(**how: object) -> Service:
        service = Service(**how)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        running.append(service)
        [engine] = re.findall(r'^```python title="my_service.py"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)
        (tmp_path / "my_service.py").write_text(engine)
        model = {**CONFIG["models"][0], "settings": {"url": f"http://127.0.0.1:{service.server_port}/"}}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump({**CONFIG, "models": [model]}))
        return service

    yield start
    for service in running:
        service.shutdown()
        service.server_close()


def test_a_service_that_is_busy_and_refuses_images_ends_in_a_whole_sweep(serve, seesaw, tmp_path):
    service = serve(busy=5.0)
    ended = seesaw("sweep", "own.yaml")
    assert ended.code == 0, ended.err
    assert "service is left alone for" in ended.err
    assert "429" in ended.err
    early = [at for at in service.calls if at < service.busy]
    assert len(early) <= 12, early  # two batches are at the model at once
    assert len(service.made) == len(set(service.made))  # no image was paid twice

    withheld = pd.read_csv(tmp_path / "run/withheld.csv").set_index("source_value")
    assert list(withheld.index) == ["female"]
    refused = withheld.loc["female"]
    assert (refused["images"], refused["blank"]) == (8, 0)
    assert 0 < refused["flagged"] == 8 - sum(" female " in prompt for prompt, _ in service.made)
    distributions = pd.read_parquet(tmp_path / "run/distributions.parquet")
    matrices = pd.read_parquet(tmp_path / "run/matrices.parquet")
    assert distributions[distributions.source_value == "female"].n.max() <= 8 - refused["flagged"]
    assert matrices["is"].notna().all()
    assert seesaw("verify", "store").code == 0
    assert seesaw("report", "run").code == 0


def test_a_service_that_lets_nobody_in_ends_the_run_which_goes_on_later(serve, seesaw):
    service = serve(closed=True)
    ended = seesaw("sweep", "own.yaml")
    assert ended.code == 4, ended.err
    assert "the service lets nobody in (HTTPError: HTTP Error 401: Unauthorized): check the key" in ended.err
    assert len(service.calls) <= 3
    service.closed = False
    assert seesaw("sweep", "own.yaml").code == 0
