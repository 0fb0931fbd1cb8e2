"""Text from others, made safe to show on a terminal or a page: it cannot move the cursor or hide anything."""

from __future__ import annotations

import re
from html import escape

__all__ = ["printable", "printable_markup"]

#: control characters, line separators, marks and overrides of the writing direction, unpaired surrogates
_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, lines: bool = False) -> str:
    """`text` with everything that a terminal would obey as an escape (`\\x1b`). With `lines`, line breaks stay."""
    return _ACTIVE.sub(
        lambda match: match[0] if lines and match[0] == "\n" else match[0].encode("unicode_escape").decode(), text
    )


def printable_markup(text: str) -> str:
    """`printable` text for a page or a picture (SVG), where it is no markup either."""
    return escape(printable(text))
