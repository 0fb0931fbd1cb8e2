"""Starting a replica: a Ray actor with the CPUs and GPUs that its YAML asks for, on the node that the policy chose."""

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
    """A function that starts a replica of a model or of the VLM: (name, Ray node id) -> its actor, not yet loaded.

    Ray must not restart the actor: the pool does, and counts.
    """
    options: dict[str, Any] = {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "max_restarts": 0, "max_task_retries": 0}
    questionnaire: tuple[Any, ...] = ()  # the VLM's actor takes one argument more
    if isinstance(spec, ModelConfig):
        options["concurrency_groups"] = {WRITING: 1}
        actor: Any = ray.remote(**options)(TTIActor)
    else:
        actor, questionnaire = ray.remote(**options)(VQAActor), (_questionnaire(experiment),)

    def start(name: str, node: str) -> Any:
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        log = f"{logs.absolute()}/{name.replace('/', '-')}.log"
        engine = experiment.engines[spec.name]
        arguments = name, engine, spec.settings, *questionnaire, experiment.store, spec.threads, log, spec.gpus
        return actor.options(scheduling_strategy=on_node).remote(*arguments)

    return start


def _questionnaire(experiment: Experiment) -> VQAQuestionnaire:
    plain = experiment.questionnaire
    person = VQAQuestion(plain.person.text, plain.person.choices) if plain.person else None
    return VQAQuestionnaire(person, tuple(VQAQuestion(q.text, q.choices) for q in plain.questions))
