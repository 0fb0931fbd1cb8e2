"""Reading a config: YAML as people write it, and `k=v` onto it. What the keys mean is no matter here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seesaw.results.errors import ConfigError, nearest
from seesaw.results.secrets import first_line, secret_in

__all__ = ["find_yaml", "override", "read_yaml"]

_REPLICAS = "cluster.replicas."
_TEXT_KEYS = ("name", "run", "store")  #: whose values are text to the letter, whatever YAML would make of them
_NO_WORDS = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")  #: plain words of YAML that stay what they are
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find_yaml(source: str, folder: Path, what: str) -> Path:
    """The YAML file that is meant by a path, or by the name of one in `folder`; `what` it is, for messages.

    Raises ConfigError with the nearest name that there is.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.parent != Path() or path.is_dir():
        if path.is_file():
            return path
        if path.is_dir():
            raise ConfigError(f"{what} '{source}' is a directory; expected a YAML file")
        if _HUB_ID.fullmatch(source) and not path.parent.is_dir() and what != "config":
            raise ConfigError(f"{what} '{source}' is a hub repository: {_hub_remedy(source, folder, what)}")
        raise ConfigError(f"{what} '{source}' does not exist{_near_files(path)}")
    named = folder / f"{source}.yaml"
    if not source or not named.is_file():
        names = [p.stem for p in folder.glob("*.yaml")]
        raise ConfigError(f"no {what} '{source}' in {folder.name}/{nearest(source, names)}")
    return named


def _hub_remedy(repo: str, folder: Path, what: str) -> str:
    """What to write for a repository of the hub: a shipped YAML that names it, or one of the user's own."""
    shipped = [path.stem for path in sorted(folder.glob("*.yaml")) if f": {repo}\n" in path.read_text(encoding="utf-8")]
    settings = (
        f"engine: diffusers, settings: {{repo: {repo}}}"
        if what == "model"
        else (f"engine: vllm, settings: {{model: {repo}}}")
    )
    own = f"write a YAML file with {settings}, and give its name"
    return f"say '{shipped[0]}', which is shipped for it, or {own}" if shipped else own


def _near_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f": there is no folder '{path.parent}'"
    return nearest(path.name, [p.name for p in path.parent.glob("*.y*ml")])


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The keys and values of a YAML file, variables resolved. Raises ConfigError for what is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file (UTF-8); expected YAML") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        loaded = OmegaConf.create(_with_words(text))
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply for a config") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except (OmegaConfBaseException, ValueError, AssertionError) as error:
        raise ConfigError(f"{path}: {first_line(error)}") from None
    if not isinstance(loaded, DictConfig) or not loaded or list(loaded) == [text.strip()]:
        raise ConfigError(f"{path} is {'empty' if not text.strip() else 'no mapping of keys to values'}")
    return _plain(loaded, str(path))


def _with_words(text: str) -> str:
    """The same YAML, with quotes around what YAML would read as another type, and is a word here.

    These are all keys (`yes`, `NO` and `20` name attributes), and the values of `name`, `run` and `store` at the top
    (`2024_05_01` names a folder). A position in the text stays on its line.
    """
    marks: list[tuple[yaml.Mark, yaml.Mark]] = []

    def visit(node: yaml.Node, top: bool) -> None:
        children = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else []
        for child in children:
            key, value = child if isinstance(child, tuple) else (None, child)
            if isinstance(key, yaml.ScalarNode):
                literal = top and key.value in _TEXT_KEYS and isinstance(value, yaml.ScalarNode)
                for scalar in (key, value) if literal else (key,):
                    if not scalar.style and scalar.tag not in _NO_WORDS:
                        marks.append((scalar.start_mark, scalar.end_mark))
            visit(value, False)

    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # as OmegaConf does
    if root is not None:
        visit(root, True)
    for start, end in sorted(marks, key=lambda each: -each[0].index):
        word = text[start.index : end.index].replace("'", "''")
        text = f"{text[: start.index]}'{word}'{text[end.index :]}"
    return text


