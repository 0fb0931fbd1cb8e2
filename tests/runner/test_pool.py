"""A pool of real Ray actors: who is replaced, who is charged, and when it gives up."""

import asyncio
import os
import sys
import time

import pytest
import ray

from seesaw.results.errors import BatchFailed, EnvironmentFault, Interrupted, TryLater
from seesaw.runner.config import ClusterConfig
from seesaw.runner.display.events import Events
from seesaw.runner.fleet.fleet import run_on_replica
from seesaw.runner.fleet.pool import ReplicaPool
from seesaw.runner.fleet.work import Work

pytestmark = pytest.mark.slow  # starts Ray, and kills its actors

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Worker:
    """Loads, works, fails and dies as it is told to by its name and its work."""

    def __init__(self, name: str) -> None:
        self.name, self.asked = name, 0

    def load(self) -> dict:
        if "dies" in self.name:
            os._exit(1)
        if "faulty" in self.name:
            raise EnvironmentFault("no such weights")
        if "busy" in self.name:
            raise RuntimeError("the device is still held by the process before")
        return {"name": self.name, "pid": os.getpid(), "load_seconds": 0.0}

    def work(self, what: str) -> str:
        if what == "die":
            os._exit(1)
        if what == "fail":
            raise ValueError("bad work")
        if what == "later":
            raise TryLater("slow down", seconds=60)
        if what == "soon" and self.asked < 3:
            self.asked += 1
            raise TryLater("slow down", seconds=0.1)
        time.sleep(0.3 if what == "slow" else 0)
        return f"{what} by {self.name}"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


class Owner:
    """One node without neighbours, on which the pool is kept at `size` replicas."""

    def __init__(self, size: int) -> None:
        self.size = size

    def keep(self) -> None:
        pool = self.pool
        while len(pool.replicas) < self.size and pool.max_replicas is None:
            if pool.avoided_nodes or pool.broken or pool.stopping:
                return
            pool.start()

    def pool_changed(self) -> None:
        asyncio.get_running_loop().call_soon(self.keep)

    def end_run(self, fault) -> None:
        pass

    def fits_elsewhere(self, pool) -> bool:
        return False

    def has_several_nodes(self) -> bool:
        return False


def run(scenario, names, size=1, in_flight=2, attempts=3, **more):
    """Run `scenario(pool, events)` on a pool whose n-th replica has the n-th of `names`, the last repeating.

    It is kept at `size` replicas, as the fleet would.
    """
    made = iter(names)
    last = names[-1]

    def make(_: str, node: str):
        return ray.remote(num_cpus=0.1, max_restarts=0)(Worker).remote(next(made, last))

    async def main():
        events = Events(lambda event, counts: None)

        owner = Owner(size)
        cluster = ClusterConfig(in_flight=in_flight, attempts=attempts, **more)
        owner.pool = pool = ReplicaPool("pool", make, cluster, events, owner)
        owner.keep()
        try:
            return await scenario(pool, events)
        finally:
            await pool.close()

    return asyncio.run(main())


def call(pool: ReplicaPool, what: str, label: str = ""):
    return run_on_replica(pool, Work(label or what, "work"), lambda replica, tries: replica.actor.work.remote(what))


def test_a_dead_replica_is_replaced_and_what_kills_replicas_is_set_aside_alone():
    async def scenario(pool, events):
        results = await asyncio.gather(
            call(pool, "die"), *(call(pool, "ok", f"ok {i}") for i in range(6)), return_exceptions=True
        )
        assert isinstance(results[0], BatchFailed)
        assert (results[0].error, results[0].attempts, results[0].stage) == ("died", 3, "work")
        assert all(isinstance(r, str) for r in results[1:])
        assert 3 <= events.counts.replicas_lost <= 4  # the first time it may not have been alone

    run(scenario, ["a"], attempts=3)


def test_an_error_of_the_work_is_tried_again_and_then_set_aside_while_the_replica_lives():
    async def scenario(pool, events):
        with pytest.raises(BatchFailed, match="bad work") as failed:
            await call(pool, "fail")
        assert failed.value.error == "ValueError"
        assert events.counts.replicas_lost == 0
        assert await call(pool, "ok") == "ok by a"

    run(scenario, ["a"])


def test_a_service_that_asks_for_patience_gets_it_at_no_cost_of_attempts():
    async def scenario(pool, events):
        assert await call(pool, "soon") == "soon by a"
        assert "pool is left alone for" in events.counts.notes[0]
        assert "nothing is lost: slow down" in events.counts.notes[0]

    run(scenario, ["a"], attempts=1)


def test_while_a_model_is_left_alone_it_gets_no_other_batch_and_a_stop_ends_the_wait():
    async def scenario(pool, events):
        turned_away = asyncio.create_task(call(pool, "later"))
        while not pool.held_back:
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(call(pool, "ok", f"ok {i}")) for i in range(4)]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in (turned_away, *others))
        assert not any(replica.line for replica in pool.replicas)
        assert pool.waiting == 5
        pool.stop()
        ended = await asyncio.gather(turned_away, *others, return_exceptions=True)
        assert {type(error) for error in ended} == {Interrupted}

    run(scenario, ["a"], size=2)


