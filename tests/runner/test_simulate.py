"""The fleet's policy from beginning to end, on a virtual clock: all is done, once, soon, with few loads."""

import json
import time
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seesaw.results.store.store import Store
from seesaw.runner.experiment import load_experiment
from seesaw.runner.plan import make_plan, nodes_of, time_plan
from seesaw.runner.scheduling.resources import Demand, Node, places
from seesaw.runner.scheduling.simulate import lower_bound, simulate


def check(made, models, vlm, nodes):
    """Every batch was made once and asked once, after it was made, and nothing ever held more than there is."""
    done = {demand.name: Counter() for demand in (*models, *([vlm] if vlm else []))}
    for replica in made.replicas:
        done[replica.demand.name].update(replica.done)
        assert replica.began <= replica.loaded <= replica.ended
        assert replica.busy <= replica.ended - replica.loaded + 1e-6
    for demand in models:
        assert done[demand.name] == Counter((demand.name, i) for i in range(demand.queued))
    if vlm:
        assert done[vlm.name] == sum(
            (done[demand.name] for demand in models), Counter(("stored", i) for i in range(vlm.queued))
        )
    have = {node.name: node for node in nodes}
    for replica in made.replicas:
        node = have[replica.node]
        beside = [s for s in made.replicas if s.node == replica.node and s.began <= replica.began < s.ended]
        assert sum(s.demand.cpus for s in beside) <= node.cpus + 1e-6
        assert sum(s.demand.memory_gb for s in beside) <= node.memory_gb + 1e-6
        assert len(set(replica.gpus)) == len(replica.gpus) == -(-replica.demand.gpus // 1)
        for gpu in replica.gpus:
            assert 0 <= gpu < node.gpus
            sharing = [s for s in beside if gpu in s.gpus]
            assert sum(min(s.demand.gpus, 1) for s in sharing) <= 1 + 1e-6
            assert sum(s.demand.gpu_gb * min(s.demand.gpus, 1) for s in sharing) <= node.gpu_gb + 1e-6
    pins = {demand.name: demand.pinned for demand in (*models, *([vlm] if vlm else [])) if demand.pinned is not None}
    for replica in made.replicas:
        if replica.demand.name in pins:
            same = [
                s for s in made.replicas if s.demand.name == replica.demand.name and s.began <= replica.began < s.ended
            ]
            assert len(same) <= pins[replica.demand.name]
    assert made.makespan >= made.bound - 1e-6
    assert all(0 <= share <= 1 + 1e-9 for share in made.utilisation.values())


def realistic(fewest):
    """Five models of at least `fewest` batches and a VLM, of which each takes a GPU."""
    times = {"seconds": st.floats(10, 80), "load_seconds": st.floats(60, 180)}
    queued = st.integers(fewest, 4 * fewest)
    models = st.tuples(*(st.builds(Demand, st.just(f"m{i}"), queued, st.just(0), **times) for i in range(5)))
    even = st.builds(lambda batches, demands: tuple(replace(w, queued=batches) for w in demands), queued, models)
    vlm = st.builds(
        Demand, st.just("vlm"), st.just(0), st.just(0), seconds=st.floats(1, 40), load_seconds=st.floats(60, 180)
    )
    return st.tuples(models | even, vlm)


def assert_near_the_bound(demands, gpus, most):
    models, vlm = demands
    nodes = nodes_of(gpus, 80)
    made = simulate(models, vlm, nodes)
    check(made, models, vlm, nodes)
    assert made.makespan <= most * made.bound
    # bound on thrash: what a swap of the VLM between two models adds comes on top of a load a model and GPU
    assert made.loads <= 6 * gpus + 5


@settings(max_examples=40)
@given(realistic(300))
def test_five_models_on_8_gpus_end_within_15_percent_of_the_lower_bound(demands):
    assert_near_the_bound(demands, 8, 1.15)


@pytest.mark.parametrize("gpus", [1, 2, 4])
@settings(max_examples=15)
@given(realistic(300))
def test_five_models_on_fewer_gpus_end_within_30_percent_of_the_lower_bound(gpus, demands):
    assert_near_the_bound(demands, gpus, 1.3)


@settings(max_examples=4)
@given(realistic(2400))
def test_five_models_on_64_gpus_end_within_30_percent_of_the_lower_bound(demands):
    assert_near_the_bound(demands, 64, 1.3)


PLENTY = 1e6
NODES = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 4, 8]), st.sampled_from([24, 40, 80]), st.sampled_from([2, 16, PLENTY])),
    min_size=1,
    max_size=4,
).map(lambda rows: [Node(f"n{i}", *row, memory_gb=64) for i, row in enumerate(rows)])
ANY = {
    "queued": st.sampled_from([0, 1, 7, 60, 200]),
    "running": st.just(0),
    "seconds": st.sampled_from([0.1, 1, 10, 80]),
    "load_seconds": st.sampled_from([0, 1, 60, 180]),
    "gpus": st.sampled_from([0, 0.25, 0.5, 1, 1, 2, 4]),
    "gpu_gb": st.sampled_from([0, 8, 22, 38]),
    "cpus": st.sampled_from([0, 0.25, 1, 4]),
    "memory_gb": st.sampled_from([0, 8]),
    "pinned": st.sampled_from([None, None, 1, 3]),
    "more_to_come": st.booleans(),
}


