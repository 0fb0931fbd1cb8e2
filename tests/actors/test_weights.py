"""Weights that are not whole, and a hub that says why: a real server, the real `hf`, the command as it is told."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import save_file

from seesaw.actors.weights import need_pipeline, need_weights
from seesaw.results.errors import EnvironmentFault
from seesaw.results.secrets import without_secrets

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_" + "Secret" * 5
CLASSES = {
    "unet": ("diffusers", "UNet2DConditionModel"),
    "text_encoder": ("transformers", "T5EncoderModel"),
    "scheduler": ("diffusers", "DDIMScheduler"),
    "tokenizer": ("transformers", "T5TokenizerFast"),
}


def write_pipeline(folder: Path, card: str = "") -> Path:
    """A pipeline whose text encoder is in two shards; beside it what only other programs need."""
    index = {"_class_name": "XPipeline", "safety_checker": [None, None], "force_zeros": True, **CLASSES}
    files = {
        "model_index.json": index,
        "unet/config.json": {},
        "text_encoder/config.json": {},
        "text_encoder/model.safetensors.index.json": {
            "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        },
        "scheduler/scheduler_config.json": {},
        "tokenizer/tokenizer_config.json": {},
        "tokenizer/tokenizer.json": {},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    for name, key in (
        ("unet/diffusion_pytorch_model", "w"), ("unet/diffusion_pytorch_model.fp16", "h"), ("all-in-one", "x"),
        ("text_encoder/model-00001-of-00002", "a"), ("text_encoder/model-00002-of-00002", "b"),
    ):  # fmt: skip
        save_file({key: torch.arange(64.0) + len(name)}, folder / f"{name}.safetensors")
    (folder / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    if card:
        (folder / "README.md").write_text(card)
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def only_bin(path: Path) -> None:
    for file in path.parent.glob("*.safetensors"):
        file.unlink()


UNET = "unet/diffusion_pytorch_model.safetensors"
SHARD = "text_encoder/model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("file", "damage", "variant", "message"),
    [
        (SHARD, Path.unlink, None, f"{SHARD} is missing"),
        (SHARD, cut, None, f"{SHARD} is cut short or damaged"),
        (UNET, cut, None, f"{UNET} is cut short or damaged"),
        (UNET, lambda path: path.write_bytes(b""), None, f"{UNET} is cut short or damaged"),
        (UNET, lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), None, "git lfs pull"),
        (UNET, only_bin, None, "only safetensors are loaded"),
        (UNET, Path.unlink, None, "unet/ has no weights but diffusion_pytorch_model.fp16.safetensors: see"),
        ("unet/diffusion_pytorch_model.fp16.safetensors", cut, "fp16", "fp16.safetensors is cut short"),
        ("unet/config.json", Path.unlink, None, "unet/config.json is missing"),
        ("tokenizer/tokenizer_config.json", Path.unlink, None, "tokenizer/tokenizer_config.json is missing"),
        ("text_encoder/model.safetensors.index.json", Path.unlink, None, "model.safetensors.index.json is missing"),
        (UNET, lambda path: None, "ema", "no component has weights of the variant 'ema'"),
        ("model_index.json", lambda path: path.write_text("{"), None, "model_index.json is missing or no JSON"),
    ],
)
def test_a_pipeline_that_is_not_whole_is_refused_by_the_file(tmp_path, file, damage, variant, message):
    folder = write_pipeline(tmp_path)
    need_pipeline(str(folder), "main", "fp16", folder)
    need_pipeline(str(folder), "main", None, folder)
    damage(folder / file)
    with pytest.raises(EnvironmentFault, match=re.escape(message)) as refused:
        need_pipeline(str(folder), "main", variant, folder)
    assert str(folder) in str(refused.value)


def test_what_is_not_loaded_is_not_needed(tmp_path):
    folder = write_pipeline(tmp_path)
    cut(folder / "unet" / "diffusion_pytorch_model.fp16.safetensors")
    (folder / SHARD).unlink()
    need_pipeline(str(folder), "main", None, folder, without=["text_encoder"])


def test_a_vlm_is_checked_to_its_last_shard(tmp_path):
    folder = write_pipeline(tmp_path) / "text_encoder"
    need_weights("vlm", "main", "config.json", folder)
    cut(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(EnvironmentFault, match=r"model-00001-of-00002\.safetensors is cut short"):
        need_weights("vlm", "main", "config.json", folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    with pytest.raises(EnvironmentFault, match="there are no weights"):
        need_weights("vlm", "main", "config.json", folder)


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that `hf download` speaks, over folders OWNER/NAME; `vast` is a very large one."""

    root: Path

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/").removeprefix("api/models/")
        repo, _, rest = path.partition("/")[0] + "/" + path.split("/")[1], None, "/".join(path.split("/")[2:])
        folder = self.root / repo
        if repo == "org/slow":
            threading.Event().wait(30)
        if not folder.is_dir():
            return self.fail(401, "RepoNotFound")
        if repo == "org/gated" and rest != "" and "revision" not in rest:
            return self.fail(403, "GatedRepo")
        if rest.startswith("resolve/"):
            return self.send((folder / rest.split("/", 2)[2]).read_bytes(), "application/octet-stream")
        if rest.startswith("revision/") and rest.split("/")[1] not in ("main", COMMIT):
            return self.fail(404, "RevisionNotFound")
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        sizes = {f.relative_to(folder).as_posix(): f.stat().st_size * 10 ** (15 * (repo == "org/vast")) for f in files}
        if rest.startswith("tree/"):
            found = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()]
        else:
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            card = {"prior": ["org/prior"]} if (folder / "README.md").is_file() else {}
            found = {"id": repo, "sha": COMMIT, "siblings": siblings, "cardData": card}
        self.send(json.dumps(found).encode(), "application/json")

    do_HEAD = do_GET

    def send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for key, value in (
            ("Content-Type", kind), ("Content-Length", str(len(body))), ("X-Repo-Commit", COMMIT),
            ("ETag", f'"{hash(body) & 0xFFFFFFFF:08x}"'),
        ):  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"no, {self.headers['Authorization']}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The environment of a process that sees this hub and an empty cache."""
    root = tmp_path_factory.mktemp("hub")
    for name, card in {"tti": "---\nprior:\n- org/prior\n---\n", "prior": "", "gated": "", "vast": ""}.items():
        write_pipeline(root / "org" / name, card)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Hub,), {"root": root}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    home = str(tmp_path_factory.mktemp("home"))
    endpoint = f"http://127.0.0.1:{server.server_port}"
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": home, "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}
    unset = ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGINGFACE_HUB_CACHE")
    yield {**{k: v for k, v in os.environ.items() if k not in unset}, **settings, "HF_HUB_DISABLE_XET": "1"}
    server.shutdown()
    thread.join()
    server.server_close()


