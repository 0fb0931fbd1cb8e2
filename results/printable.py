"""Text that others wrote, as it may be shown on a terminal or a page: it moves no cursor and hides nothing."""

from __future__ import annotations

import re

__all__ = ["printable"]

#: control characters, what starts a line, overrides of the direction of writing, and halves of characters
_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, lines: bool = False) -> str:
    """`text` with what a terminal would obey written out (`\\x1b`); with `lines` its line breaks stay."""
    return _ACTIVE.sub(
        lambda found: found[0] if lines and found[0] == "\n" else found[0].encode("unicode_escape").decode(), text
    )