@settings(max_examples=150)
@given(NODES, st.lists(st.fixed_dictionaries(ANY), max_size=5), st.none() | st.fixed_dictionaries(ANY))
def test_whatever_fits_somewhere_is_done_and_never_more_at_once_than_there_is(nodes, rows, asks):
    models = [Demand(f"m{i}", **row) for i, row in enumerate(rows)]
    models = [demand for demand in models if places(demand, nodes)]
    vlm = Demand("vlm", **asks) if asks else None
    if vlm and not places(vlm, nodes):
        vlm = None
    check(simulate(models, vlm, nodes), models, vlm, nodes)


def test_what_fits_on_no_node_is_refused():
    with pytest.raises(ValueError, match="'large' fits on no node"):
        simulate([Demand("large", 1, 0, 1, 1, gpus=4)], None, nodes_of(2, 80))


def test_the_lower_bound_is_all_work_over_all_gpus_and_one_load_each():
    models = [Demand("a", 100, 0, 10, 100), Demand("b", 50, 0, 20, 60)]
    assert lower_bound(models, None, nodes_of(1, 80)) == 2000 + 160
    assert lower_bound(models, None, nodes_of(4, 80)) == (2000 + 160 + 2 * 60) / 4
    assert lower_bound(models[:1], Demand("vlm", 20, 0, 5, 30), nodes_of(2, 80)) == (1000 + 600 + 130) / 2
    assert lower_bound([Demand("a", 1, 0, 10, 100)], None, nodes_of(8, 80)) == 110
    assert lower_bound([], None, nodes_of(8, 80)) == 0


def test_one_model_on_one_gpu_takes_its_load_and_its_batches():
    made = simulate([Demand("a", 10, 0, 30, 100)], None, nodes_of(1, 80))
    assert (made.makespan, made.loads, made.loading_hours) == (400, 1, 100 / 3600)
    assert made.utilisation == {("node-0", 0): 0.75}
    assert made.gpu_hours == {"a": 300 / 3600}


def test_stored_images_are_asked_though_none_is_to_be_made():
    made = simulate([Demand("a", 0, 0, 30, 100)], Demand("vlm", 40, 0, 2, 100), nodes_of(1, 80))
    assert made.makespan == 180
    assert [replica.demand.name for replica in made.replicas] == ["vlm"]


