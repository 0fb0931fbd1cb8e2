"""Words that messages, plans and reports share, so that the same thing reads the same everywhere."""

from __future__ import annotations

import math

__all__ = ["duration", "prompt_label"]


def duration(seconds: float) -> str:
    """`seconds` in the unit that reads best: "44 s", "44 min", "4.4 h"; "unknown time" for infinity."""
    if seconds == math.inf:
        return "unknown time"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def prompt_label(source_axis: str, source_value: str) -> str:
    """What a prompt states, as "gender=male"; "initial prompt" for the one that states nothing (axis "")."""
    return f"{source_axis}={source_value}" if source_axis else "initial prompt"
