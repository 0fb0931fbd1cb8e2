"""The store on object storage: an S3 server on this machine that checks signatures and can be stopped and killed."""

import json
import multiprocessing
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from seesaw.results.errors import ConfigError, EnvironmentFault, StoreError, StoreUnavailable
from seesaw.results.secrets import without_secrets
from seesaw.results.store import lock
from seesaw.results.store import store as store_file
from seesaw.results.store.lock import alone, at_work
from seesaw.results.store.shards import serialise
from seesaw.results.store.store import Store, shard_folder
from tests.results.test_store import FOLDER, images, shard
from tests.results.test_store_verbs import VLM, A, B, answers_of, files, fill, of, run_with, seesaw_store, shard_of

pytestmark = pytest.mark.slow  # starts servers of an object store, stops them and kills writers

KEY_ID, SECRET = "seesaw-tests-user", "no/secret+but-of-its-shape"
BOUND = 30  #: seconds within which a server that does not answer must be told


class Server:
    """The server as a process; `files` is where the objects of its one bucket lie as files."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "bucket"
        self.files.mkdir(parents=True)
        self.log = folder / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        program = Path(__file__).with_name("s3_server.py")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, program, self.files.parent, str(self.port)],
                env={**os.environ, "NANIO_ACCESS_KEY": KEY_ID, "NANIO_SECRET_KEY": SECRET},
                stdout=log,
                stderr=log,
            )
        for _ in range(600):
            assert self.process.poll() is None, self.log.read_text()
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the server did not start within 30 s")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def uri(self, bucket: str = "bucket") -> str:
        return f"s3://{bucket}/a/prefix?region=us-east-1&endpoint_override={quote(self.endpoint, safe='')}"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def server(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_REQUIRED")  # nanio knows no others
    server = Server(tmp_path / "served")
    yield server
    server.kill()


def overwrite(server: Server, name: str, content: bytes) -> None:
    """Put other bytes in the place of a shard, as an object store would let anybody do."""
    filesystem, base = fs.FileSystem.from_uri(server.uri())
    with filesystem.open_output_stream(f"{base}/{name}") as stream:
        stream.write(content)


def test_a_committed_shard_is_read_back_and_a_second_commit_keeps_it(server):
    store = Store(server.uri())
    store.probe()
    assert store.names(FOLDER) == set()
    assert store.commit(shard(1), images(1))
    assert not store.commit(shard(1), images(2))
    assert store.read(shard(1)).to_pylist() == images(1).to_pylist()
    assert store.names(FOLDER) == {shard(1)}
    assert store.folders() == [FOLDER]
    assert store.problems(FOLDER) == []
    assert [*store.verify()] == [(shard(1), None)]
    with pytest.raises(FileNotFoundError):
        store.read(shard(2))


def test_a_shard_on_object_storage_is_the_file_that_a_local_store_holds(server, tmp_path, monkeypatch):
    local = Store(tmp_path / "local")
    local.commit(shard(1), images(1))
    Store(server.uri()).commit(shard(1), images(1))
    assert (server.files / "a/prefix" / shard(1)).read_bytes() == (tmp_path / "local" / shard(1)).read_bytes()
    filesystem, base = fs.FileSystem.from_uri(server.uri())
    assert pq.read_table(f"{base}/{shard(1)}", filesystem=filesystem).num_rows == 8
    with filesystem.open_input_file(f"{base}/{shard(1)}") as file:
        assert list(pd.read_parquet(file)["seed"]) == list(range(8))


def test_a_small_shard_is_one_put_and_a_large_one_a_multipart_upload(server):
    store = Store(server.uri())
    for number, size in ((1, 1_000_000), (2, 1_500_000)):
        store.commit(shard(number), images(number, size))
    sent = [line.split('"')[1].split()[:2] for line in server.log.read_text().splitlines() if "HTTP/1.1" in line]
    small, large = ([(verb, path) for verb, path in sent if shard(number) in path] for number in (1, 2))
    assert [verb for verb, path in small if verb != "HEAD" and "list-type" not in path] == ["PUT"]
    assert large[-1][0] == "POST"
    assert "uploadId" in large[-1][1]


def test_the_endpoint_may_come_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert Store("s3://bucket/a/prefix").commit(shard(1), images(1))
    assert Store(server.uri()).names(FOLDER) == {shard(1)}


def test_what_is_altered_cut_short_or_foreign_is_found_and_moved_out_of_the_way(server):
    store = Store(server.uri())
    for number in range(4):
        store.commit(shard(number), images(number))
    sound = serialise(images(0))
    overwrite(server, shard(0), sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    overwrite(server, shard(1), sound[:900])
    overwrite(server, shard(2), b"cut")
    overwrite(server, f"{FOLDER}/notes.txt", b"mine")
    overwrite(server, f"{FOLDER}/deeper/notes.txt", b"mine")
    for number in (0, 1, 2):
        with pytest.raises(StoreError):
            store.read(shard(number))
    assert store.names(FOLDER) == {shard(0), shard(1), shard(3)}
    verified = {name: problem.kind if problem else "sound" for name, problem in store.verify()}
    assert verified == {
        shard(0): "damaged",
        shard(1): "damaged",
        shard(2): "damaged",
        shard(3): "sound",
        f"{FOLDER}/notes.txt": "foreign",
        f"{FOLDER}/deeper": "foreign",
    }
    kept = store.quarantine(shard(1))
    assert (server.files / "a/prefix" / kept).read_bytes() == sound[:900]
    assert store.commit(shard(1), images(1))
    assert store.read(shard(1)).num_rows == 8


def _commit(root: str, size: int, numbers: range, ready: str) -> None:
    store = Store(root)
    shards = [(shard(number), images(number, size)) for number in numbers]
    for name, table in shards:
        store.commit(name, table)
        Path(ready).touch()


def test_two_writers_of_the_same_shards_leave_each_once_and_complete(server, tmp_path):
    context = multiprocessing.get_context("spawn")
    numbers = range(60)
    writers = [
        context.Process(target=_commit, args=(server.uri(), 2000, numbers, str(tmp_path / str(i)))) for i in (1, 2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    store = Store(server.uri())
    assert store.names(FOLDER) == {shard(number) for number in numbers}
    for number in numbers:
        assert store.read(shard(number)).to_pylist() == images(number, 2000).to_pylist()


@pytest.mark.parametrize("megabytes", [4, 24])
def test_a_writer_killed_in_the_middle_of_an_upload_leaves_only_complete_shards(server, tmp_path, megabytes):
    """SIGKILL at random moments of commits that are one PUT (4 MB) or an upload in parts (24 MB)."""
    context, moments = multiprocessing.get_context("spawn"), random.Random(megabytes)
    size, meant = megabytes * 125_000, {}
    for attempt in range(4):
        numbers, ready = range(10 * attempt, 10 * attempt + 4), tmp_path / f"ready{attempt}"
        meant |= {shard(number): number for number in numbers}
        writer = context.Process(target=_commit, args=(server.uri(), size, numbers, str(ready)))
        writer.start()
        while not ready.exists():
            assert writer.is_alive()
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.03 * megabytes))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    store = Store(server.uri())
    names = store.names(FOLDER)
    assert {shard(10 * attempt) for attempt in range(4)} <= names <= {*meant}
    for name in names:
        assert store.read(name).equals(images(meant[name], size).cast(store.read(name).schema))


def test_an_unknown_parameter_of_an_s3_uri_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="'endpoint'; did you mean 'endpoint_override'"):
        Store("s3://bucket/prefix?endpoint=127.0.0.1")
    with pytest.raises(ConfigError, match="names no bucket"):
        Store("s3:///prefix")


def test_a_server_that_stopped_answering_is_reported_in_time_and_the_same_store_works_when_it_is_back(server):
    store = Store(server.uri())
    store.commit(shard(1), images(1))
    server.signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*; the run goes on when it can be"):
        store.commit(shard(2), images(2))
    assert time.monotonic() - began < BOUND
    server.signal(signal.SIGCONT)
    assert store.commit(shard(2), images(2))
    assert store.names(FOLDER) == {shard(1), shard(2)}


def test_a_server_that_is_gone_is_reported_by_every_call_and_the_same_store_works_when_it_is_back(server):
    store = Store(server.uri())
    store.commit(shard(1), images(1))
    server.kill()
    calls = {
        "commit": lambda: store.commit(shard(2), images(2)),
        "read": lambda: store.read(shard(1)),
        "quarantine": lambda: store.quarantine(shard(1)),
        "names": lambda: store.names(FOLDER),
        "problems": lambda: store.problems(FOLDER),
        "folders": lambda: store.folders(),
        "verify": lambda: list(store.verify()),
    }
    for call in calls.values():
        with pytest.raises(StoreUnavailable, match="cannot be reached") as error:
            call()
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    with pytest.raises(EnvironmentFault, match="cannot be written"):  # before work starts nothing is waited for
        store.probe()
    server.start()
    store.probe()
    assert store.commit(shard(2), images(2))
    assert store.read(shard(1)).num_rows == 8


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_an_error_at_once_and_are_never_shown(server, monkeypatch, name):
    Store(server.uri()).commit(shard(1), images(1))
    wrong = "wrong-and-secret-all-the-same"
    monkeypatch.setenv(name, wrong)
    store = Store(server.uri())
    for call in (
        store.probe,
        lambda: store.commit(shard(2), images(2)),
        lambda: store.read(shard(1)),
        lambda: store.names(FOLDER),
        lambda: store.quarantine(shard(1)),
    ):
        with pytest.raises(EnvironmentFault, match=r"denies access.*AWS_ACCESS_KEY_ID") as error:
            call()
        assert wrong not in str(error.value)
        assert SECRET not in str(error.value)


def test_a_bucket_that_does_not_exist_is_an_error_and_never_an_empty_store(server):
    store = Store(server.uri("nowhere"))
    for call in (store.probe, store.folders, lambda: store.names(FOLDER), lambda: store.commit(shard(1), images(1))):
        with pytest.raises(EnvironmentFault, match="has no bucket"):
            call()


def test_a_server_that_stores_other_bytes_than_it_was_given_is_noticed_before_work_starts(server, monkeypatch):
    """nanio keeps the checksum that is sent behind the content as content, unless it is told not to be sent."""
    monkeypatch.delenv("AWS_REQUEST_CHECKSUM_CALCULATION")
    with pytest.raises(EnvironmentFault, match="AWS_REQUEST_CHECKSUM_CALCULATION=WHEN_REQUIRED"):
        Store(server.uri()).probe()


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAABCDEFGHIJKLMNOP:hidden%2Fhidden@bucket/prefix",
        "s3://AKIAABCDEFGHIJKLMNOP:hid/hidden@bucket/prefix",
        "s3://bucket/prefix?secret_key=hidden",
        "s3://bucket/prefix?X-Amz-Signature=hidden&region=us-east-1",
        "s3://bucket/prefix?endpoint_override=http%3A%2F%2Fuser%3Ahidden%40127.0.0.1",
        "gs://anonymous:hidden@bucket/prefix",
        "abfs://:hidden@account.dfs.core.windows.net/container",
    ],
)
def test_a_uri_with_credentials_is_refused_and_not_shown(uri):
    with pytest.raises(ConfigError, match=r"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as error:
        Store(uri)
    assert "hidden" not in str(error.value)
    assert "hidden" not in without_secrets(f"error: no '{uri}'")


def test_push_and_pull_bring_a_store_to_an_object_store_and_back(server, tmp_path):
    local = fill(tmp_path / "store", models=A, numbers=range(3))
    pushed = seesaw_store("push", tmp_path / "store", server.uri(), "--yes", "--json")
    assert pushed.exit_code == 0, pushed.output
    assert files(server.files / "a/prefix") == files(tmp_path / "store")
    again = json.loads(
        seesaw_store("push", tmp_path / "store", server.uri(), "--yes", "--json").output.splitlines()[-1]
    )
    assert (again["shards"], again["same"]) == (0, 6)
    listed = [json.loads(line) for line in seesaw_store("ls", server.uri(), "--json").output.splitlines()]
    assert {(each["kind"], each["shards"]) for each in listed[:-1]} == {("images", 3), ("answers", 3)}
    assert listed[0].get("images", 24) == 24
    overwrite(server, shard_of(A, 0)[0], b"other" + serialise(shard_of(A, 0)[1])[5:])
    back = seesaw_store("pull", tmp_path / "back", server.uri(), "--yes")
    assert back.exit_code == 1
    assert "damaged" in back.output
    assert files(tmp_path / "back").keys() == files(tmp_path / "store").keys() - {shard_of(A, 0)[0]}
    assert all(problem is None for _, problem in Store(tmp_path / "back").verify())
    assert local.names(shard_folder("images", "model a", A))


def test_mv_to_an_object_store_and_gc_there(server, tmp_path):
    fill(tmp_path / "store", models=A + B, numbers=range(2))
    before = files(tmp_path / "store")
    assert seesaw_store("mv", tmp_path / "store", server.uri(), "--yes").exit_code == 0
    assert files(server.files / "a/prefix") == before
    assert not (tmp_path / "store").exists()
    run_with(tmp_path / "outputs/a", A, VLM)
    collected = seesaw_store("gc", server.uri(), "--runs", tmp_path / "outputs", "--yes")
    assert collected.exit_code == 0, collected.output
    about = {answers_of(VLM, shard_of(A, number)[0])[0] for number in range(2)}
    assert files(server.files / "a/prefix").keys() == of(before, A) | about


def test_a_lease_keeps_others_off_an_object_store_until_it_was_not_renewed(server, tmp_path, monkeypatch):
    store = fill(tmp_path / "store", models=A, numbers=range(1))
    assert seesaw_store("push", tmp_path / "store", server.uri(), "--yes").exit_code == 0
    store = Store(server.uri())
    refused = pytest.raises(EnvironmentFault, match="at work on the store")
    with at_work(store), at_work(Store(server.uri())), refused, alone(store):
        pass
    with alone(store), pytest.raises(EnvironmentFault, match="being cleaned or moved"), at_work(Store(server.uri())):
        pass
    assert not store.entries("leases")
    # of a driver that was killed
    store.keep("leases/work-killed", b"somewhere 1")
    with pytest.raises(EnvironmentFault, match="at work on the store"), alone(store):
        pass
    monkeypatch.setattr(lock, "HELD", -1.0)
    with alone(store):
        pass
    monkeypatch.setattr(lock, "RENEWED", 0.05)
    with at_work(store):
        renewed = set()
        deadline = time.monotonic() + 20
        while len(renewed) < 2 and time.monotonic() < deadline:
            renewed |= {info.mtime_ns for info in store.entries("leases") if info.base_name != "work-killed"}
            time.sleep(0.1)
        assert len(renewed) == 2


def test_an_object_that_is_larger_than_a_shard_can_be_is_not_read(server, monkeypatch):
    store = Store(server.uri())
    store.commit(shard(1), images(1))
    monkeypatch.setattr(store_file, "LARGEST_SHARD", 1000)
    with pytest.raises(StoreError, match="1,000 are the most"):
        store.read(shard(1))
