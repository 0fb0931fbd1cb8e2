"""`seesaw store merge`, `push`, `pull` and `mv`: what would be copied, said first and done with --yes."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from seesaw.results.errors import InputError
from seesaw.results.store.lock import alone, at_work
from seesaw.results.store.removal import remove_empty_store
from seesaw.results.store.store import Store, StoreProblem
from seesaw.results.store.transfer import Transfer, copy_shards, plan_transfer, remove_copied
from seesaw.results.words import in_bytes
from seesaw.runner.display.streams import say
from seesaw.runner.run_places import same_place
from seesaw.runner.stores.listing import open_store
from seesaw.runner.stores.progress import counted

__all__ = ["bring", "move"]

_LISTED = 20  #: problems of a kind that are named; the others are counted


def bring(sources: Sequence[str], into: str, yes: bool, as_json: bool) -> int:
    """Copy what `into` lacks of some stores, with `yes`; else say how much that is. 1 if something had to be left.

    Raises:
        InputError: one of them is no store, or the same as the other.
        EnvironmentFault: somebody cleans or moves one of them, or `into` cannot be written.
    """
    target, left = Store(_absolute(into)), False
    for root in sources:
        _check_apart(root, into)
        source = open_store(_absolute(root))
        if yes:
            target.probe()
            with at_work(source) if source.local else nullcontext(), at_work(target):
                transfer = plan_transfer(source, target)
                problems = _copy(source, target, transfer, as_json)
        else:
            transfer = plan_transfer(source, target)
            problems = [*transfer.problems]
        _show(root, into, transfer, problems, yes, as_json)
        left = left or bool(problems)
    return 1 if left else 0


def move(root: str, to: str, yes: bool, as_json: bool) -> int:
    """Move a store, with `yes`; else say how. 1 if something had to be left where it was.

    Raises:
        InputError: it is no store, or `to` is no place for one.
        EnvironmentFault: somebody is at work on one of them.
    """
    _check_apart(root, to)
    source, target = open_store(_absolute(root)), Store(_absolute(to))
    fresh = source.local and target.local and not os.path.lexists(target.path("").rstrip("/"))
    if not fresh and target.local and not target.is_there() and os.path.isdir(to) and os.listdir(to):
        raise InputError(f"'{to}' holds other files and is no store; give a place of its own")
    if not yes:
        transfer = plan_transfer(source, target)
        _show(root, to, transfer, [*transfer.problems], yes, as_json, verb="mv")
        return 1 if transfer.problems else 0
    with alone(source):
        if fresh and _renamed(source, target):
            _tell_moved(root, to, [], as_json)
            return 0
        target.probe()
        with alone(target):
            transfer = plan_transfer(source, target)
            problems = {problem.name: problem for problem in _copy(source, target, transfer, as_json)}
            with counted("removing", len(transfer.same) + len(transfer.lacking), as_json) as removed:
                problems = {problem.name: problem for problem in remove_copied(source, target, removed)} | problems
            gone = remove_empty_store(source)
    if not gone and not problems:
        problems = {root: StoreProblem(root, "foreign", "still holds what is damaged or not Seesaw's")}
    _tell_moved(root, to, list(problems.values()), as_json)
    return 1 if problems else 0


def _renamed(source: Store, target: Store) -> bool:
    """Rename the folder of a store; False if the target is on another file system."""
    place = target.path("").rstrip("/")
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(source.path("").rstrip("/"), place)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY):  # EBUSY: a mount point
            return False
        raise
    return True


def _copy(source: Store, target: Store, transfer: Transfer, as_json: bool) -> list[StoreProblem]:
    """Copy what lacks; all that was left, and why."""
    problems = [*transfer.problems]
    with counted("copying", len(transfer.lacking), as_json) as copied:
        for name, problem in copy_shards(source, target, transfer):
            copied(name)
            problems += [problem] if problem else []
    return problems


def _absolute(place: str) -> str:
    return place if "://" in place else os.path.abspath(os.path.expanduser(place))


def _check_apart(one: str, other: str) -> None:
    if same_place(_absolute(one), _absolute(other)):
        raise InputError(f"'{one}' and '{other}' are the same store")
    if "://" not in one + other and os.path.realpath(other).startswith(f"{os.path.realpath(one)}/"):
        raise InputError(f"'{other}' lies in '{one}'; give a place outside of it")


def _show(
    root: str,
    into: str,
    transfer: Transfer,
    problems: Sequence[StoreProblem],
    yes: bool,
    as_json: bool,
    verb: str = "copy",
) -> None:
    failed = {problem.name for problem in problems}
    copied = sum(name not in failed for name, _ in transfer.lacking)
    if as_json:
        about = {"event": verb, "from": root, "into": into, "shards": copied, "bytes": transfer.size}
        _list(problems, as_json)
        say(json.dumps({**about, "same": len(transfer.same), "left": len(problems), "done": yes}))
        return
    _list(problems, as_json)
    what = f"{copied:,} shards, {in_bytes(transfer.size)}, from '{root}' to '{into}'"
    there = f"; {len(transfer.same):,} are there already" if transfer.same else ""
    left = f"; {len(problems):,} were left, see above" if problems else ""
    if yes:
        say(f"copied {what}{there}{left}")
    else:
        say(f"would {'move' if verb == 'mv' else 'copy'} {what}{there}{left}; nothing is done yet: --yes does it")


def _tell_moved(root: str, to: str, problems: Sequence[StoreProblem], as_json: bool) -> None:
    _list(problems, as_json)
    if as_json:
        say(json.dumps({"event": "mv", "from": root, "into": to, "left": len(problems), "done": True}))
    else:
        left = f"; {len(problems):,} things were left in '{root}', see above" if problems else ""
        say(f"moved '{root}' to '{to}'{left}; runs find it by store={to}, which they are told once")


def _list(problems: Iterable[StoreProblem], as_json: bool) -> None:
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.kind] += 1
        if as_json:
            line = {"event": "problem", "name": problem.name, "kind": problem.kind, "message": problem.message}
            say(json.dumps(line))
        elif counts[problem.kind] <= _LISTED:
            say(f"{problem.kind}: {problem.name}: {problem.message}")
    for kind, number in counts.items():
        if number > _LISTED and not as_json:
            say(f"and {number - _LISTED:,} more that are {kind}")
