"""Before work starts: whether this machine, or every node of the cluster, has what the run needs. One message, exit 4.

`check_disk` and `runner.cluster.requirements.check_resources` compare what is needed with what there is; `preflight`
asks each node that could take work for its versions, its memory, packages and weights, and whether it shares the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from seesaw.actors.hub import free_space
from seesaw.results.errors import EnvironmentFault
from seesaw.results.secrets import first_line
from seesaw.runner.cluster.connect import labels, leaving, named, nodes
from seesaw.runner.cluster.node_probe import (
    LIBRARIES,
    UNSEEN,
    EngineCheck,
    NodeReport,
    StoreMarker,
    engine_lacks,
    probe_nodes,
    probe_this_machine,
    versions,
)
from seesaw.runner.cluster.requirements import lines_by_problem, models_lack, resources_of, specs_of
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import Plan
from seesaw.runner.prompts import length_notes
from seesaw.runner.scheduling.resources import Node, places

__all__ = ["Ready", "check_disk", "preflight", "welcome"]


@dataclass(frozen=True)
class Ready:
    """The reports of the nodes that may be given work, by Ray node id, and the nodes that were probed and may not.

    `notes` say what is no reason to stop. Which models cannot be loaded on a node is in its report.
    """

    reports: Mapping[str, NodeReport] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def check_disk(plan: Plan, store: str) -> None:
    """EnvironmentFault if the images that a run would still make do not fit where a local store lies."""
    if "://" in store:
        return
    left = sum((model.disk_gb or 0) * (1 - model.images_held / model.batches) for model in plan.models)
    free = free_space(Path(store)) / 1e9
    if left > free:
        raise EnvironmentFault(
            f"this run makes about {left:,.1f} GB of images, and the file system of the store '{store}' has "
            f"{free:,.1f} GB free: make room, choose another place (store=DIR), or ask for fewer images (images=N)"
        )


def preflight(experiment: Experiment, uncounted: Mapping[str, Sequence[str]] | None = None) -> Ready:
    """Probe this machine, or every node of the cluster that could take work, for all that the run needs there.

    `uncounted` are prompts, by model, whose tokens could not be counted on this machine; a node that has the model's
    tokenizer does.

    A model needs one node that can load it, or as many as its `cluster.replicas` take; what other nodes lack is a note.
    Takes no longer than a node may take to answer (`runner.cluster.node_probe.PATIENCE`) and the store to write a few
    bytes.

    Raises:
        ConfigError: on this machine, an engine finds its settings wrong; a prompt is too long for a model.
        EnvironmentFault: something is missing; the message names all that is, on all nodes.
    """
    if experiment.cluster.address == "local":
        return _on_this_machine(experiment)
    reports, problems = _survey(experiment, nodes(), uncounted or {})
    lacking = [*lines_by_problem(problems), *_apart(experiment, reports)]
    short, notes = models_lack(experiment, nodes(reports), reports, cluster=True)
    lacking += short
    if lacking:
        raise EnvironmentFault("\n  ".join(["this run cannot start on this cluster:", *lacking]))
    return Ready(reports, notes=(*notes, *_lengths_there(reports, uncounted or {})))


def _lengths_there(reports: Mapping[str, NodeReport], uncounted: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on the prompts that nodes have counted, one node for each model. ConfigError if one is too long."""
    notes = []
    for model, texts in uncounted.items():
        counted = next((report.lengths[model] for report in reports.values() if model in report.lengths), None)
        notes += length_notes(texts, {model: counted})
    return notes


def welcome(experiment: Experiment, ready: Ready) -> Ready:
    """`ready` with the nodes that have joined since: those that can take work, and the others among `refused`.

    May block for as long as `preflight`. The notes are about the new nodes alone.

    Raises:
        EnvironmentFault: the store cannot be written from here now. Never because a new node lacks something.
    """
    new = [node for node in nodes() if node.name not in ready.reports and node.name not in ready.refused]
    reports_of_new, problems = _survey(experiment, new, {})
    label_of, reports = labels(), dict(ready.reports)
    notes = [f"not used: {line}" for line in lines_by_problem(problems)]
    refused = {node for node, _ in problems}
    for name, report in reports_of_new.items():
        label, apart = label_of.get(name, name), _apart(experiment, {**reports, name: report})
        if apart:
            refused.add(name)
            notes += [f"{label} has joined and is not used: {line}" for line in apart]
            continue
        reports[name] = report
        notes += [f"{label} has joined", *(f"{label} is without {model}: {why}" for model, why in report.lacks.items())]
    return Ready(reports, ready.refused | refused, tuple(notes))


