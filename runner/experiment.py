"""An experiment: a config whose names are resolved, checked and identified, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from seesaw.actors.engines import TTI_ENGINES, VQA_ENGINES
from seesaw.actors.pictogram.world import WORLDS
from seesaw.actors.plugins import Plugin, find_plugin
from seesaw.experiments.assignments import Assignment, assignments_of
from seesaw.experiments.dataset.load import Dataset, load_dataset
from seesaw.experiments.images import Images, images_of
from seesaw.experiments.priorities import read_priorities
from seesaw.experiments.questionnaire import Questionnaire, questionnaire_of
from seesaw.experiments.settings import AnalysisSettings, make_settings
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.store.identity import digest, questionnaire_key
from seesaw.results.store.store import Store
from seesaw.runner.config import (
    CONFIGS,
    ClusterConfig,
    Config,
    ModelConfig,
    VLMConfig,
    load_config,
    load_named,
    override_config,
)

__all__ = ["Experiment", "ResolvedModel", "analysis_settings", "load_experiment", "with_model"]

#: keys of `mitigate`
_MITIGATE = ("priorities", "epsilon", "margin", "strategy", "mitigator", "normalize", "max_steps", "fresh")
Spec = TypeVar("Spec", ModelConfig, VLMConfig)


@dataclass(frozen=True)
class ResolvedModel(Generic[Spec]):
    """A model or VLM with its identity (32 hex digits over engine, settings and what the engine adds)."""

    spec: Spec
    identity: str
    folder: str  #: of its shards in the store
    engine: Plugin

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class Experiment:
    name: str
    dataset: Dataset
    models: tuple[ResolvedModel[ModelConfig], ...]
    vlm: ResolvedModel[VLMConfig]
    images: Images
    seed: int
    settings: AnalysisSettings
    store: str
    run: Path
    cluster: ClusterConfig
    config: Config  #: as written, for the keys that a command of its own reads
    priorities: Any = None  #: of the config, or of the file that it names
    normalize: bool = False  #: whether `priorities` are still to be divided by their sum
    search: tuple[Path, ...] = ()  #: the folders where what the config names is looked up first
    second_vlm: ResolvedModel[VLMConfig] | None = None  #: reads the images of a sweep as well; figures are the first's

    @cached_property
    def questionnaire(self) -> Questionnaire:
        return questionnaire_of(self.dataset)

    @cached_property
    def questionnaire_key(self) -> str:
        asked = self.questionnaire
        return questionnaire_key(self.vlm.identity, [(q.text, q.choices) for q in asked.all], asked.person is not None)

    @property
    def second(self) -> Experiment | None:
        """This experiment as the second VLM reads it, if there is one."""
        if self.second_vlm is None:
            return None
        replicas = {name: count for name, count in self.cluster.replicas.items() if name == self.second_vlm.name}
        return replace(self, vlm=self.second_vlm, second_vlm=None, cluster=replace(self.cluster, replicas=replicas))

    @cached_property
    def mitigation_settings(self) -> AnalysisSettings:
        """The settings, with what is the default where a model is mitigated. Raises ConfigError."""
        usual = self.settings
        return make_settings(self.dataset, usual.metric, usual.targets, self.config.intervention or "target")

    @cached_property
    def assignments(self) -> list[Assignment]:
        """What is to be mitigated. Raises ConfigError."""
        config, models = self.config, [model.name for model in self.models]
        return assignments_of(
            self.dataset,
            models,
            self.priorities,
            epsilon=config.epsilon,
            normalize=self.normalize,
            seed=self.seed,
        )

    @property
    def vlms(self) -> tuple[ResolvedModel[VLMConfig], ...]:
        """The VLM that gives the figures, and the second one if there is one."""
        return (self.vlm,) if self.second_vlm is None else (self.vlm, self.second_vlm)

    @property
    def engines(self) -> dict[str, Plugin]:
        """The engine of every model and VLM, by its name."""
        served: list[ResolvedModel[Any]] = [*self.models, *self.vlms]
        return {each.name: each.engine for each in served}

    @property
    def simulated(self) -> tuple[str, ...]:
        """The models and VLMs whose engine is the simulated one: their images are noise, their answers made up."""
        served: list[ResolvedModel[Any]] = [*self.models, *self.vlms]
        return tuple(each.name for each in served if each.spec.engine == "simulated")

    @property
    def user_files(self) -> dict[str, bytes]:
        """The files of the user's that the config names classes in: `module.py` to its content."""
        config, plugins = self.config, [*self.engines.values()]
        strategies = config.strategy if isinstance(config.strategy, list) else [config.strategy]
        for what, name in [("mitigator", config.mitigator), *(("strategy", strategy) for strategy in strategies)]:
            if isinstance(name, str) and ":" in name:
                plugins.append(find_plugin(name, {}, what, self.search))
        return {plugin.copy: plugin.content for plugin in plugins if plugin.path}

    @property
    def truths(self) -> dict[str, str]:
        """The pictogram world that says what is true of a model, by its name, for those that have one."""
        return {model.name: model.spec.truth for model in self.models if model.spec.truth is not None}

    def resolved(self) -> dict[str, Any]:
        """The resolved config, which can be run as a config itself: it depends on no other file but the user's code."""
        return {
            "name": self.name,
            "dataset": self.dataset.to_mapping(),
            "models": [asdict(model.spec) for model in self.models],
            "images": self.images.as_config(),
            "seed": self.seed,
            "metric": dict(self.settings.metric),
            "targets": {axis: [float(x) for x in target] for axis, target in self.settings.targets.items()},
            **{key: getattr(self.config, key) for key in ("intervention", *_MITIGATE)},
            "priorities": self.priorities,
            "normalize": self.normalize,
            "vqa": [asdict(vlm.spec) for vlm in self.vlms] if self.second_vlm else asdict(self.vlm.spec),
            "store": self.store,
            "run": str(self.run),
            "cluster": asdict(self.cluster),
        }

    def fingerprint(self) -> dict[str, Any]:
        """What must stay the same in a run directory, for every command. Models, subjects and images may be added.

        Where the run and its store lie is no part of it.
        """
        dataset = self.dataset.to_mapping()
        return {
            "dataset": {key: value for key, value in dataset.items() if key != "subjects"},
            "subjects": list(self.dataset.subjects),
            "models": {model.name: model.identity for model in self.models},
            "images": self.images.as_config(),
            "seed": self.seed,
            "metric": dict(self.settings.metric),
            "targets": {axis: [float(x) for x in target] for axis, target in self.settings.targets.items()},
            "vqa": {self.vlm.name: self.vlm.identity},
            **({"second_vqa": {self.second_vlm.name: self.second_vlm.identity}} if self.second_vlm else {}),
        }


