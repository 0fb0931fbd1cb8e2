"""Clusters: whose Ray is joined and what it listens on, what every node is asked before work, and who may be used."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import FEW_PROCESSES

pytestmark = pytest.mark.slow  # starts clusters of several Ray nodes

CONFIG = """
models: [{name: one, engine: simulated, gpus: 1, cpus: 0.5, memory_gb: 4}]
vqa: {name: vlm, engine: simulated, cpus: 0.5}
subjects: [nurse]
axes: [gender]
images: 8
store: STORE
run: run
"""
#: Ray nodes of this machine, each with two GPUs that are not there; a line of JSON starts one more, `leave` ends it
CLUSTER = """
import json, sys, time
from ray.cluster_utils import Cluster
small = dict(object_store_memory=80_000_000, **json.loads(sys.argv[1]))
head = dict(num_cpus=0, num_gpus=0, **small)
cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
nodes = []
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "leave\\n":
        gone = nodes.pop()
        cluster.remove_node(gone, allow_graceful=True)
        while any(n["NodeID"] == gone.node_id and n["Alive"] for n in cluster.global_state.node_table()):
            time.sleep(0.1)
    else:
        nodes.append(cluster.add_node(num_cpus=2, **small, **json.loads(line)))
    print(nodes[-1].node_id if nodes else "", flush=True)
cluster.shutdown()
"""
#: what a run does before its work; with `JOINS` in its environment it then waits for a newcomer
DRIVER = """
import json, os, sys
from seesaw.results.errors import SeesawError
from seesaw.runner.cluster import node_probe
from seesaw.runner.cluster.connect import connected, nodes
from seesaw.runner.experiment import load_experiment
from seesaw.runner.cluster.requirements import check_resources
from seesaw.runner.cluster.preflight import preflight, welcome
node_probe.PATIENCE = float(os.environ.get("PATIENCE", node_probe.PATIENCE))
said = {"notes": [], "nodes": {}, "fault": ""}
def tell(ready):
    said["notes"] += ready.notes
    said["refused"] = [*ready.refused]
    said["nodes"] = {n.name: [n.gpus, n.cpus] for n in nodes(ready.reports)}
    said["lacks"] = {name: [*report.lacks] for name, report in ready.reports.items()}
try:
    experiment = load_experiment("config.yaml", sys.argv[1:])
    with connected(experiment):
        check_resources(experiment)
        ready = preflight(experiment)
        tell(ready)
        if "JOINS" in os.environ:
            print("ready", flush=True)
            sys.stdin.readline()
            ready = welcome(experiment, ready)
            tell(ready)
            assert welcome(experiment, ready).notes == ()
except SeesawError as error:
    said["fault"], said["code"] = str(error), error.exit_code
