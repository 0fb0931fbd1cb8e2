"""`seesaw store` killed at random moments: nothing that is to stay is lost, and the same command comes to its end.

Real SIGKILLs on real processes. Each is killed once a random number of changes have shown, until one comes to its end
by itself.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seesaw.results.store.store import Store
from tests.results.test_store_verbs import VLM, A, B, answers_of, files, fill, of, run_with, shard_of

pytestmark = pytest.mark.slow  # kills commands over and over

SEESAW = Path(sys.executable).parent / "seesaw"
MODEL = 60  #: shards of each model
LIVES = 60


def killed_until_it_ends(
    arguments: tuple[object, ...], shows: Callable[[], object], most: int, check: Callable[[], None]
) -> int:
    """How often `seesaw store ...` was killed, after at most `most` changes that showed, before it ended.

    `check` is called after each life.
    """
    moments = random.Random(7)
    for kills in range(LIVES):
        seen, due = shows(), moments.randint(1, most)
        process = subprocess.Popen([SEESAW, "store", *map(str, arguments)], stdout=subprocess.DEVNULL)
        while process.poll() is None and due:
            now = shows()
            due -= now != seen
            seen = now
            time.sleep(0.0005)
        process.kill()
        process.wait()
        check()
        if process.returncode == 0:
            return kills
        assert process.returncode == -signal.SIGKILL
    raise AssertionError(f"not at its end after {LIVES} lives")


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A store with two models and the answers about them."""
    root = tmp_path_factory.mktemp("filled") / "store"
    fill(root, numbers=range(MODEL))
    return root


def number_of_shards(root: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(root))


def test_gc_killed_at_random_loses_nothing_that_a_run_refers_to(filled, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(filled, store)
    run_with(tmp_path / "outputs/a", A, VLM)
    shards = files(store)
    about = {answers_of(VLM, shard_of(A, number)[0])[0] for number in range(MODEL)}
    kept = {name: content for name, content in shards.items() if name in of(shards, A) | about}

    def check() -> None:
        left = files(store)
        assert {name: left[name] for name in kept} == kept
        assert left.items() <= shards.items()

    arguments = ("gc", store, "--runs", tmp_path / "outputs", "--yes")
    kills = killed_until_it_ends(arguments, lambda: number_of_shards(store), 1, check)
    assert files(store) == kept
    assert kills >= 1


def test_merge_killed_at_random_copies_all_and_harms_neither(filled, tmp_path):
    target = tmp_path / "target"
    fill(target, models=B, numbers=range(5))
    before, wanted = files(target), files(filled)

    def check() -> None:
        there = files(target)
        assert before.items() <= there.items() <= (wanted | before).items()
        assert files(filled) == wanted

    kills = killed_until_it_ends(("merge", filled, target, "--yes"), lambda: number_of_shards(target), 40, check)
    assert files(target) == wanted | before
    assert not [problem for _, problem in Store(target).verify() if problem and problem.kind != "temporary"]
    assert kills >= 2


def test_mv_killed_at_random_loses_nothing_and_ends_with_one_store(filled, tmp_path):
    """Into a store that is there already, so that shards are copied and removed one by one."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(filled, source)
    fill(target, models=B, numbers=range(5))
    wanted = files(source) | files(target)

    def check() -> None:
        both = files(target) | (files(source) if source.exists() else {})
        assert both == wanted

    def shows() -> tuple[int, int]:
        return number_of_shards(source), number_of_shards(target)

    kills = killed_until_it_ends(("mv", source, target, "--yes"), shows, 80, check)
    assert files(target) == wanted
    assert not source.exists()
    assert kills >= 2
