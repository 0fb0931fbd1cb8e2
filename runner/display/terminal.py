"""rich, so that whatever is printed is text, also where a name holds escape codes or markup."""

from __future__ import annotations

from typing import Any

from rich import console, markup
from rich.text import Text

from seesaw.results.printable import printable

__all__ = ["Console", "escape"]


class Console(console.Console):
    """rich's, with markup of ours (see `escape`), but with no control characters, emoji codes or highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Called while BrokenPipeError is handled. rich would end the process with code 1; a command ends with 0."""
        raise

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, lines=True), **options)


def escape(text: str) -> str:
    """What others wrote, on one line and without markup, to be put into a text with markup."""
    return markup.escape(printable(text))
