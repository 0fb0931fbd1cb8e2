"""`seesaw store gc` and `rm`: what goes, said first and done with --yes, while nobody else is at work on the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from seesaw.results.errors import InputError
from seesaw.results.store.inventory import folder_contents
from seesaw.results.store.lock import alone
from seesaw.results.store.names import identity_of
from seesaw.results.store.removal import Removal, plan_removal, remove, unreferenced
from seesaw.results.store.store import Store
from seesaw.results.words import in_bytes
from seesaw.runner.display.streams import say
from seesaw.runner.stores.listing import listed, open_store
from seesaw.runner.stores.progress import counted
from seesaw.runner.stores.references import find_references

__all__ = ["collect", "remove_named"]

_LISTED = 20  #: runs or files that are named


def collect(root: str, folders: Sequence[Path], yes: bool, as_json: bool) -> int:
    """Remove what no run in `folders` refers to, with `yes`; else say what that is. Returns the exit code.

    Raises:
        InputError: a run there cannot be read, or none refers to anything in the store: no run must lose its images
            because a wrong folder was looked at.
        EnvironmentFault: somebody is at work on the store.
    """
    store = open_store(root)

    def plan() -> tuple[Removal, list[str]]:
        references, unread = find_references(folders)
        looked = f"runs were looked for in {listed(map(str, folders), _LISTED)}"
        if unread:
            raise InputError(f"{unread[0]}; so nobody can say what it refers to, and nothing is removed; {looked}")
        known = {identity for reference in references for identity in reference.identities}
        if not any(content.identity in known for content in folder_contents(store)):
            raise InputError(
                f"none of the {len(references)} runs refers to anything in '{root}', so nothing is removed; {looked}; "
                "give the folders of its runs with --runs, or name what is to go: seesaw store rm"
            )
        return unreferenced(store, known), [str(reference.run) for reference in references]

    removal, runs = plan()
    if not as_json:
        say(f"runs in {listed(map(str, folders), _LISTED)} that were looked at: {listed(runs, _LISTED)}")
    return _carry_out("gc", store, removal, lambda: plan()[0], runs, yes, as_json)


def remove_named(root: str, names: Sequence[str], folders: Sequence[Path], yes: bool, as_json: bool) -> int:
    """Remove the models or VLMs that are named, with `yes`; else say what belongs to them. Returns the exit code."""
    store = open_store(root)
    removal = plan_removal(store, names)
    references, unread = find_references([folder for folder in folders if folder.is_dir()])
    going = {identity_of(folder) for folder in removal.names}
    runs = [str(each.run) for each in references if going & each.identities]
    if not as_json:
        for problem in unread:
            say(problem)
        if runs:
            say(f"runs that refer to it, and would make it again: {listed(runs, _LISTED)}")
    return _carry_out("rm", store, removal, lambda: plan_removal(store, names), runs, yes, as_json)


def _carry_out(
    verb: str, store: Store, removal: Removal, plan: Callable[[], Removal], runs: list[str], yes: bool, as_json: bool
) -> int:
    """Say what a removal is about, and with `yes` do it, as it is planned once nobody else is at work on the store."""
    if yes and removal.files:
        with alone(store):
            removal = plan()
            with counted("removing", removal.files, as_json) as removed:
                remove(store, removal, removed)
    for folder, names in removal.names.items():
        if as_json:
            say(json.dumps({"event": "remove", "folder": folder, "files": len(names)}))
        else:
            say(f"{'removed' if yes else 'would remove'} {len(names):,} files of {folder}")
    for name in removal.kept if not as_json else ():
        say(f"left where it is, being none of Seesaw's: {name}")
    if as_json:
        about = {"event": verb, "store": store.root, "files": removal.files, "bytes": removal.size}
        say(json.dumps({**about, "kept": list(removal.kept), "runs": runs, "done": yes}))
    elif not removal.files:
        say("nothing to remove")
    elif yes:
        say(f"removed {removal.files:,} files, {in_bytes(removal.size)}")
    else:
        say(f"{removal.files:,} files, {in_bytes(removal.size)}; nothing is removed yet: --yes does it")
    return 0
