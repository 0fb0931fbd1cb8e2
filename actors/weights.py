"""Weights: what identifies them, whether they are complete on this machine, and what to do if they are not."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from seesaw.actors.hub import Part, listed, remedy, snapshot
from seesaw.results.errors import EnvironmentFault

__all__ = ["connected_pipelines", "content_identity", "need_package", "need_pipeline", "need_weights"]

#: suffixes of the files in a model's folder that affect its output; all others (readme, images) do not
_CONTENT = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".txt", ".py"})
#: of a pipeline's repository: the folders of its components, and not the checkpoints in one file beside them
_PIPELINE = ("*/*", "*.json", "*.jinja", "README.md", "*model*.safetensors")
_OTHER_FORMATS = ("*.bin", "*.msgpack", "*.onnx*", "*.pb")
_VARIANTS = ("*.fp16*",)
_WEIGHTLESS = re.compile(r"(Scheduler|Tokenizer|FeatureExtractor|Processor)(?:Fast|Pil)?$")  #: by a component's class
_SETTINGS = {
    "Scheduler": "scheduler_config.json",
    "Tokenizer": "tokenizer_config.json",
    "FeatureExtractor": "preprocessor_config.json",
    "Processor": "preprocessor_config.json",
}
_NO_MODEL = {*_SETTINGS.values(), "processor_config.json"}
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_SHARD = re.compile(r"-\d{5}-of-\d{5}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHOWN = 4  #: lacking files that a message names


def content_identity(folder: Path, only: str = "") -> str:
    """SHA-256 over the names and contents of a model's files, or of `only` one: changed weights are another model."""
    digest = hashlib.sha256()
    for path in [folder / only] if only else sorted(_files(folder)):
        with path.open("rb") as file:
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The files that affect a model's output. Links to folders are followed, each folder once."""
    seen = set()
    for home, _, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(home)) in seen:
            continue
        seen.add(real)
        yield from (path for name in names if (path := Path(home, name)).suffix in _CONTENT and path.is_file())


def need_package(package: str, install: str) -> None:
    """Raise EnvironmentFault, with what to install, unless `package` can be imported."""
    if importlib.util.find_spec(package) is None:
        raise EnvironmentFault(f"this run needs the package '{package}', which is not installed: pip install {install}")


def need_weights(repo: str, revision: str, file: str, folder: Path | None = None) -> None:
    """Check that `file` and the weights beside it are complete in `folder` or, without one, in the cache of the hub.

    Raises:
        EnvironmentFault: what is missing or cut short, where, and the command that fetches it.
        ConfigError: no repository can be called `repo`.
    """
    home = folder or snapshot(repo, revision, file)
    lacking = [] if home is None else list(_model_lacks(home, file))
    _refuse(Part(repo, revision), folder, home, lacking)


def need_pipeline(
    repo: str,
    revision: str,
    variant: str | None,
    folder: Path | None,
    without: Collection[str] = (),
    connected: bool = True,
) -> None:
    """Check that a diffusers pipeline is complete in `folder` or, without one, in the cache of the hub.

    It is complete if all components of model_index.json but those in `without` have their configuration and, if they
    are models, their safetensors (of `variant`, where a component has that), and every shard is as long as its header
    says. With `connected`, the same is checked of the `prior` that its model card names.

    Raises:
        EnvironmentFault: what is missing or cut short, where, and the command that fetches it.
        ConfigError: no repository can be called `repo`.
    """
    home = _need_alone(repo, revision, variant, folder, without)
    for other in connected_pipelines(home) if connected else ():
        if other != repo:
            _need_alone(other, "main" if folder or _COMMIT.fullmatch(revision) else revision, variant, None, ())


def connected_pipelines(folder: Path) -> list[str]:
    """The repositories that a pipeline's model card names as its `prior`: diffusers loads them too."""
    from huggingface_hub import metadata_load

    card = folder / "README.md"
    try:
        prior = (metadata_load(card) or {}).get("prior") if card.is_file() else None
    except (ValueError, yaml.YAMLError):
        return []  # diffusers reads the cards of decoders alone
    if not isinstance(prior, (str, list)):
        return []
    return [name for name in ([prior] if isinstance(prior, str) else prior) if isinstance(name, str)]


def _need_alone(repo: str, revision: str, variant: str | None, folder: Path | None, without: Collection[str]) -> Path:
    home = folder or snapshot(repo, revision, "model_index.json")
    files = frozenset() if folder else listed(repo, revision)
    lacking = [] if home is None else list(dict.fromkeys(_pipeline_lacks(home, variant, without, files)))
    part = Part(repo, revision, _PIPELINE, _OTHER_FORMATS + (() if variant else _VARIANTS))
    _refuse(part, folder, home, lacking)
    assert home is not None  # else _refuse has raised
    return home


def _refuse(part: Part, folder: Path | None, home: Path | None, lacking: list[str]) -> None:
    """Raise EnvironmentFault if there is no `home`, or it is `lacking` something."""
    if home is not None and not lacking:
        return
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    what = "; ".join(lacking[:_SHOWN]) + more
    if folder is not None:
        raise EnvironmentFault(f"the model in '{folder}' is not whole: {what}; copy it there again")
    where = f"not whole in {home}: {what}" if home else "not on this machine"
    raise EnvironmentFault(f"the weights of '{part.repo}' (revision {part.revision}) are {where}; {remedy(part, home)}")