print(json.dumps(said))
"""


class Nodes:
    """A cluster of this machine's own, with a token. `add` starts a node, in the environment that it is given."""

    def __init__(self, folder: Path) -> None:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
        self.env = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
        self.log = (folder / "cluster.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, json.dumps(FEW_PROCESSES)],
            env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        self.address = self.process.stdout.readline().strip()

    def say(self, line: str) -> str:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def add(self, num_gpus: int = 2, **env: str) -> str:
        if "PYTHONPATH" in env and "PYTHONPATH" in os.environ:  # where the tests find Seesaw, if it is not installed
            env["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        return self.say(json.dumps({"num_gpus": num_gpus, "env_vars": env}))

    def leave(self) -> None:
        self.say("leave")

    def close(self) -> None:
        left = psutil.Process(self.process.pid).children(recursive=True)
        self.process.communicate(timeout=30)
        for process in left:
            if process.is_running():
                process.kill()
        self.log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("cluster"))
    try:
        nodes.first = nodes.add()
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def place(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG.replace("STORE", str(tmp_path / "store")))
    (tmp_path / "store").mkdir()
    return tmp_path


@pytest.fixture
def drive(cluster, place):
    """What a driver says of the cluster before work: notes, nodes, fault, code."""

    def run(*overrides: str, **env: str) -> dict:
        command = [sys.executable, "-c", DRIVER, f"cluster.address={cluster.address}", *overrides]
        told = subprocess.run(
            command, cwd=place, env={**cluster.env, **env}, capture_output=True, text=True, timeout=120
        )
        assert told.returncode == 0, told.stderr
        assert not list((place / "store").glob(".*"))  # no mark is left behind
        return json.loads(told.stdout.splitlines()[-1])

    return run


def model(**keys):
    return "models=[{name: one, engine: simulated, " + ", ".join(f"{k}: {v}" for k, v in keys.items()) + "}]"


def test_a_store_that_all_nodes_share_and_models_that_fit_are_fine(cluster, drive):
    said = drive()
    assert said["fault"] == ""
    assert said["notes"] == []
    assert said["nodes"] == {cluster.first: [2, 2.0]}  # the head takes no work, and is not asked


def test_a_sweep_runs_on_a_cluster_that_it_joins(cluster, place, seesaw):
    env = {key: cluster.env[key] for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    command = seesaw("sweep", "config.yaml", "cluster.address=auto", env={**env, "RAY_ADDRESS": cluster.address})
    assert command.code == 0, command.err
    assert (place / "run/matrices.parquet").is_file()


def test_each_model_must_fit_by_itself_and_pinned_ones_all_at_once(drive):
    """One GPU for the model and all the CPUs for the VLM do not fit beside each other: they take turns."""
    assert drive(model(gpus=2, cpus=2), "vqa.cpus=2")["fault"] == ""
    large = drive(model(gpus=4))
    assert large["code"] == 4
    assert "the largest of 2 nodes has 2 GPUs and 2 CPUs" in large["fault"]
    assert "one: 1 x (4 GPU, 1 CPU), and there is room for 0" in large["fault"]
    many = drive("cluster.replicas.one=3")
    assert many["code"] == 4
    assert "one: 3 x (1 GPU, 0.5 CPU), and there is room for 2" in many["fault"]
    heavy = drive(model(cpus=1, memory_gb=900000))
    assert heavy["code"] == 4
    assert "one: it takes 900,000.0 GB of memory, and the largest node has" in heavy["fault"]


def test_weights_that_no_node_has_are_a_fault_of_one_line(cluster, drive):
    added = cluster.add()
    try:
        said = drive(
            "models=[{name: one, engine: diffusers, gpus: 1, settings: {repo: nobody/nothing, revision: main}}]",
            HF_HUB_OFFLINE="1",
        )
        assert said["code"] == 4
        lines = said["fault"].splitlines()
        assert len(lines) == 2, said["fault"]
        assert lines[1].startswith("  on 2 of 2 nodes (")
        assert added[:8] in lines[1]
        assert "hf download nobody/nothing" in lines[1]
    finally:
        cluster.leave()


def test_weights_that_one_node_lacks_are_a_note_while_another_has_them(cluster, drive, place):
    """An engine of the user's own finds what it needs on one node, by the environment that this was started in."""
    (place / "mine.py").write_text(
        "import os\nfrom seesaw.actors.simulated import SimulatedTTI\n"
        "from seesaw.results.errors import EnvironmentFault\n"
        "class Mine(SimulatedTTI):\n    @classmethod\n    def preflight(cls, settings):\n"
        "        if 'MY_WEIGHTS' not in os.environ:\n            raise EnvironmentFault('no weights')\n"
    )
    mine = "models=[{name: one, engine: 'mine:Mine', gpus: 1}]"
    assert drive(mine)["code"] == 4
    has = cluster.add(MY_WEIGHTS="1")
    try:
        said = drive(mine)
        assert said["fault"] == ""
        assert said["notes"] == [
            f"on 1 of 2 nodes ({said['notes'][0].split('(', 1)[1].split('): ')[0]}): one: no weights"
        ]
        assert cluster.first[:8] in said["notes"][0]
        assert said["lacks"] == {cluster.first: ["one"], has: []}
        submitted = json.dumps({"runtime_env": {"env_vars": {"MY_WEIGHTS": "1"}}})  # as `ray job submit` passes it on
        assert drive(mine, RAY_JOB_CONFIG_JSON_ENV_VAR=submitted)["notes"] == []
        pinned = drive(mine, "cluster.replicas.one=3")
        assert pinned["code"] == 4
        assert "one: no weights" in pinned["fault"]
    finally:
        cluster.leave()


def test_other_versions_on_a_node_are_refused(cluster, drive, place):
    for name, version in (("diffusers", "0.1.2"), ("seesaw", "9.9")):
        info = place / f"site/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    cluster.add(PYTHONPATH=str(place / "site"))
    try:
        said = drive()
        assert said["code"] == 4
        assert "on 1 of 3 nodes" in said["fault"]
        assert "Seesaw is 9.9 (code " in said["fault"]
        shutil.rmtree(place / "site/seesaw-9.9.dist-info")
        said = drive()
        assert said["code"] == 4
        assert "diffusers is 0.1.2 on " in said["fault"]
        assert "numbers would depend on the node" in said["fault"]
    finally:
        cluster.leave()


@pytest.mark.parametrize(
    ("does", "env", "message"),
    [
        (
            "raise ModuleNotFoundError(f'No module named {name!r}')",
            {},
            "its Seesaw (0.1.0) is another than the driver's",
        ),
        ("time.sleep(600)", {"PATIENCE": "5"}, "no answer within 5 seconds"),
    ],
)
def test_a_node_whose_seesaw_is_older_or_that_hangs_is_named(does, env, message, cluster, drive, place):
    (place / "site").mkdir()
    (place / "site/sitecustomize.py").write_text(
        "import sys, time\n\n\nclass Other:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'seesaw.runner.cluster.node_probe':\n            {does}\n\n\n"
        "sys.meta_path.insert(0, Other())\n"
    )
    added = cluster.add(PYTHONPATH=str(place / "site"))
    try:
        said = drive(**env)
        assert said["code"] == 4, said
        assert f"({added[:8]}))" in said["fault"]
        assert message in said["fault"]
    finally:
        cluster.leave()


@pytest.fixture
def alone(cluster, place):
    """A node that has a file system of its own where the driver has the store."""
    command = f"mount -t tmpfs none {place / 'store'} && exec {sys.executable} -m ray.scripts.scripts start --block"
    command += f" --address={cluster.address} --num-cpus=2 --num-gpus=2 --object-store-memory=80000000"
    node = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", command], env=cluster.env, text=True, stdout=subprocess.PIPE, stderr=cluster.log
    )
    try:
        assert any("Ray runtime started" in line for line in node.stdout)  # else it cannot: root may
        yield
    finally:
        left = psutil.Process(node.pid).children(recursive=True)
        node.terminate()
        node.communicate(timeout=30)
        for process in left:
            if process.is_running():
                process.kill()


def test_a_store_that_a_node_does_not_see_is_refused(cluster, alone, drive, place):
    said = drive()
    assert said["code"] == 4
    line = said["fault"].splitlines()[1]
    assert line.startswith("  on 1 of 3 nodes (")
    assert f"store '{place / 'store'}' is a directory of the driver's machine alone, and not seen there" in line
    assert "store=s3://" in line


def test_a_node_that_joins_in_mid_run_is_used_and_one_that_cannot_work_is_not(cluster, place):
    (place / "site/diffusers-0.1.2.dist-info").mkdir(parents=True)
    (place / "site/diffusers-0.1.2.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: diffusers\nVersion: 0.1.2\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, f"cluster.address={cluster.address}"], cwd=place, text=True,
        env={**cluster.env, "JOINS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert "ready\n" in driver.stdout
    good, other = cluster.add(), cluster.add(PYTHONPATH=str(place / "site"))
    try:
        said = json.loads(driver.communicate("go\n", timeout=120)[0].splitlines()[-1])
        assert set(said["nodes"]) == {cluster.first, good}
        assert said["refused"] == [other]
        joined, refused = sorted(said["notes"], key=len)
        assert joined.endswith(f"({good[:8]}) has joined")
        assert "has joined and is not used: diffusers is 0.1.2 on " in refused
    finally:
        cluster.leave()
        cluster.leave()


def refused(seesaw, address: str, env: dict[str, str] | None = None) -> str:
    """What a sweep says of a cluster that it cannot join, which must take it seconds."""
    began = time.monotonic()
    command = seesaw("sweep", "config.yaml", f"cluster.address={address}", env=env, timeout=60)
    assert time.monotonic() - began < 30
    assert command.code == 4, command.err
    assert command.err.count("no Ray cluster can be joined at cluster.address=") == 1, command.err
    assert "Traceback" not in command.err
    return command.err


def test_a_head_that_does_not_answer_is_said_in_seconds(cluster, place, seesaw):
    with socket.socket() as mute:
        mute.bind(("", 0))  # everywhere: for Ray 127.0.0.1 is the address of this machine's network card
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert "Connection refused" in refused(seesaw, address)
        mute.listen()
        assert "no answer within 5 seconds" in refused(seesaw, address)
    assert "no-such-host.invalid" in refused(seesaw, "no-such-host.invalid:6379")
    assert "RAY_AUTH_TOKEN" in refused(seesaw, cluster.address, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64})
    assert not (place / "run/run.json").exists()


def test_a_server_that_is_no_ray_head_is_said_in_seconds(place, seesaw):
    with http.server.HTTPServer(("", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert "Failed parsing HTTP/2" in refused(seesaw, f"127.0.0.1:{server.server_address[1]}")
        server.shutdown()


@pytest.mark.parametrize(
    ("address", "env"),
    [("ray://head:10001", {}), ("auto", {"RAY_ADDRESS": "ray://head:10001"})],
)
def test_a_ray_client_is_refused_with_the_reason(address, env, place, seesaw):
    command = seesaw("sweep", "config.yaml", model(gpus=0), f"cluster.address={address}", env=env)
    assert command.code == 2, command.err
    assert "ray job submit" in command.err


def test_auto_never_starts_a_ray_of_its_own(place, seesaw):
    command = seesaw("sweep", "config.yaml", "cluster.address=auto", env={"RAY_ADDRESS": "local"})
    assert command.code == 2, command.err
    assert "expected HOST:PORT of a Ray head" in command.err


LOCAL = """
import psutil, ray
from seesaw.runner.cluster.connect import connected, nodes
from seesaw.runner.experiment import load_experiment
@ray.remote(num_cpus=0)
class Actor:
    def ready(self):
        return True
with connected(load_experiment("config.yaml", ["cluster.cpus=2"])):
    actor = Actor.remote()
    assert ray.get(actor.ready.remote())
    assert [node.cpus for node in nodes()] == [2.0]
    mine = [psutil.Process(), *psutil.Process().children(recursive=True)]
    for process in mine:
        for listens in process.net_connections("inet"):
            if listens.status == psutil.CONN_LISTEN:
                print(process.name(), listens.laddr.ip)
    print(sorted(process.cmdline()[0].rsplit("/")[-1] for process in mine[1:]))
"""


def test_a_ray_of_our_own_listens_on_loopback_alone_and_starts_no_process_that_a_run_does_not_need(place):
    told = subprocess.run([sys.executable, "-c", LOCAL], cwd=place, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    *listening, processes = told.stdout.splitlines()
    listening = [line.rsplit(" ", 1) for line in listening]
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert {address.removeprefix("::ffff:") for _, address in listening} == {"127.0.0.1"}
    # no dashboard, autoscaler or log monitor, and one worker for one actor, though there are two CPUs
    assert processes == "['gcs_server', 'ray::Actor', 'ray::DashboardAgent', 'ray::RuntimeEnvAgent', 'raylet']"
