"""The paper's tables of mitigations: Table 1, a row for every case, and strategies compared over the same cases.

Source: arXiv 2505.17280, Table 1 and section "Analyzing InterMit for Mitigation" (MitAmt, MitSteps), appendix
"Mitigation Prompts" (its tables of SD 1.4 and SD 3.5).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from seesaw.results.tables.mitigation import Case, strategies_among
from seesaw.results.tables.sheet import Sheet

__all__ = ["appendix", "comparison", "sheets", "table1"]

_ERRORS = "\N{PLUS-MINUS SIGN}: standard error of the mean over subjects; the cases of one subject form a cluster."
_SCALE = "If the priorities of a case do not sum to 1, its tau is on another scale than w and not comparable to others."
_STEPS = (
    "MitSteps: mean number of steps divided by the mean number of chosen axes, which is what strategy all takes. Steps "
    "on axes that were not chosen count too, so it can exceed 100 %."
)
_PERCENT = ("mitsteps", "reached")  # columns shown in per cent


def sheets(cases: Sequence[Case]) -> list[Sheet]:
    """All tables of `cases`: Table 1, a comparison if there are several strategies, an appendix for each model and
    strategy. `all` has no appendix of its own: its last tau is a column in those of the others."""
    pairs = dict.fromkeys((case.model, case.strategy) for case in cases if case.strategy != "all")
    several = len({case.strategy for case in cases}) > 1
    head = [table1(cases)] if cases else []
    return [*head, *([comparison(cases)] if several else []), *(appendix(cases, *pair) for pair in pairs)]


def table1(cases: Sequence[Case]) -> Sheet:
    """The paper's Table 1 without image quality: MitAmt and MitSteps of every model and strategy.

    MitAmt is the mean of the last tau. MitSteps is the mean number of steps divided by the mean number of chosen axes,
    which is what `all` takes: a ratio of means, not a mean of ratios. Only finished cases count.
    """
    rows = []
    for model in dict.fromkeys(case.model for case in cases):
        for strategy in strategies_among(cases):
            mine = [case for case in cases if (case.model, case.strategy) == (model, strategy)]
            if mine:
                count = sum(case.counts for case in mine)
                row = {"model": model, "strategy": strategy, "cases": count, **_columns(_figures(mine))}
                rows.append({**row, "notes": "; ".join(_counted(mine))})
    headings = {"model": "Model", "strategy": "Strategy", "cases": "Cases", "mitamt": "MitAmt", "mitsteps": "MitSteps"}
    headings |= {"steps": "Steps", "chosen": "Chosen axes", "notes": "Notes"}
    notes = ("MitAmt: mean tau after the last step; lower is better.", _STEPS, *_common_notes(cases))
    return _sheet("table1", "Bias left and steps taken by mitigation", rows, headings, notes)


def appendix(cases: Sequence[Case], model: str, strategy: str) -> Sheet:
    """The paper's appendix table of one model: a row for each case of `strategy`, with the last tau of `all`."""
    mine = [case for case in cases if (case.model, case.strategy) == (model, strategy)]
    every = {(c.subject, c.case): c.tau for c in cases if (c.model, c.strategy, c.counts) == (model, "all", True)}
    rows = []
    for case in mine:
        row: dict[str, object] = {"model": model, "subject": case.subject, "case": case.case, "strategy": strategy}
        row["priority"] = ", ".join(f"{axis} {priority:.3g}" for axis, priority in case.chosen.items())
        row |= {"mitigated": ", ".join(case.mitigated), "chosen": len(case.chosen), "steps": case.steps}
        row |= {"tau_initial": case.trajectory[0].tau, "mitamt": case.tau}
        row |= {"all_mitamt": every.get((case.subject, case.case), math.nan)} if every else {}
        row |= {"epsilon": case.epsilon, "outcome": case.outcome, "judged": case.judged, "p_reached": case.p_reached}
        rows.append(row | {"notes": "; ".join(case.notes)})
    headings = {"subject": "Subject", "case": "Case", "priority": "Mitigation priority vector"}
    if len({case.subject for case in mine}) == len(mine):
        del headings["case"]
    headings |= {"mitigated": "Axes mitigated", "chosen": "# of axes", "steps": "# steps", "tau_initial": "Initial tau"}
    headings |= {"mitamt": "MitAmt", "all_mitamt": "MitAmt of all", "outcome": "Outcome"}
    headings |= {"p_reached": "P(tau <= epsilon)", "judged": "Judged on", "notes": "Notes"}
    mean = {name: _text(*both, percent=name in _PERCENT) for name, both in _figures(mine).items()}
    notes = (
        f"Means over {sum(case.counts for case in mine)} cases: MitAmt {mean['mitamt']}; {mean['steps']} steps for "
        f"{mean['chosen']} axes, MitSteps {mean['mitsteps']}.",
        "MitAmt: tau after the last step. Axes mitigated: in the order of their mitigation.",
        *(_STEPS, *_common_notes(mine)),
    )
    name = _file_name(f"appendix-{model}-{strategy}")
    return _sheet(name, f"Every case of {model}, mitigated by {strategy}", rows, headings, notes)


