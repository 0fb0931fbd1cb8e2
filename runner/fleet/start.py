"""Starting replicas: Ray actors with what a YAML asks for, on the node that they are meant for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from seesaw.actors.engines import VQAQuestion
from seesaw.actors.tti import TTIActor
from seesaw.actors.vqa import VQAActor, VQAQuestionnaire
from seesaw.runner.config import ModelConfig, VLMConfig
from seesaw.runner.experiment import Experiment

__all__ = ["WRITING", "starter"]

WRITING = "writing"  #: the thread of a TTI actor that encodes and commits while the next batch is made


def starter(experiment: Experiment, spec: ModelConfig | VLMConfig, logs: Path) -> Callable[[str, str], Any]:
    """What starts a replica of a model or of the VLM: (name, Ray node id) to the actor, which has yet to load.

    Ray must not restart it: the pool does, and counts.
    """
    options: dict[str, Any] = {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "max_restarts": 0, "max_task_retries": 0}
    more: tuple[Any, ...] = ()
    if isinstance(spec, ModelConfig):
        options["concurrency_groups"] = {WRITING: 1}
        actor: Any = ray.remote(**options)(TTIActor)
    else:
        actor, more = ray.remote(**options)(VQAActor), (_questionnaire(experiment),)

    def start(name: str, node: str) -> Any:
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        log = f"{logs.absolute()}/{name.replace('/', '-')}.log"
        arguments = name, experiment.engines[spec.name], spec.settings, *more, experiment.store, spec.threads, log
        return actor.options(scheduling_strategy=here).remote(*arguments)

    return start


def _questionnaire(experiment: Experiment) -> VQAQuestionnaire:
    asked = experiment.questionnaire
    person = VQAQuestion(asked.person.text, asked.person.choices) if asked.person else None
    return VQAQuestionnaire(person, tuple(VQAQuestion(q.text, q.choices) for q in asked.questions))