def test_a_service_that_asks_for_more_patience_than_a_run_has_ends_it():
    async def scenario(pool, events):
        with pytest.raises(EnvironmentFault, match=r"pool does nothing for 6\d s.*slow down"):
            await call(pool, "later")

    run(scenario, ["a"], wait_seconds=30)


def test_a_replica_that_cannot_load_is_done_without_where_another_can():
    async def scenario(pool, events):
        assert await call(pool, "ok") == "ok by good"
        while not events.counts.notes:
            await asyncio.sleep(0.05)
        assert "going on with 1 of 2 replicas: no such weights" in events.counts.notes[0]
        assert await call(pool, "ok") == "ok by good"

    run(scenario, ["faulty", "good"], size=2)


def test_where_none_can_load_the_reason_is_what_is_raised():
    async def scenario(pool, events):
        with pytest.raises(EnvironmentFault, match="no such weights"):
            await call(pool, "ok")

    run(scenario, ["faulty"], size=2)


def test_replicas_that_die_while_they_load_are_tried_three_times_and_no_more():
    async def scenario(pool, events):
        with pytest.raises(EnvironmentFault, match="3 replicas in a row died while they loaded"):
            await call(pool, "ok")
        assert events.counts.replicas_lost == 3

    run(scenario, ["dies"])


def test_told_to_stop_it_finishes_what_runs_and_begins_nothing():
    async def scenario(pool, events):
        running = asyncio.create_task(call(pool, "slow"))
        waiting = [asyncio.create_task(call(pool, "slow", f"slow {i}")) for i in range(3)]
        while not any(replica.line for replica in pool.replicas):
            await asyncio.sleep(0.01)
        pool.stop()
        assert (await running).startswith("slow by")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(r) for r in results].count(Interrupted) >= 2

    run(scenario, ["a"], in_flight=2)


def test_a_replica_that_cannot_load_for_the_moment_is_tried_again_and_a_fault_is_told_at_once():
    async def scenario(pool, events):
        return await call(pool, "ok")

    assert run(scenario, ["busy", "busy", "fine"]) == "ok by fine"
    with pytest.raises(EnvironmentFault, match="3 replicas in a row died while they loaded; the last: the device is"):
        run(scenario, ["busy"])


def test_a_replica_that_dies_writing_is_charged_to_the_batch_that_it_wrote():
    async def scenario(pool, events):
        async def deadly(replica, tries):
            await replica.actor.work.remote("ok")
            return await replica.actor.work.remote("die")

        others = [call(pool, "slow", f"slow {i}") for i in range(4)]
        return await asyncio.gather(
            run_on_replica(pool, Work("deadly", "work"), deadly), *others, return_exceptions=True
        )

    deadly, *others = run(scenario, ["fine"], size=2)
    assert isinstance(deadly, BatchFailed)
    assert (deadly.error, deadly.attempts) == ("died", 3)
    assert others == ["slow by fine"] * 4


@pytest.mark.parametrize("attempts", [1, 2])
def test_what_stands_in_line_with_one_that_kills_is_never_charged(attempts):
    """Three in line at once, one of which kills, and many of those; whatever meets whatever, nobody else is lost."""

    async def scenario(pool, events):
        work = [call(pool, "die" if i % 4 == 0 else "ok", f"{i}") for i in range(16)]
        return await asyncio.gather(*work, return_exceptions=True)

    results = run(scenario, ["fine"], size=2, in_flight=3, attempts=attempts)
    assert [isinstance(result, BatchFailed) for result in results] == [i % 4 == 0 for i in range(16)]
    assert all(result.attempts == attempts for result in results if isinstance(result, BatchFailed))


def test_one_subject_that_kills_does_not_break_the_pool_and_two_do():
    """Seven batches of a subject in a row, each deadly: set aside alone. The same of two subjects: it is the model."""

    def deadly(pool: ReplicaPool, i: int, subject: str):
        work = Work(f"{subject} {i}", "work", subject)
        return run_on_replica(pool, work, lambda replica, tries: replica.actor.work.remote("die"))

    async def one(pool, events):
        bad = [deadly(pool, i, "chef") for i in range(7)]
        return await asyncio.gather(*bad, call(pool, "ok"), return_exceptions=True)

    *bad, good = run(one, ["fine"], in_flight=1, attempts=1)
    assert all(isinstance(result, BatchFailed) and result.stage == "work" for result in bad)
    assert good == "ok by fine"

    async def two(pool, events):
        bad = [deadly(pool, i, "chef" if i < 5 else "nurse") for i in range(6)]
        return await asyncio.gather(*bad, call(pool, "ok"), return_exceptions=True)

    *_, good = run(two, ["fine"], in_flight=1, attempts=1)
    assert isinstance(good, EnvironmentFault)
    assert "6 batches in a row killed their replicas" in str(good)