def _on_this_machine(experiment: Experiment) -> Ready:
    checks = _engine_checks(experiment)
    with ThreadPoolExecutor() as pool:  # each may wait some seconds for what the hub says
        lacks = zip(checks, pool.map(engine_lacks, checks), strict=True)
        report = replace(probe_this_machine([]), lacks={model[0]: why for model, why in lacks if why})
    here = {node.name: report for node in nodes()}
    lacking, _ = models_lack(experiment, nodes(here), here, cluster=False)
    if lacking:
        raise EnvironmentFault("\n  ".join(["this run cannot start here:", *lacking]))
    return Ready(here)


def _survey(
    experiment: Experiment, nodes_now: Sequence[Node], uncounted: Mapping[str, Sequence[str]]
) -> tuple[dict[str, NodeReport], list[tuple[str, str]]]:
    """The reports of the nodes that can work with this driver, and (node, problem) of those that cannot.

    Only nodes that can hold a replica of something are probed. A node that leaves meanwhile is in neither.
    """
    demands = [resources_of(spec) for spec in specs_of(experiment)]
    useful = [node.name for node in nodes_now if any(places(demand, [node]) for demand in demands)]
    if not useful:
        return {}, []
    own, reports, problems = versions(), {}, []
    store, name = experiment.store, f".probe-{uuid.uuid4().hex}.tmp"
    marker = StoreMarker.at(store, name)
    with _marked(store, marker, useful):
        answers = probe_nodes(useful, _engine_checks(experiment), store, name, leaving.is_set, uncounted)
        alive = {node.name for node in nodes()}
        for node in alive.intersection(answers):
            answer = answers[node]
            if isinstance(answer, str):
                problems.append((node, answer))
                continue
            wrong = [*_differs(answer, own), *_unshared(answer, store, marker.reply_of(node))]
            problems += [(node, why) for why in wrong]
            if not wrong:
                reports[node] = answer
    return reports, problems


@contextmanager
def _marked(store: str, marker: StoreMarker, nodes: Sequence[str]) -> Iterator[None]:
    """Write a marker into the store for the nodes to see; after the block it and theirs are removed."""
    try:
        marker.write()
        yield
    except (OSError, pa.ArrowException) as error:
        raise EnvironmentFault(f"store '{store}' cannot be read and written: {first_line(error)}") from error
    finally:
        for left in (marker, *map(marker.reply_of, nodes)):
            with suppress(OSError, pa.ArrowException):  # nothing can be removed from a store that is unavailable
                left.remove()


def _differs(report: NodeReport, own: Mapping[str, str]) -> list[str]:
    same = ("Seesaw", "Python", "ray")
    return [
        f"{name} is {report.versions.get(name)} there, and {own[name]} here; install the same on every node"
        for name in same
        if report.versions.get(name) != own[name]
    ]


def _unshared(report: NodeReport, store: str, reply: StoreMarker) -> list[str]:
    if report.store and report.store != UNSEEN:
        return [report.store]
    if report.store or not reply.seen():
        return [
            f"store '{store}' is a directory of the driver's machine alone, and not seen there; give a shared "
            "filesystem or an object store (store=s3://bucket/prefix)"
        ]
    return []


def _apart(experiment: Experiment, reports: Mapping[str, NodeReport]) -> list[str]:
    """A line for each library that is not the same on all nodes that may hold a model: its numbers would differ."""
    usable, label_of, lines = nodes(reports), labels(), []
    for spec in specs_of(experiment):
        there = [node.name for node in usable if places(resources_of(spec), [node])]
        for library in LIBRARIES:
            nodes_by_version: dict[str, list[str]] = {}
            for node in there:
                if version := reports[node].versions.get(library):
                    nodes_by_version.setdefault(version, []).append(label_of.get(node, node))
            if len(nodes_by_version) > 1:
                each = ", ".join(f"{version} on {named(names)}" for version, names in sorted(nodes_by_version.items()))
                lines.append(
                    f"{library} is {each}, and numbers would depend on the node; install the same on every node, or "
                    "keep work off some (`ray start --num-cpus=0 --num-gpus=0`)"
                )
    return list(dict.fromkeys(lines))


def _engine_checks(experiment: Experiment) -> list[EngineCheck]:
    return [(s.name, experiment.engines[s.name], s.settings) for s in specs_of(experiment)]
