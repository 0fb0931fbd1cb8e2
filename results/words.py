"""Words that messages, plans and reports share, so that the same thing reads the same everywhere."""

from __future__ import annotations

import math

__all__ = ["duration", "in_bytes", "prompt_label"]


def duration(seconds: float) -> str:
    """`seconds` in the unit that reads best: "44 s", "44 min", "4.4 h"; "unknown time" for infinity."""
    if seconds == math.inf:
        return "unknown time"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def in_bytes(size: float) -> str:
    """A number of bytes in the unit that reads best: "812 B", "3.4 MB", "1.2 TB" (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def prompt_label(source_axis: str, source_value: str) -> str:
    """What a prompt states, as "gender=male"; "initial prompt" for the one that states nothing (axis "")."""
    return f"{source_axis}={source_value}" if source_axis else "initial prompt"