def test_the_vlm_is_never_idle_for_long_while_it_holds_a_gpu():
    for gpus, seconds in product((2, 8, 64), (2, 10, 40)):
        models = [Demand(f"m{i}", 400 * gpus // 2, 0, 40, 100) for i in range(5)]
        made = simulate(models, Demand("vlm", 0, 0, seconds, 100), nodes_of(gpus, 80))
        held = sum(replica.ended - replica.loaded for replica in made.replicas if replica.demand.name == "vlm")
        asked = sum(replica.busy for replica in made.replicas if replica.demand.name == "vlm")
        assert asked >= 0.8 * held, (gpus, seconds)


def paper(tmp_path, *overrides):
    experiment = load_experiment("paper", [f"store={tmp_path}/store", f"run={tmp_path}/run", *overrides])
    return experiment, make_plan(experiment, Store(experiment.store))


def test_the_papers_168480_images_on_512_gpus_are_simulated_in_seconds(tmp_path):
    experiment, plan = paper(tmp_path)
    began = time.perf_counter()
    timing = time_plan(experiment, plan, 512, 80)
    assert time.perf_counter() - began < 10
    assert timing.bound_hours <= timing.hours <= 1.15 * timing.bound_hours
    assert len(timing.utilisation) == 512
    assert {cost.source for cost in timing.costs} == {"its YAML"}
    assert sum(cost.gpu_hours for cost in timing.costs) == pytest.approx(plan.total("hours") + plan.vqa_hours)


def test_one_gpu_more_saves_an_eighth_and_pinned_models_gain_nothing_from_it(tmp_path):
    experiment, plan = paper(tmp_path)
    timing = time_plan(experiment, plan, 8, 80)
    assert timing.one_more_hours == pytest.approx(timing.hours * 8 / 9, rel=0.02)
    names = [*(model.name for model in experiment.models), experiment.vlm.name]
    experiment, plan = paper(tmp_path, *(f"cluster.replicas.{name}=1" for name in names))
    pinned = time_plan(experiment, plan, 8, 80)
    assert pinned.one_more_hours == pinned.hours > timing.hours
    assert {cost.loads for cost in pinned.costs} == {1}


def test_images_that_are_stored_are_asked_and_not_made_again(tmp_path):
    experiment, plan = paper(tmp_path)
    sd14 = replace(plan.models[0], answers_held=4112, images_held=4212)
    others = [replace(m, answers_held=m.batches, images_held=m.batches) for m in plan.models[1:]]
    timing = time_plan(experiment, replace(plan, models=(sd14, *others)), 1, 80)
    assert {cost.name: cost.loads for cost in timing.costs if cost.loads} == {"qwen2.5-vl-7b": 1}
    assert timing.hours * 3600 == pytest.approx(120 + 100 * 1.76)


def test_models_without_times_or_too_large_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = "[{name: unknown, engine: simulated, gpus: 1}, flux1-dev, sd14]"
    experiment, plan = paper(tmp_path, f"models={models}", "subjects=[nurse]")
    timing = time_plan(experiment, plan, 2, 24)
    assert [why.split(":")[0] for why in timing.left_out] == ["unknown", "flux1-dev"]
    assert "seconds_per_image" in timing.left_out[0]
    assert "40 GB" in timing.left_out[1]
    assert [cost.name for cost in timing.costs] == ["sd14", "qwen2.5-vl-7b"]
    on_cpus = time_plan(experiment, plan, 0, 80)
    assert on_cpus.hours == 0
    assert on_cpus.one_more_hours is None
    assert len(on_cpus.left_out) == 4


def test_plan_says_how_long_on_gpus_that_are_not_there(seesaw):
    shown = seesaw("plan", "paper", "images=8", "--gpus", "8", "--gpu-memory", "80")
    assert shown.code == 0, shown.err
    for words in ("On 8 GPUs of 80 GB", "GPUs at work", "one GPU more", "its YAML", "loading", "disk GB"):
        assert words in shown.out
    told = json.loads(seesaw("plan", "paper", "images=8", "--gpus", "8", "--json").out)
    assert told["time"]["gpus"] == 8
    assert told["time"]["hours"] >= told["time"]["bound_hours"] > 0
    assert len(told["time"]["utilisation"]) == 8
    assert "time" not in json.loads(seesaw("plan", "paper", "images=8", "--json").out)
    assert seesaw("plan", "paper", "--gpus", "-1").code == 2
