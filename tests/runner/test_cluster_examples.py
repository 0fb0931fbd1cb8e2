"""What configs/clusters offers to copy: each is valid for who reads it, and what can be run here is run."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from seesaw.results.errors import ConfigError
from seesaw.results.secrets import without_secrets
from seesaw.runner.config import CONFIGS, load_config

pytestmark = pytest.mark.slow  # starts Ray as the examples for clusters do

EXAMPLES = CONFIGS / "clusters"
CONFIG = """
models: [{name: one, engine: simulated, cpus: 0.5, settings: {seconds: 0.2}}]
vqa: {name: vlm, engine: simulated, cpus: 0.5}
subjects: [nurse]
axes: [gender]
images: 64
"""
#: fields of KubeRay's RayJob and RayCluster, version 1.5
RAY_JOB = {
    "entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "runtimeEnvYAML",
    "rayClusterSpec",
}  # fmt: skip
RAY_CLUSTER = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD_GROUP = {"serviceType", "rayStartParams", "template"}
WORKER_GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def example(name):
    return yaml.safe_load((EXAMPLES / name).read_text())


def test_examples_hold_no_secret_and_say_how_those_get_there():
    files = sorted(EXAMPLES.iterdir())
    assert [file.name for file in files] == ["kuberay.yaml", "ray-launcher.yaml", "runtime-env.yaml", "slurm.sbatch"]
    for file in files:
        text = file.read_text()
        assert without_secrets(text) == text
        assert "Not tried" in text
        assert "HF_TOKEN" in text


def test_they_are_no_configs_of_runs():
    with pytest.raises(ConfigError, match="no config 'kuberay'"):
        load_config("kuberay")
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(str(EXAMPLES / "kuberay.yaml"))


def test_ray_up_takes_the_launcher_s_config():
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(example("ray-launcher.yaml"))
    validate_config(prepared)
    assert prepared["available_node_types"]["local.cluster.node"]["min_workers"] == 2
    assert any("--dashboard-host=127.0.0.1" in command for command in prepared["head_start_ray_commands"])
    started = [*prepared["head_start_ray_commands"], *prepared["worker_start_ray_commands"]]
    assert all("RAY_AUTH_MODE=token" in command for command in started if "ray start" in command)


def test_the_ray_job_has_fields_that_kuberay_knows():
    job = example("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert set(spec) <= RAY_JOB
    assert set(cluster) <= RAY_CLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD_GROUP
    assert all(set(group) <= WORKER_GROUP for group in cluster["workerGroupSpecs"])
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [group["template"]["spec"]["containers"] for group in groups]
    assert len({each[0]["image"] for each in containers}) == 1  # versions are equal on all nodes
    for group, (container,) in zip(groups, containers, strict=True):
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]


def test_ray_takes_the_runtime_environments():
    from ray.runtime_env import RuntimeEnv

    for written in (example("runtime-env.yaml"), yaml.safe_load(example("kuberay.yaml")["spec"]["runtimeEnvYAML"])):
        assert RuntimeEnv(**written)["env_vars"]["HF_HUB_OFFLINE"] == "1"
        assert "working_dir" not in written


@pytest.fixture
def slurm(tmp_path):
    """The Slurm job's script on two "hosts" that are both this machine."""
    shims = tmp_path / "bin"
    shims.mkdir()
    for name, body in (
        ("srun", 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"'),
        ("scontrol", f'[ "$1" = show ] && printf "one\\ntwo\\n" || echo "$@" >> {tmp_path}/scontrol.log'),
    ):
        (shims / name).write_text(f"#!/bin/sh\n{body}\n")
        (shims / name).chmod(0o755)
    (tmp_path / "config.yaml").write_text(CONFIG)
    job = str(os.getpid())
    env = {
        **os.environ, "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}", "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "[one,two]", "SLURM_CPUS_PER_TASK": "1", "HF_HOME": str(tmp_path),
    }  # fmt: skip
    command = ["bash", EXAMPLES / "slurm.sbatch", "config.yaml", "store=store", "run=run"]
    started = []

    def start() -> subprocess.Popen:
        log = (tmp_path / f"{len(started)}.log").open("w")
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True))
        log.close()
        return started[-1]

    yield start
    for process in _of_job(job):
        process.kill()
    for script in started:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
            script.wait()
    shutil.rmtree(f"/tmp/ray-{job}", ignore_errors=True)


def _of_job(job: object) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if any(f"/tmp/ray-{job}/" in word for word in _command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_the_slurm_job_runs_is_interrupted_and_goes_on(slurm, tmp_path):
    job = slurm()
    until = time.monotonic() + 200
    while not list(tmp_path.glob("store/answers/*/*.parquet")):
        assert job.poll() is None, (tmp_path / "0.log").read_text()
        assert time.monotonic() < until, (tmp_path / "0.log").read_text()
        time.sleep(0.5)
    job.send_signal(signal.SIGTERM)  # as --signal=B:TERM does: to the script alone
    assert job.wait(120) == 3, (tmp_path / "0.log").read_text()
    assert (tmp_path / "scontrol.log").read_text() == f"requeue {os.getpid()}\n"
    assert "2 of 2 Ray nodes have joined" in (tmp_path / "0.log").read_text()
    until = time.monotonic() + 30
    while left := [" ".join(_command(process))[:300] for process in _of_job(os.getpid())]:
        assert time.monotonic() < until, left
        time.sleep(0.5)
    again = slurm()
    assert again.wait(200) == 0, (tmp_path / "1.log").read_text()
    assert (tmp_path / "run/matrices.parquet").is_file()
