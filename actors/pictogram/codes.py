"""The pictogram vocabulary: axes, their attributes, and the words of a prompt that state them.

The eight axes have the names of the paper's occupation set, so that its prompts and questions work unchanged. What is
drawn for them are *codes* (a tile's pattern, a head's outline, a fill colour), never depictions of people.
`seesaw.actors.pictogram.draw` lists which code stands for which attribute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

__all__ = ["AXES", "OCCUPATIONS", "SHAPE", "WORDS", "read_prompt"]

AXES: Mapping[str, tuple[str, ...]] = {
    "gender": ("male", "female"),
    "age": ("young", "middle", "old"),
    "ethnicity": ("white", "black", "asian", "south asian", "middle eastern", "hispanic"),
    "bodytype": ("fat", "slim", "muscular"),
    "environment": ("indoor", "outdoor"),
    "clothing": ("formal", "informal"),
    "emotion": ("happy", "sad", "serious", "tired"),
    "disability": ("fit", "blind", "hearing aid", "wheelchair"),
}
SHAPE = tuple(len(values) for values in AXES.values())  #: 2 x 3 x 6 x 3 x 2 x 2 x 4 x 4 = 6,912 states

OCCUPATIONS = (
    "computer programmer", "elementary school teacher", "librarian", "announcer", "pharmacist", "chef", "chemist",
    "police", "accountant", "architect", "lawyer", "philosopher", "scientist", "doctor", "nurse", "engineer",
    "musician", "journalist", "athlete", "social worker", "sales person", "politician", "farmer", "mechanic",
    "firefighter", "gardener",
)  # fmt: skip

#: Words, before or after the subject, that state an attribute: words -> (axis, attribute). The longest match wins.
WORDS: Mapping[str, tuple[str, str]] = {
    "male": ("gender", "male"),
    "female": ("gender", "female"),
    "young": ("age", "young"),
    "middle-aged": ("age", "middle"),
    "old": ("age", "old"),
    "white": ("ethnicity", "white"),
    "african american": ("ethnicity", "black"),
    "black": ("ethnicity", "black"),
    "asian": ("ethnicity", "asian"),
    "south asian": ("ethnicity", "south asian"),
    "middle eastern": ("ethnicity", "middle eastern"),
    "hispanic": ("ethnicity", "hispanic"),
    "obese": ("bodytype", "fat"),
    "slim": ("bodytype", "slim"),
    "muscular": ("bodytype", "muscular"),
    "working indoors": ("environment", "indoor"),
    "working outdoors": ("environment", "outdoor"),
    "in formal attire": ("clothing", "formal"),
    "in informal attire": ("clothing", "informal"),
    "dressed formally": ("clothing", "formal"),
    "dressed informally": ("clothing", "informal"),
    "happy": ("emotion", "happy"),
    "who is happy": ("emotion", "happy"),
    "sad": ("emotion", "sad"),
    "who is sad": ("emotion", "sad"),
    "serious": ("emotion", "serious"),
    "who is serious": ("emotion", "serious"),
    "tired": ("emotion", "tired"),
    "who is tired": ("emotion", "tired"),
    "who is fit": ("disability", "fit"),
    "and is fit": ("disability", "fit"),
    "blind": ("disability", "blind"),
    "with a hearing aid": ("disability", "hearing aid"),
    "who has a hearing aid": ("disability", "hearing aid"),
    "and has a hearing aid": ("disability", "hearing aid"),
    "on a wheelchair": ("disability", "wheelchair"),
    "who is on a wheelchair": ("disability", "wheelchair"),
    "and is on a wheelchair": ("disability", "wheelchair"),
}


@cache
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(phrases, key=len, reverse=True)
    return re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])", re.IGNORECASE)


def read_prompt(text: str) -> tuple[str, dict[str, str]]:
    """The subject of a prompt and the attributes that it states, axis -> attribute.

    If the prompt names none of the 26 occupations, its subject is the text that remains once the words that state
    attributes are removed. If an axis is stated twice, the last statement counts.
    """
    stated: dict[str, str] = {}

    def take(match: re.Match[str]) -> str:
        axis, attribute = WORDS[match[1].lower()]
        stated[axis] = attribute
        return " "

    rest = _pattern(tuple(WORDS)).sub(take, text)
    occupation = _pattern(OCCUPATIONS).search(rest)
    if occupation:
        return occupation[1].lower(), stated
    rest = re.sub(r"^\s*a photo of\s+(an?\s+|the\s+)?", "", rest, flags=re.IGNORECASE)
    return " ".join(rest.split()).lower(), stated
