"""`seesaw store ...`: what a store holds and for whom, and removing, moving and bringing together what is in stores.

A command that changes a store says what it would do, and does it with --yes alone. Nothing heavy is imported before a
command needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from seesaw.runner.verbs import Verbs, answerable, as_json

__all__ = ["store_commands"]

_store = click.argument("store", metavar="STORE")
_yes = click.option("--yes", is_flag=True, help="Do it. Without it, the command only says what it would do.")


def _runs(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--runs", "folders", metavar="DIR", multiple=True, default=("outputs",), show_default=True,
        help="Where the runs are that refer to the store; may be given several times.",
    )(command)  # fmt: skip


@click.group(name="store", cls=Verbs)
def store_commands() -> None:
    """What a store holds, and for whom; cleaning, moving and merging stores.

    STORE is a directory or a URI (s3://bucket/prefix). Commands that change a store only say what they would do unless
    they get --yes. While a driver is at work on a store nothing is removed from it or moved.
    """


@store_commands.command(name="ls")
@_store
@_runs
@as_json
@answerable
def list_store(store: str, folders: tuple[str, ...], as_json: bool) -> None:
    """List models and VLMs: images, answers, bytes, last use, and the runs that refer to them."""
    from seesaw.runner.stores.listing import show_store

    show_store(store, [Path(folder) for folder in folders], as_json)


@store_commands.command()
@_store
@as_json
@answerable
def du(store: str, as_json: bool) -> None:
    """Say how many bytes each model and VLM takes, the largest first."""
    from seesaw.runner.stores.listing import show_use

    show_use(store, as_json)


@store_commands.command()
@_store
@_runs
@_yes
@as_json
@answerable
def gc(store: str, folders: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove what no run under --runs refers to: models, VLMs, answers about images of such models.

    Every run.json there counts, however deep it lies and whatever store it names. If one cannot be read, nothing is
    removed. So give all folders with runs that share this store.
    """
    from seesaw.runner.stores.cleaning import collect

    return collect(store, [Path(folder) for folder in folders], yes, as_json)


@store_commands.command()
@_store
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_runs
@_yes
@as_json
@answerable
def rm(store: str, names: tuple[str, ...], folders: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove models or VLMs: a model's images and all answers about them, a VLM's answers.

    NAME is a name as `ls` shows it, or the first characters of an identity. A folder of the store (images/sd14-...)
    stands for what is in it alone.
    """
    from seesaw.runner.stores.cleaning import remove_named

    return remove_named(store, names, [Path(folder) for folder in folders], yes, as_json)


@store_commands.command()
@_store
@click.argument("to", metavar="TO")
@_yes
@as_json
@answerable
def mv(store: str, to: str, yes: bool, as_json: bool) -> int:
    """Move a store. Runs find it by store=TO, which they are told once.

    On one file system it is renamed. Otherwise every shard is copied, and removed here once its copy was read back.
    Killed, the same command goes on.
    """
    from seesaw.runner.stores.moving import move

    return move(store, to, yes, as_json)


@store_commands.command()
@click.argument("sources", metavar="FROM...", nargs=-1, required=True)
@click.argument("into", metavar="INTO")
@_yes
@as_json
@answerable
def merge(sources: tuple[str, ...], into: str, yes: bool, as_json: bool) -> int:
    """Copy what is in some stores into another. The first ones stay as they are.

    What is there already is not copied. Shards of one name and different content are told and left as they are.
    """
    from seesaw.runner.stores.moving import bring

    return bring(sources, into, yes, as_json)


@store_commands.command()
@_store
@click.argument("remote", metavar="REMOTE")
@_yes
@as_json
@answerable
def push(store: str, remote: str, yes: bool, as_json: bool) -> int:
    """Copy what REMOTE, a URI or directory, lacks of STORE."""
    from seesaw.runner.stores.moving import bring

    return bring((store,), remote, yes, as_json)


@store_commands.command()
@_store
@click.argument("remote", metavar="REMOTE")
@_yes
@as_json
@answerable
def pull(store: str, remote: str, yes: bool, as_json: bool) -> int:
    """Copy what STORE lacks of REMOTE, a URI or directory."""
    from seesaw.runner.stores.moving import bring

    return bring((remote,), store, yes, as_json)
