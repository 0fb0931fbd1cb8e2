"""Which tests are slow, and fixtures that run the command as a user does: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # there is a process for each core: more threads in each would only wait for each other's core
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long one example of a property takes depends on what else the machine does
hypothesis.settings.register_profile("seesaw", deadline=None)
hypothesis.settings.load_profile("seesaw")

# a shell ignores SIGINT for what it runs in the background, and what the tests start would ignore it, too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: A test that asks for one of these fixtures is slow, as is what is marked in its file. The reasons:
SLOW_FIXTURES = {
    "start",  # a command that goes on beside the test, which stops or kills it
    "to_the_end",  # 5,200 mitigations, compared with a brute force
}

SEESAW = Path(sys.executable).parent / "seesaw"
#: of a Ray node in tests: what `ray.cluster_utils.Cluster` starts beside a raylet and nobody uses
FEW_PROCESSES = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    # slow files first: while the last of them runs, the other worker has fast ones left to do
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


class Command:
    """A `seesaw` process. It leads a process group, so that it can be killed together with all that it started."""

    def __init__(self, *args: object, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [SEESAW, *map(str, args)],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def events(self):
        """The events that `--json` prints, each as it comes."""
        for line in self.process.stdout:
            yield json.loads(line)

    def finish(self, timeout: float = 300) -> "Command":
        self.out, self.err = self.process.communicate(timeout=timeout)
        self.code = self.process.returncode
        return self

    def kill_group(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def seesaw(tmp_path):
    """`seesaw("sweep", ...)` runs a command to its end in the test's folder and returns its `.code`, `.out`, `.err`."""

    def run(*args: object, env: dict[str, str] | None = None, timeout: float = 300) -> Command:
        return Command(*args, cwd=tmp_path, env=env).finish(timeout)

    return run


@pytest.fixture
def start(tmp_path):
    """`start("sweep", ...)` begins a command that runs beside the test; it is killed when the test ends."""
    started = []

    def begin(*args: object, env: dict[str, str] | None = None) -> Command:
        started.append(Command(*args, cwd=tmp_path, env=env))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.kill_group()
