"""Weights: where they are, what identifies them, and the command that fetches them when they are missing."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from results.errors import EnvironmentFault

__all__ = ["content_identity", "need_package", "need_weights"]

#: What decides about a model's output in its folder; everything else there (readme, images) does not.
_CONTENT = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".txt", ".py"})


def content_identity(folder: Path) -> str:
    """SHA-256 over names and contents of a model's files, so that weights changed in place are other weights."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in _CONTENT and p.is_file()):
        with path.open("rb") as file:
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def need_package(package: str, install: str) -> None:
    """EnvironmentFault with what to install unless `package` can be imported."""
    if importlib.util.find_spec(package) is None:
        raise EnvironmentFault(f"this run needs the package '{package}', which is not installed: pip install {install}")


def need_weights(repo: str, revision: str, file: str) -> None:
    """EnvironmentFault with what to type unless `file` of a hub repository's revision is in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(repo, file, revision=revision), str):
        raise EnvironmentFault(
            f"the weights of '{repo}' (revision {revision}) are not on this machine: hf download {repo} "
            f"--revision {revision}; for a gated model accept its licence on its page and set HF_TOKEN first"
        )
