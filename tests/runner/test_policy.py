"""The fleet's policy on single moments: who is started, who has to go, who stays."""

import time
from dataclasses import replace

import pytest

from seesaw.runner.config import ModelConfig, VLMConfig
from seesaw.runner.plan import demand_of
from seesaw.runner.scheduling.policy import decide
from seesaw.runner.scheduling.resources import Demand, Node, PlacedReplica, places

VLM = Demand("vlm", queued=0, running=0, seconds=2, load_seconds=120, gpus=1, gpu_gb=22, cpus=4)


def model(name, queued=1000, **more):
    return Demand(name, **{"queued": queued, "running": 0, "seconds": 40, "load_seconds": 100, "gpu_gb": 20, **more})


def cluster(*gpus, gpu_gb=80, cpus=64):
    return [Node(f"n{i}", count, gpu_gb, cpus, 512) for i, count in enumerate(gpus)]


def replica(name, state="busy", gpu=0, node="n0", number=1):
    gpus = gpu if isinstance(gpu, tuple) else (gpu,)
    return PlacedReplica(f"{name}-{number}-{'.'.join(map(str, gpus))}", name, node, gpus, state)


def started(decision):
    return [start.model for start in decision.start]


def test_eight_gpus_go_to_all_models_at_once_and_most_to_the_one_with_most_work():
    models = [model("a", 4000), model("b"), model("c"), model("d"), model("e")]
    decision = decide(models, VLM, [], cluster(8))
    assert sorted(started(decision)) == ["a", "a", "a", "a", "b", "c", "d", "e"]
    assert sorted(start.gpus for start in decision.start) == [(gpu,) for gpu in range(8)]
    assert len(decision.lines) == 8
    assert all(start.reason for start in decision.start)


def test_one_gpu_makes_one_model_after_the_other_and_asks_at_the_end():
    a, b = model("a", 300), model("b", 200)
    assert started(decide([a, b], VLM, [], cluster(1))) == ["a"]
    made = [replace(a, queued=0), b]
    then = decide(made, replace(VLM, queued=300), [replica("a", "idle")], cluster(1))
    assert [stop.replica for stop in then.stop] == ["a-1-0"]
    assert started(then) == ["b"]
    made = [replace(a, queued=0), replace(b, queued=0)]
    last = decide(made, replace(VLM, queued=500), [replica("b", "idle")], cluster(1))
    assert started(last) == ["vlm"]


def test_the_fastest_model_comes_first_where_the_vlm_would_wait_for_images():
    models = [model("slow", 900, seconds=80), model("fast", 300, seconds=10)]
    assert started(decide(models, replace(VLM, seconds=70), [], cluster(2))) == ["vlm", "fast"]
    assert started(decide(models, VLM, [], cluster(1))) == ["slow"]


def test_between_two_models_the_vlm_asks_what_outweighs_its_load_by_far():
    models = [model("a", 0), model("b")]
    decision = decide(models, replace(VLM, queued=4000), [replica("a", "idle")], cluster(1))
    assert started(decision) == ["vlm"]
    asked = decide(models, VLM, [replica("vlm", "idle")], cluster(1))
    assert [stop.model for stop in asked.stop] == ["vlm"]
    assert started(asked) == ["b"]


def test_a_vlm_that_needs_no_gpu_runs_beside_from_the_start():
    decision = decide([model("a")], replace(VLM, gpus=0, gpu_gb=0, memory_gb=4), [], cluster(1))
    assert sorted((start.model, start.gpus) for start in decision.start) == [("a", (0,)), ("vlm", ())]


def test_on_many_gpus_the_vlm_gets_as_many_as_keep_up_with_the_images():
    models = [model(name, 5000) for name in "abcde"]
    for seconds, at_least, at_most in ((2, 3, 5), (10, 12, 15), (40, 31, 34)):
        count = started(decide(models, replace(VLM, seconds=seconds), [], cluster(*[8] * 8))).count("vlm")
        assert at_least <= count <= at_most, (seconds, count)


def test_what_goes_well_is_left_alone():
    models = [model("a", 500, running=3), model("b", 400, running=4)]
    replicas = [replica("a", gpu=g) for g in range(3)] + [replica("b", gpu=g) for g in range(3, 7)]
    replicas.append(replica("vlm", "idle", gpu=7))
    decision = decide(models, replace(VLM, seconds=6), replicas, cluster(8))
    assert (decision.stop, decision.start, decision.lines) == ((), (), [])


def test_a_free_gpu_joins_a_model_only_if_its_work_is_worth_the_load():
    alone = [replica("a")]
    assert started(decide([model("a", 30, running=1)], None, alone, cluster(2))) == ["a"]
    assert started(decide([model("a", 3, running=1)], None, alone, cluster(2))) == []
    many = [replica("a", gpu=g) for g in range(7)]
    assert started(decide([model("a", 20, running=7)], None, many, cluster(8))) == []


def test_a_busy_replica_makes_room_for_the_vlm_only_if_its_model_has_others():
    late = replace(VLM, queued=1300)  # more work than there is for the other GPU
    two = [replica("a", gpu=0), replica("a", gpu=1)]
    decision = decide([model("a", 60, running=2)], late, two, cluster(2))
    assert [(stop.model, stop.after_batch) for stop in decision.stop] == [("a", True)]
    assert started(decision) == []  # when the place is free
    going = [replica("a", "draining", gpu=0), replica("a", gpu=1)]
    assert decide([model("a", 60, running=2)], late, going, cluster(2)).lines == []
    gone = decide([model("a", 60, running=1)], late, going[1:], cluster(2))
    assert [(start.model, start.gpus) for start in gone.start] == [("vlm", (0,))]
    others = [replica("a", gpu=0), replica("b", gpu=1)]
    assert decide([model("a", 30, running=1), model("b", 30, running=1)], late, others, cluster(2)).lines == []