def override(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """`values` with `k=v` put onto them. Raises ConfigError for what is no override."""
    for item in overrides:
        if "=" not in item or item.startswith("="):
            raise ConfigError(f"'{item}' is not an override; expected key=value, for example images=16")
    values, overrides = _with_images_by_prompt(values, overrides)
    dotted = [item for item in overrides if item.startswith(_REPLICAS)]  # names of models may have dots in them
    literal = [item for item in overrides if item.partition("=")[0] in _TEXT_KEYS]
    plain = [item for item in overrides if item not in dotted and item not in literal]
    try:
        given = OmegaConf.from_dotlist(plain)
        kept = {key: value for key, value in values.items() if not _replaced(key, value, plain, given)}
        for item in plain:
            kept = _without(kept, item.partition("=")[0].split("."), OmegaConf.select(given, item.partition("=")[0]))
        words = {key: text for key, _, text in (item.partition("=") for item in literal)}
        merged = OmegaConf.merge(OmegaConf.create(_escaped(kept)), given, OmegaConf.create(words))
        for item in dotted:
            name, _, count = item.removeprefix(_REPLICAS).partition("=")
            replicas = {"cluster": {"replicas": {name: yaml.safe_load(count)}}}
            merged = OmegaConf.merge(merged, OmegaConf.create(replicas))
        return _plain(merged, "overrides")
    except (OmegaConfBaseException, yaml.YAMLError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"overrides {' '.join(overrides)}: {first_line(error)}") from None


def _with_images_by_prompt(
    values: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Both with `images` as a mapping where it is a number, if an override sets a part of it (`images.initial=64`)."""
    if not any(item.startswith(("images.", "images={")) for item in overrides):
        return values, overrides
    number = values.get("images")
    if isinstance(number, int) and not isinstance(number, bool):
        values = {**values, "images": {"initial": number, "counterfactual": number}}
    whole = re.compile(r"images=(\d+)")
    return values, [whole.sub(r"images={initial: \1, counterfactual: \1}", item) for item in overrides]


def _replaced(key: str, value: Any, overrides: Sequence[str], given: DictConfig) -> bool:
    """Whether an override takes the place of what a config says, rather than going into it.

    A priority is one whole: half of the config's and half of the override's would be nobody's.
    """
    whole = any(item.startswith(f"{key}=") for item in overrides)
    return whole and (key == "priorities" or not isinstance(value, Mapping) or not OmegaConf.is_dict(given[key]))


def _without(values: Mapping[str, Any], path: Sequence[str], given: Any) -> dict[str, Any]:
    """`values` without what is at `path`, if what is given for it is of another kind: a list replaces a mapping."""
    key, *rest = path
    if key not in values:
        return dict(values)
    if rest:
        inner = values[key]
        return {**values, key: _without(inner, rest, given)} if isinstance(inner, Mapping) else dict(values)
    same_kind = isinstance(values[key], Mapping) and OmegaConf.is_dict(given)
    return dict(values) if same_kind else {name: value for name, value in values.items() if name != key}


def _escaped(value: Any) -> Any:
    """`value` with its `${` kept from being read as a variable: it has been resolved once, and its words are words."""
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _plain(config: Any, where: str) -> Mapping[str, Any]:
    try:
        plain = cast(Mapping[str, Any], OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {first_line(error)}") from None
    for key, value in plain.items():
        _check_words(f"{where}: {key}", [key, value])
    return plain


def _check_words(where: str, value: Any) -> None:
    """Raise ConfigError for a word that no file may be named after, or that is a secret: a run keeps its config."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            _check_words(where, item)
    elif isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where}: holds a NUL character")
    elif isinstance(value, str) and secret_in(value):
        raise ConfigError(
            f"{where}: holds the value of {secret_in(value)}, and a config is written down with its run; whoever needs "
            "it reads it from the environment"
        )
