"""What Ray needs of a machine before it starts, looked at first: Ray itself aborts or hangs where it is missing."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seesaw.results.errors import EnvironmentFault

__all__ = ["MachineCheck", "check_machine", "machine_checks", "session_folder"]

SHM = Path("/dev/shm")
#: Threads of Ray, the driver and an actor or two, and of each further CPU's actors: measured 205 on two CPUs, where a
#: limit of 220 was too low.
THREADS, THREADS_PER_CPU = 180, 40
FILES = 512  #: open files of the process with the most
SOCKET = 107  #: bytes that the path of a Unix socket may have
#: what Ray appends to its folder: /session_2026-11-30_22-49-40_123456_1234567/sockets/plasma_store
SESSION = 75


@dataclass(frozen=True)
class MachineCheck:
    """One thing that was looked at: what was found and, if it is not enough, what is wrong and what would be right."""

    name: str
    finding: str
    problem: str = ""


def check_machine(cpus: int, object_store_gb: float) -> None:
    """Raise EnvironmentFault with everything that keeps Ray from starting here, and the remedy for each."""
    problems = [check.problem for check in machine_checks(cpus, object_store_gb) if check.problem]
    if problems:
        raise EnvironmentFault("\n  ".join(["Ray cannot start here:", *problems]))


def machine_checks(cpus: int, object_store_gb: float) -> list[MachineCheck]:
    """Look at the limits that a Ray of `cpus` CPUs with an object store of so many GiB meets on this machine."""
    return [_threads(cpus), _files(), _shared_memory(object_store_gb), _sockets()]


def session_folder() -> Path:
    """The folder in which a run makes its Ray session: short enough for the sockets of Ray.

    The temporary folder of the system (TMPDIR), or /tmp if that is too long.
    """
    usual = Path(tempfile.gettempdir())
    return usual if _fits(usual) else Path("/tmp")


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder)) + len("/seesaw-1234567-12345678/r") + SESSION <= SOCKET


def _threads(cpus: int) -> MachineCheck:
    name, needed = "processes and threads", THREADS + THREADS_PER_CPU * cpus
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.getuid() == 0 or limit == resource.RLIM_INFINITY:  # the superuser is not limited
        return MachineCheck(name, "no limit")
    used = _threads_of_user()
    finding = f"{limit:,} allowed (ulimit -u), {used:,} in use"
    if limit - used >= needed:
        return MachineCheck(name, finding)
    return MachineCheck(
        name,
        finding,
        f"this user may have {limit:,} processes and threads (ulimit -u), has {used:,}, and a run takes about "
        f"{needed:,}: raise the limit (ulimit -u {used + needed}), or use fewer CPUs (cluster.cpus)",
    )


def _threads_of_user() -> int:
    """Threads of all processes of this user."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process that has ended meanwhile
            if process.stat().st_uid == os.getuid():
                total += sum(1 for _ in (process / "task").iterdir())
    return total


def _files() -> MachineCheck:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # Ray raises the soft limit to the hard one
    finding = "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,} allowed (ulimit -Hn)"
    enough = limit == resource.RLIM_INFINITY or limit >= FILES
    return MachineCheck(
        "open files",
        finding,
        "" if enough else f"a process may open {limit:,} files (ulimit -Hn), and Ray needs {FILES}: raise the limit",
    )


def _shared_memory(object_store_gb: float) -> MachineCheck:
    name = "shared memory"
    if not SHM.is_dir():
        return MachineCheck(name, f"there is no {SHM}: Ray keeps its object store in the temporary folder")
    free = shutil.disk_usage(SHM).free / 2**30
    finding = f"{free:,.1f} GiB free in {SHM}"
    if free >= object_store_gb:
        return MachineCheck(name, finding)
    return MachineCheck(
        name,
        finding,
        f"{SHM} has {free:.2f} GiB free, and the object store takes {object_store_gb:g}: give it more (docker run "
        f"--shm-size={object_store_gb + 1:.0f}g), or set cluster.object_store_gb={max(free - 0.05, 0.075):.2f}",
    )


def _sockets() -> MachineCheck:
    folder = session_folder()
    finding = f"Ray's sockets lie in {folder}"
    if os.access(folder, os.W_OK) and _fits(folder):
        return MachineCheck("sockets", finding)
    return MachineCheck(
        "sockets",
        finding,
        f"the temporary folder '{tempfile.gettempdir()}' cannot be written or is too long for Ray's sockets "
        f"({SOCKET} bytes), and /tmp cannot be written: set TMPDIR to a short folder that this user may write to",
    )