def load_experiment(source: str, overrides: Sequence[str] = ()) -> Experiment:
    """Resolve a config.

    Raises:
        InputError: something in it is unknown, contradictory or impossible; the message names the nearest right name.

    Example::

        experiment = seesaw.load_experiment("demo", ["images=16", "subjects=[police]"])
        experiment.dataset.subjects, [model.name for model in experiment.models]
    """
    config, search = load_config(source, overrides)
    dataset = load_dataset(config.dataset, search=search).select(
        subjects=_names(config.subjects, "subjects"), axes=_names(config.axes, "axes")
    )
    settings = make_settings(dataset, config.metric, config.targets, config.intervention or "uniform")
    priorities, normalize = _priorities_of(config, dataset, search)
    specs = [load_named(ModelConfig, "models", entry, search) for entry in _entries(config.models)]
    repeated = sorted({s.name for s in specs if sum(s.name == other.name for other in specs) > 1})
    if repeated:
        raise ConfigError(f"models: '{repeated[0]}' is there twice; every model needs a name of its own")
    for spec in specs:
        if spec.truth is not None and spec.truth not in WORLDS:
            raise ConfigError(f"{spec.name}: truth: no pictogram world '{spec.truth}'{nearest(spec.truth, WORLDS)}")
    store = Store(_absolute(config.store or "outputs/store"))
    models = tuple(_resolve(spec, "images", TTI_ENGINES, search, store) for spec in specs)
    vlms = _vlms(config.vqa, dataset, {spec.name for spec in specs}, search, store)
    _check_replicas(config.cluster, [*(model.name for model in models), *(vlm.name for vlm in vlms)])
    experiment = Experiment(
        name=config.name,
        dataset=dataset,
        models=models,
        vlm=vlms[0],
        second_vlm=vlms[1] if len(vlms) > 1 else None,
        images=images_of(config.images),
        seed=config.seed,
        settings=settings,
        store=store.root,
        run=Path(_absolute(config.run or f"outputs/{config.name}")),
        cluster=config.cluster,
        config=config,
        priorities=priorities,
        normalize=normalize,
        search=tuple(search),
    )
    if config.priorities is not None:  # a sweep does not use them, but keeps them in its config, so they must be right
        _ = experiment.assignments
    return experiment


