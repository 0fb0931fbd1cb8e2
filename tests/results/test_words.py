"""Durations and prompts have one wording each, and it is written in one place."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from seesaw.results.words import duration, prompt_label

HOUSE = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (44.4, "44 s"),
        (119, "119 s"),
        (120, "2 min"),
        (2640, "44 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (15840, "4.4 h"),
        (36e6, "10,000.0 h"),
        (math.inf, "unknown time"),
    ],
)
def test_a_duration_is_in_the_unit_that_reads_best(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_prompt_is_named_by_what_it_states() -> None:
    assert prompt_label("gender", "male") == "gender=male"
    assert prompt_label("", "") == "initial prompt"


def test_no_other_module_words_a_duration_or_a_prompt_itself() -> None:
    own_words = re.compile(r"""['"]initial prompt['"]|\b(?:min|h)\b(?: left)?" if \w+ < \d""")
    sources = [
        p for room in ("actors", "experiments", "results", "runner") for p in sorted((HOUSE / room).rglob("*.py"))
    ]
    assert [str(p.relative_to(HOUSE)) for p in sources if own_words.search(p.read_text(encoding="utf-8"))] == [
        "results/words.py"
    ]