def test_an_idle_vlm_stays_if_it_will_be_needed_soon_and_goes_if_a_move_pays():
    replicas = [replica("vlm", "idle"), replica("a", gpu=1)]
    soon = decide([model("a", 20, running=1)], replace(VLM, seconds=30), replicas, cluster(2))
    assert soon.lines == []
    long = decide([model("a", 5000, running=1)], VLM, replicas, cluster(2))
    assert [stop.model for stop in long.stop] == ["vlm"]
    assert started(long) == ["a"]


def test_a_model_of_several_gpus_gets_them_on_one_node():
    large = model("large", gpus=4, gpu_gb=80)
    assert places(large, cluster(2, 2, 2)) == 0
    assert decide([large], None, [], cluster(2, 2, 2)).start == ()
    start = decide([large, model("small")], VLM, [], cluster(2, 4)).start
    assert [(s.node, s.gpus) for s in start if s.model == "large"] == [("n1", (0, 1, 2, 3))]
    assert {s.node for s in start if s.model != "large"} == {"n0"}


def test_small_models_share_a_gpu_if_they_ask_for_a_fraction_and_their_memory_fits():
    half = [model("a", gpus=0.5, gpu_gb=20), model("b", gpus=0.5, gpu_gb=20)]
    assert [s.gpus for s in decide(half, None, [], cluster(1, gpu_gb=24)).start] == [(0,), (0,)]
    assert decide(half, None, [], cluster(2, gpu_gb=16)).start == ()
    assert places(half[0], cluster(2, gpu_gb=24)) == 4
    whole = [replace(demand, gpus=1) for demand in half]
    assert len(decide(whole, None, [], cluster(1, gpu_gb=24)).start) == 1


def test_a_shared_gpu_gives_no_more_memory_than_its_share_and_a_vlm_is_spread_over_its_gpus():
    def needs(config, **more):
        return demand_of(config("x", "simulated", memory_gb=10, **more), {}, 1).gpu_gb

    assert needs(ModelConfig, gpus=0.5) == needs(VLMConfig, gpus=0.5) == 20
    assert needs(ModelConfig, gpus=2) == 10  # it lies on one of them
    assert needs(VLMConfig, gpus=2) == 5
    assert needs(ModelConfig, gpus=0) == 0


def test_large_gpus_are_kept_for_models_that_need_them():
    nodes = [Node("big", 1, 80), Node("small", 1, 24)]
    start = decide([model("a", 9000), model("b", gpu_gb=40)], None, [], nodes).start
    assert {s.model: s.node for s in start} == {"a": "small", "b": "big"}


def test_pinned_replicas_are_kept_to():
    models = [model("a", 9000, pinned=1), model("b", 10, pinned=2), model("c")]
    decision = decide(models, replace(VLM, pinned=2), [], cluster(8))
    assert sorted(started(decision)) == ["a", "b", "b", "c", "c", "c", "vlm", "vlm"]
    assert started(decide([model("a", 9000, pinned=1)], None, [replica("a")], cluster(8))) == []


def test_while_answers_may_bring_more_an_idle_model_gives_way_only_to_work_worth_two_loads():
    waits = model("a", 0, more_to_come=True)
    replicas = [replica("a", "idle"), replica("vlm", gpu=1)]
    few = decide([waits, model("b", 2)], replace(VLM, running=1), replicas, cluster(2))
    assert few.lines == []
    many = decide([waits, model("b", 50)], replace(VLM, running=1), replicas, cluster(2))
    assert started(many) == ["b"]
    nobody_else = decide([waits, model("b", 2)], None, replicas[:1], cluster(1))
    assert started(nobody_else) == ["b"]


def test_the_vlm_never_takes_the_place_without_which_no_image_is_made():
    for vlm in (VLM, replace(VLM, seconds=500), replace(VLM, pinned=1)):
        assert started(decide([model("a", 20)], vlm, [], cluster(1))) == ["a"]
        assert started(decide([model("large", 20, gpus=4)], vlm, [], cluster(4))) == ["large"]


def test_replicas_of_models_that_are_not_served_any_more_make_room():
    decision = decide([model("a")], None, [replica("old", "idle")], cluster(1))
    assert [stop.model for stop in decision.stop] == ["old"]
    assert started(decision) == ["a"]


def test_names_that_mean_two_things_and_nodes_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="names of their own"):
        decide([model("vlm")], VLM, [], cluster(1))
    with pytest.raises(ValueError, match="not there"):
        decide([model("a")], VLM, [replica("a", node="n7")], cluster(1))


def test_six_models_on_64_gpus_are_decided_in_less_than_10_ms_and_always_alike():
    models, nodes = [model(f"m{i}", 5000, running=10) for i in range(5)], cluster(*[8] * 8)
    replicas = [replica(f"m{i % 5}", gpu=i % 8, node=f"n{i // 8}", number=i) for i in range(62)]
    moments = [[], replicas, [replace(r, state="idle") if i % 3 == 0 else r for i, r in enumerate(replicas)]]
    for moment in moments:
        seconds, decisions = [], []
        for _ in range(7):
            began = time.perf_counter()
            decisions.append(decide(models, replace(VLM, queued=700), moment, nodes))
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 0.010
        assert all(decision == decisions[0] for decision in decisions)