def _vlms(
    vqa: Any, dataset: Dataset, taken: Collection[str], search: Sequence[Path], store: Store
) -> list[ResolvedModel[VLMConfig]]:
    """The VLM of the key `vqa`, or the two of them. Raises ConfigError."""
    entries = vqa if isinstance(vqa, list) else [vqa]
    if not 1 <= len(entries) <= 2:
        raise ConfigError(f"vqa: expected one VLM, or a list of two, got {len(entries)}")
    vlms = [
        _resolve(load_named(VLMConfig, "vlms", entry, search), "answers", VQA_ENGINES, search, store)
        for entry in entries
    ]
    for vlm in vlms:
        for question in questionnaire_of(dataset).all:
            if vlm.spec.questions and question.text not in vlm.spec.questions:
                raise ConfigError(
                    f"vqa: '{vlm.name}' was made for certain questions, and '{question.text}' is none; choose another"
                )
        if vlm.name in taken:
            raise ConfigError(
                f"vqa: the VLM and a model are both called '{vlm.name}'; every one needs a name of its own"
            )
    if len(vlms) == 2 and vlms[0].name == vlms[1].name:
        raise ConfigError(f"vqa: both VLMs are called '{vlms[0].name}'; every one needs a name of its own")
    if len(vlms) == 2 and vlms[0].identity == vlms[1].identity:
        raise ConfigError(f"vqa: '{vlms[0].name}' and '{vlms[1].name}' are one VLM, which agrees with itself")
    return vlms


def with_model(experiment: Experiment, spec: ModelConfig) -> Experiment:
    """`experiment` with one more model. Raises ConfigError for a name that is taken, and as its engine does."""
    if spec.name in experiment.engines:
        raise ConfigError(f"a model of this experiment is called '{spec.name}', which is kept for another; rename it")
    resolved = _resolve(spec, "images", TTI_ENGINES, [Path.cwd()], Store(experiment.store))
    return replace(experiment, models=(*experiment.models, resolved))


def analysis_settings(overrides: Sequence[str]) -> AnalysisSettings:
    """The settings of `seesaw analyze`: the defaults of a config, with the keys that an analysis has overridden."""
    config = override_config(Config(), overrides, allowed=("dataset", "axes", "metric", "targets", "intervention"))
    dataset = load_dataset(config.dataset, search=[Path.cwd()]).select(axes=_names(config.axes, "axes"))
    return make_settings(dataset, config.metric, config.targets, config.intervention or "uniform")


def _resolve(
    spec: Spec, kind: str, engines: Mapping[str, str], search: Sequence[Path], store: Store
) -> ResolvedModel[Spec]:
    plugin = find_plugin(spec.engine, engines, "engine", search)
    engine = plugin.load()
    if hasattr(engine, "absolute"):
        spec = replace(spec, settings=engine.absolute(spec.settings, [*search, Path.cwd()]))
    extra = engine.identity(spec.settings) if hasattr(engine, "identity") else {}
    extra = {**extra, **plugin.identity()}  # changed code makes other images
    inert: frozenset[str] = getattr(engine, "inert", frozenset())
    settings = {key: value for key, value in spec.settings.items() if key not in inert}
    try:
        identity = digest("model", {"engine": spec.engine, "settings": settings, "extra": extra})
    except TypeError as error:
        raise ConfigError(f"{spec.name}: settings: {error}") from None
    return ResolvedModel(spec, identity, store.folder(kind, spec.name, identity), plugin)


def _priorities_of(config: Config, dataset: Dataset, search: Sequence[Path]) -> tuple[Any, bool]:
    """The priorities, those of a CSV read, and whether they are still to be normalised: those of a CSV are already."""
    if not isinstance(config.priorities, str) or config.priorities == "draw":
        return config.priorities, config.normalize
    given = Path(config.priorities)
    path = next((folder / given for folder in search if (folder / given).is_file()), given)
    if path.suffix != ".csv" and not path.is_file():
        raise ConfigError(
            f"priorities is '{given}'; it must be 'draw', a mapping of axes to numbers, a list, or a .csv file"
        )
    rows = read_priorities(path, dataset, config.normalize)
    return [{"subject": subject, "priority": priority} for subject, priority in rows], False


def _absolute(place: str) -> str:
    """A directory as an absolute path, which means the same from everywhere; URIs stay as they are.

    A relative one is taken from the working directory, wherever it is written: in a config, on the command line, or as
    a default.
    """
    return place if "://" in place else os.path.abspath(os.path.expanduser(place))


def _entries(models: Any) -> list[Any]:
    entries = [models] if isinstance(models, (str, Mapping)) else models
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"models: expected a list of names, paths or mappings, got {models!r}")
    return entries


def _names(value: Any, key: str) -> list[str] | None:
    """None for all of them."""
    if value == "all":
        return None
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, (str, int, float)) for n in names):
        raise ConfigError(f"{key}: expected 'all' or a list of names, got {value!r}")
    return [str(n) for n in names]


def _check_replicas(cluster: ClusterConfig, served: Sequence[str]) -> None:
    shipped = {path.stem for kind in ("models", "vlms") for path in (CONFIGS / kind).glob("*.yaml")}
    for name in cluster.replicas:
        if name not in served and name not in shipped:  # a config may count what it serves in other runs only
            raise ConfigError(
                f"cluster.replicas: '{name}' is neither a model nor the VLM of this run{nearest(name, served)}"
            )
