"""Choices as token sequences: which tokens tell them apart, and what probability each choice gets from them.

Choices form a tree of tokens. Where the tree branches, the VLM's probabilities of the branches decide between the
choices; where it does not, the next token is implied and its probability is not needed. The weight of a choice follows
by the chain rule along its branchings. So most questions need the probabilities of one token, and any set of choices
works with any tokenizer. A choice that is the beginning of another one (`middle`, `middle eastern`) gets the
probability that the longer ones leave, so it need not be known which token ends a reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seesaw.actors.engines import Reply, VQAQuestion

__all__ = ["Branching", "ChoiceTree", "choice_tree", "reply"]


@dataclass(frozen=True)
class Branching:
    """After the prompt and `prefix`, the probabilities of `tokens` have to be known."""

    prefix: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ChoiceTree:
    """`paths[s]` is the path of token sequence s: (branching, token), or (branching, None) where the sequence ends.

    `owners[s]` is the choice that sequence s spells: a choice may have several spellings.
    """

    branchings: tuple[Branching, ...]
    paths: tuple[tuple[tuple[int, int | None], ...], ...]
    owners: tuple[int, ...]


def choice_tree(sequences: Sequence[tuple[int, ...]], owners: Sequence[int]) -> ChoiceTree:
    """The tree of n token sequences. Raises ValueError if one is empty or two are equal."""
    if not all(sequences) or len(set(sequences)) != len(sequences):
        raise ValueError(f"token sequences must be distinct and not empty: {list(sequences)}")
    branchings: list[Branching] = []
    paths: list[list[tuple[int, int | None]]] = [[] for _ in sequences]

    def grow(prefix: tuple[int, ...], here: list[int]) -> None:
        depth = len(prefix)
        longer = [s for s in here if len(sequences[s]) > depth]
        tokens = tuple(dict.fromkeys(sequences[s][depth] for s in longer))
        if not depth or len(tokens) + (len(longer) < len(here)) > 1:  # the root is always needed, for the mass
            for s in here:
                paths[s].append((len(branchings), sequences[s][depth] if s in longer else None))
            branchings.append(Branching(prefix, tokens))
        for token in tokens:
            below = [s for s in longer if sequences[s][depth] == token]
            if len(below) > 1:
                grow((*prefix, token), below)

    grow((), list(range(len(sequences))))
    return ChoiceTree(tuple(branchings), tuple(map(tuple, paths)), tuple(owners))


def reply(
    question: VQAQuestion, tree: ChoiceTree, logprobs: Sequence[Mapping[int, float]], answer: str | None = None
) -> Reply:
    """The reply to `question`: `logprobs[b]` maps the tokens of branching b to their natural log-probabilities.

    `answer` is what constrained decoding wrote. Without it the likeliest choice is the answer, the first of equal ones.
    Raises FloatingPointError if the VLM computed NaN: an error never becomes an answer.
    """
    weights = [-math.inf] * len(question.choices)
    for path, owner in zip(tree.paths, tree.owners, strict=True):
        weights[owner] = _log_add(weights[owner], sum(_step(tree, logprobs, b, token) for b, token in path))
    top = max(weights)
    if math.isnan(sum(weights)) or top == -math.inf:
        raise FloatingPointError(f"the VLM gave no probability to any choice of '{question.text}': {weights}")
    shares = [math.exp(w - top) for w in weights]
    total = math.fsum(shares)
    best = question.choices[weights.index(top)]
    return Reply(answer or best, tuple(s / total for s in shares), min(1.0, math.exp(top) * total))


def _step(tree: ChoiceTree, logprobs: Sequence[Mapping[int, float]], branching: int, token: int | None) -> float:
    if token is not None:
        return logprobs[branching][token]
    rest = 1 - math.fsum(math.exp(logprobs[branching][t]) for t in tree.branchings[branching].tokens)
    return math.log(rest) if rest > 0 else -math.inf


def _log_add(a: float, b: float) -> float:
    if a == -math.inf or math.isnan(b):
        return b
    low, high = sorted((a, b))
    return high + math.log1p(math.exp(low - high))