def _file_name(words: str) -> str:
    """`words` as a file name. If characters had to be replaced, a digest keeps different names apart."""
    plain = re.sub(r"[^\w.-]+", "-", words, flags=re.ASCII)
    if plain == words and len(words) <= 100:
        return words
    return f"{plain[:80]}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def comparison(cases: Sequence[Case]) -> Sheet:
    """All strategies among `cases`, compared over those (model, subject, case) that every strategy finished.

    `more_steps` is paired: the mean over cases of the steps beyond those of the strategy in the first row. There is a
    column of images if they are recorded for every case that is compared.
    """
    by_strategy = {
        strategy: {c.vector: c for c in cases if c.strategy == strategy and c.counts}
        for strategy in strategies_among(cases)
    }
    vectors = dict.fromkeys(case.vector for case in cases)
    common = [key for key in vectors if all(key in mine for mine in by_strategy.values())]
    subjects, first, rows = [subject for _, subject, _ in common], next(iter(by_strategy), ""), []
    recorded = common and not any(math.isnan(of[key].images) for of in by_strategy.values() for key in common)
    for strategy, of in by_strategy.items():
        mine = [of[key] for key in common]
        means = {
            "steps": _mean([c.steps for c in mine], subjects),
            "more_steps": _mean([of[key].steps - by_strategy[first][key].steps for key in common], subjects),
            "tau": _mean([c.tau for c in mine], subjects),
            "reached": _mean([c.reached for c in mine], subjects),
        }
        if recorded:
            means["images"] = _mean([c.images for c in mine], subjects)
        rows.append({"strategy": strategy, "cases": len(mine), **_columns(means)})
    headings = {"strategy": "Strategy", "cases": "Cases", "steps": "Steps", "more_steps": f"Steps beyond {first}"}
    headings |= {"tau": "Final tau", "reached": "Reached epsilon", "images": "Images looked at"}
    left_out = len(vectors) - len(common)
    notes = (
        *(
            [f"{left_out} of {len(vectors)} cases are left out: not every strategy has finished them."]
            if left_out
            else []
        ),
        "Reached epsilon: share of cases whose last tau is at most epsilon.",
        *(["Images looked at: in whole batches, made for the case or earlier."] if recorded else []),
        *_common_notes(cases),
    )
    return _sheet("comparison", "Strategies over the same cases", rows, headings, notes)


def _sheet(
    name: str,
    caption: str,
    rows: Sequence[Mapping[str, object]],
    headings: Mapping[str, str],
    notes: tuple[str, ...],
) -> Sheet:
    """A sheet of `rows` that shows the columns in `headings`, each mean together with its standard error."""
    data = pd.DataFrame(rows)
    shown = {}
    for column, heading in headings.items():
        if column in data:
            errors = data.get(f"{column}_se", pd.Series(math.nan, data.index))
            words = [_text(*both, percent=column in _PERCENT) for both in zip(data[column], errors, strict=True)]
            shown[heading] = pd.Series(words, dtype=str)
    return Sheet(name, caption, data, pd.DataFrame(shown), notes)


