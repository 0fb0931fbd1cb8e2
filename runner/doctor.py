"""`seesaw doctor`: what this machine can run, and what is missing for the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from seesaw.results.secrets import first_line
from seesaw.runner.cluster.machine import MachineCheck, machine_checks
from seesaw.runner.config import ClusterConfig
from seesaw.runner.display.streams import say

__all__ = ["show_doctor"]

_DISK_GB = 2.0  #: free in the current folder for the demo: environment, images, report
_ENGINES = {"torch": "diffusers and transformers", "diffusers": "text-to-image models", "vllm": "VLMs"}
#: run apart: a library that is broken, or a driver that hangs, must not take this command with it
_TORCH = (
    "import torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print('; '.join(f'{torch.cuda.get_device_name(i)}, "
    "{torch.cuda.get_device_properties(i).total_memory / 1e9:.0f} GB' for i in range(n)) or 'no GPU')"
)


def show_doctor(as_json: bool) -> int:
    """Print every check; 4 if something keeps even the demo from running here, else 0."""
    cluster = ClusterConfig()
    checks = [
        _python(),
        _package("ray", "the cluster", needed=True),
        *(_package(name, what, needed=False) for name, what in _ENGINES.items()),
        _gpus(),
        *machine_checks(cluster.cpus or os.cpu_count() or 1, cluster.object_store_gb),
        _disk(),
        _home(),
    ]
    blocking = [check for check in checks if check.problem]
    for check in checks:
        if as_json:
            line = {"event": "check", "name": check.name, "finding": check.finding, "problem": check.problem}
            say(json.dumps(line))
        else:
            say(f"{'MISSING' if check.problem else 'ok':8} {check.name}: {check.finding}")
            if check.problem:
                say(f"         {check.problem}")
    if as_json:
        say(json.dumps({"event": "doctor", "ok": not blocking}))
    elif not blocking:
        say("This machine can run `seesaw sweep demo`. `seesaw models` and `seesaw vlms` say which weights are here.")
    return 4 if blocking else 0


def _python() -> MachineCheck:
    version = platform.python_version()
    return MachineCheck("Python", f"{version} in {sys.prefix}; Seesaw {importlib.metadata.version('seesaw')}")


def _package(name: str, what: str, needed: bool) -> MachineCheck:
    """Whether a package is installed; one that only some models need is no problem of the machine's."""
    for distribution in (name, f"{name}-cpu"):
        try:
            return MachineCheck(name, f"{importlib.metadata.version(distribution)} ({what})")
        except importlib.metadata.PackageNotFoundError:
            continue
    remedy = f"pip install 'seesaw[cuda]', or on a CPU what requirements-cpu.lock lists, brings {name}"
    return MachineCheck(name, f"not installed ({what}): {remedy}", remedy if needed else "")


def _gpus() -> MachineCheck:
    """What torch itself sees, which is what counts: a driver that is too old shows in nvidia-smi and not in torch."""
    if importlib.util.find_spec("torch") is None:
        return MachineCheck("GPUs", "unknown: torch is not installed")
    command = [sys.executable, "-W", "ignore", "-c", _TORCH]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        finding = process.stdout.strip()
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no reason given"]
        return MachineCheck("GPUs", f"torch cannot be imported: {lines[-1]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return MachineCheck("GPUs", f"torch does not answer: {first_line(error)}")
    if finding == "no GPU" and shutil.which("nvidia-smi"):
        finding += " that torch can use, though nvidia-smi is here: is torch a CPU build, or the driver too old?"
    return MachineCheck("GPUs", finding)


def _disk() -> MachineCheck:
    free = shutil.disk_usage(".").free / 1e9
    finding = f"{free:,.1f} GB free in the current folder"
    problem = f"the demo takes about {_DISK_GB:g} GB: make room, or go to another folder" if free < _DISK_GB else ""
    return MachineCheck("disk", finding, problem)


def _home() -> MachineCheck:
    cache = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    token = "a token is set" if os.environ.get("HF_TOKEN") or (cache / "token").is_file() else "no token is set"
    return MachineCheck("Hugging Face", f"weights are looked up in {cache}; {token} (gated models need one)")