def _model_lacks(home: Path, file: str) -> Iterator[str]:
    """What a model's folder lacks, whatever the format of its weights."""
    if not (home / file).is_file():
        yield f"{file} is missing"
    weights = [
        path for path in home.rglob("*") if path.is_file() and path.suffix in (*_PICKLED, ".safetensors", ".gguf")
    ]
    indexes = sorted(home.glob("*.safetensors.index.json"))
    for index in indexes:
        yield from _shards_lack(index, index.name)
    if not weights and not indexes:
        yield "there are no weights (*.safetensors)"
    sharded = {name for index in indexes for name in _shards(index)}
    for path in sorted(weights):
        if path.suffix == ".safetensors" and path.name not in sharded:
            yield from _damage(path, path.relative_to(home).as_posix())


def _pipeline_lacks(home: Path, variant: str | None, without: Collection[str], files: Collection[str]) -> Iterator[str]:
    """What a pipeline's folder lacks; `files` are the files of its repository, as far as they are known."""
    index = _json(home / "model_index.json")
    if index is None:
        yield "model_index.json is missing or no JSON"
        return
    varied = variant is None
    for name, entry in sorted(index.items()):
        if name.startswith("_") or name in without or not _is_component(entry):
            continue  # a setting of the pipeline, or a component that it does not have
        place = home / name if (home / name).is_dir() else home  # some repositories keep a component at their root
        there = {path.name for path in place.iterdir() if path.is_file()}
        kind = _WEIGHTLESS.search(str(entry[-1]))
        if kind or ("config.json" not in there and not there.isdisjoint(_NO_MODEL)):
            if kind and there.isdisjoint(_NO_MODEL):
                yield f"{name}/{_SETTINGS[kind[1]]} is missing"
            expected = sorted(file for file in files if file.startswith(f"{name}/"))
            yield from (f"{file} is missing" for file in expected if not (home / file).is_file())
            continue
        if "config.json" not in there:
            yield f"{name}/config.json is missing"
        tagged = variant is not None and any(n.split(".")[1:2] and n.split(".")[1].startswith(variant) for n in there)
        varied = varied or tagged
        yield from _component_lacks(place, there, name, entry[0], f".{variant}" if tagged else "")
    if not varied:
        yield f"no component has weights of the variant '{variant}'"


def _is_component(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(word, str) for word in entry)


def _component_lacks(place: Path, there: Collection[str], name: str, library: str, tag: str) -> Iterator[str]:
    """What is missing of a component's safetensors; `tag` is the `.fp16` of a variant."""
    names = (
        f"diffusion_pytorch_model.safetensors.index{tag}.json",
        f"diffusion_pytorch_model.safetensors{tag}.index.json",
        f"diffusion_pytorch_model{tag}.safetensors",
        f"model{tag}.safetensors",
        f"model.safetensors.index{tag}.json",
    )
    present = next((file for file in names if file in there), None)
    if present is not None:
        yield from (_shards_lack if present.endswith(".json") else _damage)(place / present, f"{name}/{present}")
        return
    kind = f" of the variant '{tag[1:]}'" if tag else ""
    stem = "model" if library == "transformers" else "diffusion_pytorch_model"
    others = sorted(file for file in there if file.endswith(".safetensors"))
    pickled = sorted(file for file in there if file.endswith(_PICKLED))
    if any(_SHARD.search(file) for file in others):
        yield f"{name}/{stem}.safetensors.index{tag}.json is missing"
    elif others:
        yield f"{name}/ has no weights{kind} but {others[0]}: see the setting `variant`"
    elif pickled:
        yield f"{name}/ has {pickled[0]}, and only safetensors are loaded: find a revision that has them"
    else:
        yield f"{name}/{stem}{tag}.safetensors is missing"


def _shards(index: Path) -> list[str]:
    """The names of the shards that an index lists; none if it is no index."""
    weights: Any = (_json(index) or {}).get("weight_map")
    return sorted(set(weights.values())) if isinstance(weights, dict) else []


def _shards_lack(index: Path, name: str) -> Iterator[str]:
    shards = _shards(index)
    if not shards:
        yield f"{name} lists no shards"
    for shard in shards:
        yield from _damage(index.parent / shard, f"{name.rpartition('/')[0]}/{shard}".lstrip("/"))


def _damage(path: Path, name: str) -> Iterator[str]:
    """What is wrong with a safetensors file, judged by its length and header; its tensors are not read."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        yield f"{name} is missing"
        return
    try:
        with safe_open(path, "numpy"):
            pass
    except (SafetensorError, OSError) as error:
        with path.open("rb") as file:
            pointer = file.read(24) == b"version https://git-lfs."
        broken = f"cut short or damaged ({error}): remove {path.resolve()}"  # hf fetches no file that exists
        yield f"{name} is {'a pointer of Git LFS: run git lfs pull' if pointer else broken}"


def _json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if the file is missing or holds something else."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None
