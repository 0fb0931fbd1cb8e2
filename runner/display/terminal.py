"""rich, made safe: a name that holds escape codes or markup is printed as the text that it is."""

from __future__ import annotations

from typing import Any

from rich import console, markup
from rich.text import Text

from seesaw.results.printable import printable

__all__ = ["Console", "escape"]


class Console(console.Console):
    """rich's console. It takes Seesaw's own markup, but no control characters, emoji codes or highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Called while BrokenPipeError is handled. rich would end the process with code 1; a command ends with 0."""
        raise

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, lines=True), **options)


def escape(text: str) -> str:
    """Text that others wrote, on one line, so that rich takes none of it for markup."""
    return markup.escape(printable(text))
