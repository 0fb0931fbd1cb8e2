"""The report's section about mitigations: tables, and for each case its trajectory, matrices, choices and images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from seesaw.results.report.example_images import ExampleImage, ExampleImages
from seesaw.results.report.heatmap import heatmap, signed
from seesaw.results.report.trajectories import Trajectory, trajectories
from seesaw.results.tables.mitigation import CLOSE, OUTCOMES, Case
from seesaw.results.tables.mitigation_matrices import Matrix
from seesaw.results.tables.mitigation_tables import sheets
from seesaw.results.tables.run_reader import FIRST, MitigationTables
from seesaw.results.tables.sheet import Sheet

__all__ = ["CaseArticle", "Choice", "Gallery", "MitigationSection", "choice_words", "mitigation_section"]

_SHOWN = 2000  # cases with their trajectory, at most; all cases are in the tables
_DETAILED = 100  # cases with matrices and images, at most
_BYTES = 15_000_000  # of images in this section; once they are exceeded, further cases are shown without images
_PROMPTS, _EACH = 8, 2  # prompts of the last step that are shown with images, and images of each


@dataclass(frozen=True)
class Choice:
    """The matrix that a step saw, with gamma of every candidate, and the candidate that was mitigated next."""

    step: int  #: mitigations done before it
    picture: Markup
    words: str  #: which candidate was mitigated, and why


@dataclass(frozen=True)
class Gallery:
    """The first images of one prompt."""

    prompt: str
    pictures: tuple[ExampleImage, ...]


@dataclass(frozen=True)
class CaseArticle:
    """A case as the page shows it; matrices and images are left out when the page would become too large."""

    number: int
    trajectory: Trajectory
    choices: tuple[Choice, ...]
    before: Gallery | None
    after: tuple[Gallery, ...]
    prompts: int  #: at the end; `after` shows some of them

    @property
    def case(self) -> Case:
        return self.trajectory.case


@dataclass(frozen=True)
class MitigationSection:
    """Everything in the section. `first` is the number of the case to look at first."""

    cases: tuple[Case, ...]
    sheets: tuple[Sheet, ...]
    articles: tuple[CaseArticle, ...]
    first: int
    pictured: int  #: cases with images
    detailed: int
    cut: bool  #: whether a case lacks its trajectory, matrices or images, to keep the page small
    has_matrices: bool  #: whether any strategy looked at counterfactuals, so that there is a matrix

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(case.model for case in self.cases))

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(case.subject for case in self.cases))

    @property
    def priorities(self) -> int:
        """How many different priority vectors there are."""
        return len({frozenset(case.chosen.items()) for case in self.cases})

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(case.strategy for case in self.cases))

    @property
    def epsilons(self) -> list[str]:
        return [f"{epsilon:g}" for epsilon in sorted({case.epsilon for case in self.cases})]

    @property
    def outcomes(self) -> list[tuple[str, int]]:
        """How many cases have each outcome; outcomes without a case are left out."""
        counts = [(outcome, sum(case.outcome == outcome for case in self.cases)) for outcome in (*OUTCOMES, "")]
        return [(outcome or "unfinished", count) for outcome, count in counts if count]


def mitigation_section(tables: MitigationTables, examples: ExampleImages, limit: float) -> MitigationSection:
    """The section about `tables`, with images from `examples`; colours of matrices are full at +-`limit`."""
    cases = tables.cases
    order = sorted(range(len(cases)), key=lambda number: _rank(cases[number], number))
    detailed, pictured, images_cut = set(order[:_DETAILED]), set(), False
    galleries: dict[int, tuple[Gallery | None, tuple[Gallery, ...]]] = {}
    for number in order[:_DETAILED]:
        if examples.size < _BYTES:
            galleries[number] = _galleries(cases[number], examples)
            pictured.add(number)
        else:
            images_cut = True
    articles = []
    numbers = sorted(order[:_SHOWN])
    for number, trajectory in zip(numbers, trajectories(cases[number] for number in numbers), strict=True):
        case, matrices = trajectory.case, tables.matrices.get(trajectory.case.key, {})
        before, after = galleries.get(number, (None, ()))
        choices = _choices(case, matrices, limit) if number in detailed else ()
        prompts = len(case.trajectory[-1].prompts)
        articles.append(CaseArticle(number, trajectory, choices, before, after, prompts))
    return MitigationSection(
        cases=cases,
        sheets=tuple(sheets(cases)),
        articles=tuple(articles),
        first=order[0],
        pictured=len(pictured),
        detailed=len(detailed),
        cut=images_cut or len(cases) > _DETAILED,
        has_matrices=bool(tables.matrices),
    )


def _rank(case: Case, number: int) -> tuple[bool, int, int]:
    """The order of cases: first those whose steps were chosen by a matrix, among them those with the most alerts."""
    return case.strategy != "greedy", -sum(len(step.alerts) for step in case.trajectory), number


def _choices(case: Case, matrices: Mapping[int, Matrix], limit: float) -> tuple[Choice, ...]:
    return tuple(
        Choice(step, Markup(_heatmap(case, matrix, step, limit)), choice_words(case, matrix, step))
        for step, matrix in sorted(matrices.items())
    )


def choice_words(case: Case, matrix: Matrix, step: int) -> str:
    """What was mitigated after `step` steps, and why: "age: gamma 0.21, the largest of 8; next clothing 0.15"."""
    gains = {axis: gain for axis, gain in matrix.gamma(case.chosen).items() if not math.isnan(gain)}
    if not gains:
        return "no candidate has a gamma"
    ranked = sorted(gains, key=lambda axis: -gains[axis])
    taken = case.trajectory[step + 1].axis if step < case.steps else ""
    first = taken or ranked[0]
    if len(gains) == 1:
        place = "the only candidate"
    elif gains[first] >= gains[ranked[0]] - CLOSE:
        place = f"the largest of {len(gains)}"
    else:
        place = f"number {1 + ranked.index(first)} of {len(gains)}"
    words = f"{first}: gamma {_plain(gains[first])}, {place}"
    others = [axis for axis in ranked if axis != first]
    if others:
        words += f"; next {others[0]} {_plain(gains[others[0]])}"
    if taken:
        return words
    why = {"no_gain": "no axis gains", "": "not mitigated yet"}
    return f"{why.get(case.outcome, 'nothing was mitigated')}; {words}"


def _plain(value: float) -> str:
    """Two decimals, with a minus sign where needed and no plus sign."""
    return signed(value).removeprefix("+")


def _heatmap(case: Case, matrix: Matrix, step: int, limit: float) -> str:
    """S beside gamma of every candidate; the candidate that was mitigated is framed."""
    gains = matrix.gamma(case.chosen)
    taken = case.trajectory[step + 1].axis if step < case.steps else ""
    values = np.column_stack([matrix.sensitivity, list(gains.values())])
    titles = [
        [_tooltip(matrix, i, j) for j in range(len(matrix.axes))] + [_gamma_tooltip(case, matrix, i, gains[candidate])]
        for i, candidate in enumerate(matrix.candidates)
    ]
    done = " and ".join(case.mitigated[:step]) or "nothing"
    return heatmap(
        matrix.candidates,
        [*matrix.axes, "gamma"],
        values,
        np.isfinite(values),
        limit=limit,
        label=f"IS of {case.subject} on {case.model} once {done} is mitigated, and gamma; "
        + choice_words(case, matrix, step),
        titles=titles,
        mark=(matrix.candidates.index(taken), len(matrix.axes)) if taken else None,
    )


def _tooltip(matrix: Matrix, i: int, j: int) -> str:
    name = f"{matrix.candidates[i]} on {matrix.axes[j]}"
    if math.isnan(matrix.sensitivity[i, j]):
        return f"{name}: undefined"
    after = f"w {matrix.w_init[j]:.2f} now, {matrix.w_after[i, j]:.2f} after"
    return f"{name}: IS {signed(matrix.sensitivity[i, j])}; {after}"


def _gamma_tooltip(case: Case, matrix: Matrix, i: int, gain: float) -> str:
    terms = [
        f"{priority:.3g} x {signed(float(matrix.sensitivity[i, matrix.axes.index(axis)]))} ({axis})"
        for axis, priority in case.chosen.items()
    ]
    return f"gamma of {matrix.candidates[i]}: {' + '.join(terms)} = {signed(gain)}"


def _galleries(case: Case, examples: ExampleImages) -> tuple[Gallery | None, tuple[Gallery, ...]]:
    """The first images of the initial prompt, and of some prompts of the last step."""
    start = case.trajectory[0].prompts
    before = _gallery(case.model, start[0], FIRST, examples) if start else None
    if not case.steps:
        return before, ()
    return before, tuple(
        _gallery(case.model, prompt, _EACH, examples, case.steps) for prompt in _spread(case.trajectory[-1].prompts)
    )


def _gallery(model: str, prompt: str, count: int, examples: ExampleImages, stated: int = 0) -> Gallery:
    return Gallery(prompt, tuple(examples.first(model, prompt, count, stated)))


def _spread(prompts: Sequence[str]) -> Iterable[str]:
    """At most _PROMPTS of `prompts`, evenly spaced, since neighbours differ only in the last axis."""
    count = min(_PROMPTS, len(prompts))
    return (prompts[i * len(prompts) // count] for i in range(count))
