"""What all commands share: how an unknown one is answered, how an error becomes an exit code, and `--json`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from seesaw.results.errors import SeesawError, nearest
from seesaw.results.secrets import without_secrets
from seesaw.runner.display.streams import say

__all__ = ["Verbs", "answerable", "as_json"]


class Verbs(click.Group):
    """A group of commands that answers an unknown one with the nearest known one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"no command '{args[0]}'{nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def answerable(command: Callable[..., int | None]) -> Callable[..., None]:
    """Turn a deliberate error into one message and its exit code; anything else is a bug, which `command` reports."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs)
        except SeesawError as error:
            say(without_secrets(f"seesaw: {error}"), sys.stderr, lines=True)
            code = error.exit_code
        except BrokenPipeError:  # the reader of our output has gone, as `| head` does
            sys.stderr.close()
            code = 0
        except OSError as error:  # a path that cannot be one, or a place that cannot be read or written
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
            hint = "; make room for the run directory, and the same command goes on" if full else ""
            say(without_secrets(f"seesaw: {error}{hint}"), sys.stderr, lines=True)
            code = 4 if full else 2
        except KeyboardInterrupt:
            say("seesaw: interrupted; the same command goes on where this one was", sys.stderr)
            code = 3
        sys.exit(code or 0)

    return wrapped


as_json = click.option("--json", "as_json", is_flag=True, help="Print machine-readable events, one JSON object a line.")