def _common_notes(cases: Sequence[Case]) -> tuple[str, ...]:
    mine = [case for case in cases if case.counts]
    shared = sum(case.judged == "shared" for case in mine)
    judged = f"{len(mine) - shared} of {len(mine)} cases are judged on fresh images, which no decision saw" + (
        "; the other taus are those of the images that decided, and too low." if shared else "."
    )
    return (_ERRORS, *([_SCALE] if any(case.uneven for case in cases) else []), *([judged] if mine else []))


def _figures(cases: Sequence[Case]) -> dict[str, tuple[float, float]]:
    """Mean and standard error of each figure in Table 1, over the `cases` that count."""
    mine = [case for case in cases if case.counts]
    subjects = [case.subject for case in mine]
    steps, chosen = [case.steps for case in mine], [len(case.chosen) for case in mine]
    return {
        "mitamt": _mean([case.tau for case in mine], subjects),
        "mitsteps": _ratio(steps, chosen, subjects),
        "steps": _mean(steps, subjects),
        "chosen": _mean(chosen, subjects),
    }


def _counted(cases: Sequence[Case]) -> list[str]:
    """How many cases each note is about."""
    mine = [case for case in cases if case.counts]
    counts = (
        (sum(case.uneven for case in mine), "have priorities that do not sum to 1"),
        (sum(not case.reached for case in mine), "end above epsilon"),
        (sum(bool(case.outside) for case in mine), "mitigate axes outside the chosen"),
    )
    left_out = [f"{len(cases) - len(mine)} unfinished or undefined, in no mean"] if len(mine) < len(cases) else []
    return [f"{number} of {len(mine)} {what}" for number, what in counts if number] + left_out


def _mean(values: Sequence[float], subjects: Sequence[str]) -> tuple[float, float]:
    """The mean of `values`, one for each case, and its standard error; NaN where undefined."""
    mean = math.fsum(values) / len(values) if values else math.nan
    return mean, _error([value - mean for value in values], subjects)


def _ratio(numerators: Sequence[float], denominators: Sequence[float], subjects: Sequence[str]) -> tuple[float, float]:
    """The ratio of the two means, and its standard error to first order (delta method); NaN where undefined."""
    if not denominators:
        return math.nan, math.nan
    ratio = math.fsum(numerators) / math.fsum(denominators)
    residuals = [y - ratio * x for y, x in zip(numerators, denominators, strict=True)]
    return ratio, _error(residuals, subjects) / (math.fsum(denominators) / len(denominators))


def _error(residuals: Sequence[float], subjects: Sequence[str]) -> float:
    """The standard error of a mean from its residuals, clustered by subject: cases of one subject are not independent.

    With one case for each subject it is s / sqrt(n). NaN for fewer than two subjects.
    """
    sums: dict[str, float] = {}
    for residual, subject in zip(residuals, subjects, strict=True):
        sums[subject] = sums.get(subject, 0.0) + residual
    if len(sums) < 2:
        return math.nan
    return math.sqrt(len(sums) / (len(sums) - 1) * math.fsum(s * s for s in sums.values())) / len(residuals)


def _columns(means: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Columns `<name>` and `<name>_se` for every mean and its standard error."""
    return {column: n for name, both in means.items() for column, n in zip((name, f"{name}_se"), both, strict=True)}


def _text(value: object, error: float = math.nan, *, percent: bool = False) -> str:
    """The text of a cell: a float with two decimals, or in per cent, and with its standard error if it has one."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "n/a"
    numbers = [number for number in (value, error) if not math.isnan(number)]
    words = [f"{100 * number:.1f}" if percent else f"{number:.2f}" for number in numbers]
    return " \N{PLUS-MINUS SIGN} ".join(words) + (" %" if percent else "")