ASK = """
import json, sys
from seesaw.actors import hub
from seesaw.actors.weights import need_pipeline, need_weights
from seesaw.results.errors import EnvironmentFault
hub.PATIENCE = 2.0
for call in json.loads(sys.argv[1]):
    try:
        need_pipeline(*call, None, None) if len(call) == 2 else need_weights(*call)
        print("whole")
    except EnvironmentFault as fault:
        print(fault)
"""


def ask(env: dict[str, str], *calls: tuple[str, ...]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK, json.dumps(calls)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_hub_says_what_stands_in_the_way(hub):
    said = ask(
        hub,
        ("org/none", "main"), ("org/gated", "main"), ("org/tti", "v9"), ("org/vast", "main"), ("org/slow", "main"),
        ("org/prior", "main", "config.json"),
    )  # fmt: skip
    none, gated, revision, vast, slow, vlm = said
    assert "the hub has no such repository, or it is private and the token in use may not read it" in none
    assert "accept its licence at https://huggingface.co/org/gated and set HF_TOKEN" in gated
    assert "hf download org/gated --revision main" in gated
    assert "the hub has no revision 'v9' of it" in revision
    assert "GB free: make room, or set HF_HOME" in vast
    assert "no answer within 2 seconds" in slow
    assert "hf download org/slow --revision main" in slow
    assert "type `hf download org/prior --revision main` (0.0 GB" in vlm


def test_a_hub_that_is_out_of_reach_leaves_a_message_with_all_of_it(hub):
    message = ask({**hub, "HF_HUB_OFFLINE": "1"}, ("org/gated", "main"))[0]
    for words in ("hf download org/gated", "accept its licence at https://huggingface.co/org/gated", "HF_HOME"):
        assert words in message


def test_the_command_of_the_message_mends_it_and_fetches_no_more_than_is_loaded(hub):
    def follow(message: str) -> None:
        command = shlex.split(message.split("`")[1])
        subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], env=hub, check=True)

    first = ask(hub, ("org/tti", "main"))[0]
    assert "its model card says that 'org/prior' is needed too" in first
    follow(first)
    snapshot = Path(hub["HF_HOME"]) / "hub" / "models--org--tti" / "snapshots" / COMMIT
    fetched = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}
    assert UNET in fetched
    assert SHARD in fetched
    assert not any("fp16" in name or name.endswith(".bin") or "all-in-one" in name for name in fetched)
    second = ask(hub, ("org/tti", "main"))[0]
    assert "'org/prior'" in second
    follow(second)
    assert ask(hub, ("org/tti", "main"), ("org/tti", COMMIT)) == ["whole"] * 2
    (snapshot / "tokenizer" / "tokenizer.json").unlink()
    shard = (snapshot / SHARD).resolve()
    cut(shard)
    third = ask(hub, ("org/tti", "main"))[0]
    assert f"{SHARD} is cut short" in third
    assert "tokenizer/tokenizer.json is missing" in third
    Path(re.search(r"remove (\S+?);", third)[1]).unlink()
    follow(third)
    assert ask(hub, ("org/tti", "main")) == ["whole"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for token {TOKEN}!", "401 for token hf_***!"),
        ("see hf_hub_download, hf_transfer", "see hf_hub_download, hf_transfer"),
        ("s3://user:word@host/x", "s3://***@host/x"),
        ("https://cdn/x?Policy=a&Signature=b%2Fc&v=1", "https://cdn/x?Policy=a&Signature=***&v=1"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer ***"),
        ("key my-own-secret-1 refused", "key *** refused"),
    ],
)
def test_secrets_are_masked_and_nothing_else(text, shown, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "my-own-secret-1")
    assert without_secrets(text) == shown
