"""The Hugging Face hub: what the local cache holds of a repository, and what to do about what it lacks."""

from __future__ import annotations

import queue
import shlex
import shutil
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from seesaw.results.errors import ConfigError
from seesaw.results.secrets import without_secrets

__all__ = ["Part", "free_space", "listed", "remedy", "snapshot"]

PATIENCE = 5.0  #: seconds to wait for the hub, whose answer only makes an error message better


@dataclass(frozen=True)
class Part:
    """The files that are needed of a repository: those that match one of `include` (or all, if it is empty) and none of
    `exclude`.
    """

    repo: str
    revision: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def has(self, file: str) -> bool:
        wanted = not self.include or any(fnmatchcase(file, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(file, pattern) for pattern in self.exclude)

    @property
    def command(self) -> str:
        patterns = [word for p in self.include for word in ("--include", p)]
        patterns += [word for p in self.exclude for word in ("--exclude", p)]
        return shlex.join(["hf", "download", self.repo, "--revision", self.revision, *patterns])


def snapshot(repo: str, revision: str, file: str) -> Path | None:
    """The folder of a revision in the cache, if `file` is in it.

    Raises ConfigError if no repository can have that name.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(repo, file, revision=revision)
    except HFValidationError:
        raise ConfigError(f"'{repo}' is neither a folder here nor the name of a hub repository: OWNER/NAME") from None
    return Path(path.removesuffix(file)) if isinstance(path, str) else None


def listed(repo: str, revision: str) -> frozenset[str]:
    """The files of a revision, as far as the cache knows them; older versions of `hf` kept no list."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return frozenset(file.path for file in get_cached_repo_tree(repo, revision=revision))
    except CachedRepoTreeNotFoundError:
        return frozenset()


def free_space(place: Path) -> int:
    """Bytes that are free on the file system where `place` is, or would be."""
    return shutil.disk_usage(next(p for p in (place, *place.parents) if p.exists())).free


def remedy(part: Part, have: Path | None) -> str:
    """The command that puts `part` into the cache, and what stands in the way, as far as the hub answers in time.

    `have` is the folder of the snapshot: files that are there already need not be fetched.
    """
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    # in a thread, because looking up a host's name has no timeout
    threading.Thread(target=lambda: answers.put(_answer(part, have)), daemon=True).start()
    try:
        return answers.get(timeout=PATIENCE)
    except queue.Empty:
        return _unasked(part, f"no answer within {PATIENCE:g} seconds")


def _answer(part: Part, have: Path | None) -> str:
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    hub, token = HfApi(), get_token()
    try:
        hub.auth_check(part.repo)  # needed because anyone may see the list of files of a gated repository
        info = hub.model_info(part.repo, revision=part.revision, files_metadata=True, timeout=PATIENCE)
    except GatedRepoError:
        why = "the token in use was not let in" if token else "no token is set"
        return f"it is gated, and {why}: {_admission(part)}, then type `{part.command}`"
    except RepositoryNotFoundError:
        why = "the token in use may not read it" if token else "no token is set"
        return (
            f"the hub has no such repository, or it is private and {why}: check the name, or set HF_TOKEN to a token "
            f"that may read it and type `{part.command}`"
        )
    except RevisionNotFoundError:
        return f"the hub has no revision '{part.revision}' of it: see https://huggingface.co/{part.repo}/commits/main"
    except Exception as error:  # errors of the HTTP library that the hub's client uses: all are passed on
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return _unasked(part, lines[0])
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    prior = info.card_data.get("prior") if info.card_data else None
    also = f"; its model card says that '{prior[0]}' is needed too" if isinstance(prior, list) and prior else ""
    return _fetch(part, have, sizes) + also


def _fetch(part: Part, have: Path | None, sizes: dict[str, int]) -> str:
    from huggingface_hub import constants

    need = sum(n for file, n in sizes.items() if part.has(file) and (have is None or not (have / file).is_file()))
    place = Path(constants.HF_HUB_CACHE)
    free = free_space(place)
    if need > free:
        return (
            f"it takes {need / 1e9:,.1f} GB, and the file system of {place} has {free / 1e9:,.1f} GB free: make room, "
            f"or set HF_HOME to a folder on a larger disk, then type `{part.command}`"
        )
    return f"type `{part.command}` ({need / 1e9:,.1f} GB; {free / 1e9:,.1f} GB are free in {place})"


def _unasked(part: Part, why: str) -> str:
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE)
    return without_secrets(
        f"type `{part.command}` where the hub can be reached (from here: {why}); if it is gated, {_admission(part)} "
        f"first; {free_space(place) / 1e9:,.1f} GB are free in {place}, and HF_HOME chooses another folder"
    )


def _admission(part: Part) -> str:
    return f"accept its licence at https://huggingface.co/{part.repo} and set HF_TOKEN to a token of that account"
