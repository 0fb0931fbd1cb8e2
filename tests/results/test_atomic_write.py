"""A file is complete or absent, whoever is killed and whatever fails, and there is one way to write one."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest

from seesaw.results.atomic_write import atomic_write

ROOMS = ("actors", "experiments", "results", "runner")
HOUSE = Path(__file__).parents[2]


def test_a_write_replaces_what_was_there_and_leaves_nothing_else(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        with atomic_write(tmp_path / "t") as file:
            file.write(content)
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == b"new"


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_bytes(b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seesaw.results.atomic_write.os.fsync", no_space)
    with pytest.raises(OSError, match="No space"), atomic_write(tmp_path / "t") as file:
        file.write(b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == b"old"


def test_an_error_in_the_block_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"old")

    def write_half() -> None:
        with atomic_write(tmp_path / "t") as file:
            file.write(b"half")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        write_half()
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == b"old"


def test_an_exclusive_write_keeps_the_file_that_came_first(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "t", exclusive=True) as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "t", exclusive=True) as file:
        file.write(b"second")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == b"first"


def test_an_exclusive_write_without_hard_links_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.hardlink_to", no_links)
    with atomic_write(tmp_path / "t", exclusive=True) as file:
        file.write(b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == b"new"


def _write_for_ever(path: Path) -> None:
    while True:
        for byte in (b"a", b"b"):
            with atomic_write(path) as file:
                for _ in range(20):
                    file.write(byte * 50_000)
                    file.flush()


def test_a_writer_killed_at_any_moment_leaves_a_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with atomic_write(path) as file:
        file.write(b"a" * 1_000_000)
    for attempt in range(10):
        writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(path,))
        writer.start()
        time.sleep(0.02 + 0.007 * attempt)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        content = path.read_bytes()
        assert content in (b"a" * 1_000_000, b"b" * 1_000_000)


def test_no_other_module_renames_links_or_fsyncs_a_file() -> None:
    own_way = re.compile(r"os\.(?:replace|rename|link|fsync|fdatasync)\b|hardlink_to|\.replace\(\s*(?:path|self\.)")
    sources = [path for room in ROOMS for path in sorted((HOUSE / room).rglob("*.py"))]
    writers = {str(path.relative_to(HOUSE)) for path in sources if own_way.search(path.read_text(encoding="utf-8"))}
    renames_a_folder = "runner/stores/moving.py"  # a whole store, of which nothing is being written
    assert writers == {"results/atomic_write.py", renames_a_folder}
