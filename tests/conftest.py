"""Running the command as a user does: in a process of its own, with its exit code and what it printed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# a machine that is busy is no reason for a property to be false
hypothesis.settings.register_profile("seesaw", deadline=None)
hypothesis.settings.load_profile("seesaw")

# a shell ignores SIGINT for what it runs in the background, and what the tests start would ignore it, too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SEESAW = Path(sys.executable).parent / "seesaw"


class Command:
    """A `seesaw` process, its leader of a process group, so that it can be killed with all it started."""

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
        """Events of `--json` as they come."""
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
    """`seesaw("sweep", ...)` runs to its end in a folder of its own; `.code`, `.out` and `.err` say how it went."""

    def run(*args: object, env: dict[str, str] | None = None, timeout: float = 300) -> Command:
        return Command(*args, cwd=tmp_path, env=env).finish(timeout)

    return run


@pytest.fixture
def start(tmp_path):
    """`start("sweep", ...)` as a process that goes on; whatever is left of it is killed at the end of the test."""
    started = []

    def begin(*args: object, env: dict[str, str] | None = None) -> Command:
        started.append(Command(*args, cwd=tmp_path, env=env))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.kill_group()
