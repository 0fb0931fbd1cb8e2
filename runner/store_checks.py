"""What is checked of a run's store before work starts: that it is the one the run knows, and that it can be written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from seesaw.results.errors import EnvironmentFault, RunDirectoryError
from seesaw.results.store.store import Store
from seesaw.runner.experiment import Experiment
from seesaw.runner.plan import Plan, all_batches
from seesaw.runner.run_places import same_place, store_of

__all__ = ["check_same_store", "check_writable"]


def check_same_store(experiment: Experiment, store: Store) -> bool:
    """Whether the store of a recorded run is at another place than before; what it holds is what counts.

    Raises:
        EnvironmentFault: there is no store where this run has one, so all would be made again.
        RunDirectoryError: the run's store is where it was, and `store`, another one, lacks shards that it holds.
    """
    run = experiment.run
    known = store_of(run) if (run / "run.json").is_file() else ""
    if not known:
        return False
    if same_place(known, store.root):
        if "://" not in known and not store.is_there():  # an object store has no mark: it may be empty still
            raise _missing(experiment, known)
        return False
    if "://" in known or not Store(known).is_there():  # another's run.json must not choose the server that is asked
        if not any(_shards(experiment, store)):
            raise _missing(experiment, known)
        return True
    lacking = {*_shards(experiment, Store(known))} - {*_shards(experiment, store)}
    if lacking:
        raise RunDirectoryError(
            f"run '{run}' has its images and answers in the store '{known}', and '{store.root}' lacks {len(lacking):,} "
            f"of their shards; give store={known}, or bring them there first: seesaw store merge {known} {store.root}"
        )
    return True


def _missing(experiment: Experiment, known: str) -> EnvironmentFault:
    elsewhere = "" if same_place(known, experiment.store) else f", nor has '{experiment.store}' any of them"
    return EnvironmentFault(
        f"run '{experiment.run}' has its images and answers in the store '{known}', and there is none{elsewhere}; if "
        "it was moved, give its place with store=DIR; if it is gone for good, give another run=DIR to make all again"
    )


def _shards(experiment: Experiment, store: Store) -> Iterator[str]:
    """File names of a sweep's shards that a store holds, whatever its folders are called."""
    vlm = experiment.vlm
    answered = _files(store, store.folder("answers", vlm.name, vlm.identity))
    for model in experiment.models:
        made = _files(store, store.folder("images", model.name, model.identity))
        for batch in all_batches(experiment, model):
            for shard, held in ((batch.images, made), (batch.answers, answered)):
                if (name := os.path.basename(shard)) in held:
                    yield name


def _files(store: Store, folder: str) -> set[str]:
    return {os.path.basename(name) for name in store.names(folder)}


def check_writable(store: Store, plan: Plan) -> bool:
    """Whether the store can be written. If not, it serves a run that needs nothing new.

    What a mitigation needs beyond the cells of a sweep shows on its way: it ends when it first needs a new image.

    Raises:
        EnvironmentFault: the store cannot be written, and lacks a batch of a sweep.
    """
    try:
        store.probe()
    except EnvironmentFault as fault:
        lacking = plan.total("batches") - plan.total("answers_held") + plan.second_asks
        if lacking:
            raise EnvironmentFault(
                f"{fault}; a store that can only be read serves a run that needs nothing new, and this one lacks "
                f"{lacking:,} of {plan.total('batches'):,} batches"
            ) from fault
        return False
    return True
