"""The paper's tables of mitigations: Table 1, a row a case, and strategies over the same cases.

Source: arXiv 2505.17280, Table 1 and section "Analyzing InterMit for Mitigation" (MitAmt, MitSteps), appendix
"Mitigation Prompts" (its tables of SD 1.4 and SD 3.5).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from seesaw.results.atomic_write import atomic_write
from seesaw.results.tables.mitigation import Case, strategies_among
from seesaw.results.tables.write import csv_of

__all__ = ["Sheet", "appendix", "comparison", "latex", "markdown", "sheets", "table1", "write_sheet"]


@dataclass(frozen=True)
class Sheet:
    """A table for readers. `data` has the numbers as they are (the CSV), `shown` the same rows as text."""

    name: str  #: of its files, without a suffix
    caption: str
    data: pd.DataFrame
    shown: pd.DataFrame
    notes: tuple[str, ...]


_ERRORS = "\N{PLUS-MINUS SIGN}: standard error of the mean over subjects, the cases of a subject being one cluster."
_SCALE = "tau of cases whose priorities do not sum to 1 is on another scale than w; such tau do not compare."
_STEPS = (
    "MitSteps: mean steps over mean number of chosen axes, which is what strategy all takes. Steps on axes outside the "
    "chosen count too, so it can pass 100 %."
)
_PERCENT = ("mitsteps", "reached")  # columns that are shown in per cent


def sheets(cases: Sequence[Case]) -> list[Sheet]:
    """Table 1, the comparison where there are several strategies, an appendix table of every model and strategy but
    `all`, whose last tau stands in those of the others."""
    pairs = dict.fromkeys((case.model, case.strategy) for case in cases if case.strategy != "all")
    several = len({case.strategy for case in cases}) > 1
    head = [table1(cases)] if cases else []
    return [*head, *([comparison(cases)] if several else []), *(appendix(cases, *pair) for pair in pairs)]


def table1(cases: Sequence[Case]) -> Sheet:
    """The paper's Table 1 without its image quality: MitAmt and MitSteps of every model and strategy.

    MitAmt is the mean of the last tau, MitSteps the mean number of steps over the mean number of chosen axes, which is
    what `all` takes (a ratio of means, not a mean of ratios). Only cases that are finished count.
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
    """The paper's appendix table of one model: a row a case of `strategy`, beside what `all` reached where it ran."""
    mine = [case for case in cases if (case.model, case.strategy) == (model, strategy)]
    every = {(c.subject, c.case): c.tau for c in cases if (c.model, c.strategy, c.counts) == (model, "all", True)}
    rows = []
    for case in mine:
        row: dict[str, object] = {"model": model, "subject": case.subject, "case": case.case, "strategy": strategy}
        row["priority"] = ", ".join(f"{axis} {priority:.3g}" for axis, priority in case.chosen.items())
        row |= {"mitigated": ", ".join(case.mitigated), "chosen": len(case.chosen), "steps": case.steps}
        row |= {"tau_initial": case.course[0].tau, "mitamt": case.tau}
        row |= {"all_mitamt": every.get((case.subject, case.case), math.nan)} if every else {}
        rows.append(row | {"epsilon": case.epsilon, "outcome": case.outcome, "notes": "; ".join(case.notes)})
    headings = {"subject": "Subject", "case": "Case", "priority": "Mitigation priority vector"}
    if len({case.subject for case in mine}) == len(mine):
        del headings["case"]
    headings |= {"mitigated": "Axes mitigated", "chosen": "# of axes", "steps": "# steps", "tau_initial": "Initial tau"}
    headings |= {"mitamt": "MitAmt", "all_mitamt": "MitAmt of all", "outcome": "Outcome", "notes": "Notes"}
    mean = {name: _text(*both, percent=name in _PERCENT) for name, both in _figures(mine).items()}
    notes = (
        f"Means over {sum(case.counts for case in mine)} cases: MitAmt {mean['mitamt']}; {mean['steps']} steps for "
        f"{mean['chosen']} axes, MitSteps {mean['mitsteps']}.",
        "MitAmt: tau after the last step. Axes mitigated stand in the order of their mitigation.",
        *(_STEPS, *_common_notes(mine)),
    )
    name = _file_name(f"appendix-{model}-{strategy}")
    return _sheet(name, f"Every case of {model}, mitigated by {strategy}", rows, headings, notes)


def _file_name(words: str) -> str:
    """`words` as the name of a file: what had to be changed is told apart by a digest."""
    plain = re.sub(r"[^\w.-]+", "-", words, flags=re.ASCII)
    if plain == words and len(words) <= 100:
        return words
    return f"{plain[:80]}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def comparison(cases: Sequence[Case]) -> Sheet:
    """All strategies among `cases`, over those (model, subject, case) that every one of them finished.

    `more_steps` is paired: the mean over cases of the steps beyond those of the first row's strategy. Images are shown
    where they are recorded for every case compared.
    """
    by_strategy = {
        strategy: {c.vector: c for c in cases if c.strategy == strategy and c.counts}
        for strategy in strategies_among(cases)
    }
    known = dict.fromkeys(case.vector for case in cases)
    common = [key for key in known if all(key in mine for mine in by_strategy.values())]
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
    left = len(known) - len(common)
    notes = (
        *([f"{left} of {len(known)} cases are left out: not every strategy has finished them."] if left else []),
        "Reached epsilon: share of cases whose last tau is at most epsilon.",
        *(["Images looked at: in whole batches, made for the case or before."] if recorded else []),
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
    """A sheet of `rows`, of which the columns in `headings` are shown, a mean together with its standard error."""
    data = pd.DataFrame(rows)
    shown = {}
    for column, heading in headings.items():
        if column in data:
            errors = data.get(f"{column}_se", pd.Series(math.nan, data.index))
            words = [_text(*both, percent=column in _PERCENT) for both in zip(data[column], errors, strict=True)]
            shown[heading] = pd.Series(words, dtype=str)
    return Sheet(name, caption, data, pd.DataFrame(shown), notes)


def _common_notes(cases: Sequence[Case]) -> tuple[str, ...]:
    return (_ERRORS, _SCALE) if any(case.uneven for case in cases) else (_ERRORS,)


def _figures(cases: Sequence[Case]) -> dict[str, tuple[float, float]]:
    """Mean and standard error of what Table 1 shows, over the `cases` that count."""
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
    """The notes of many cases as counts."""
    mine = [case for case in cases if case.counts]
    counts = (
        (sum(case.uneven for case in mine), "have priorities that do not sum to 1"),
        (sum(not case.reached for case in mine), "end above epsilon"),
        (sum(bool(case.outside) for case in mine), "mitigate axes outside the chosen"),
    )
    left = [f"{len(cases) - len(mine)} unfinished or undefined, in no mean"] if len(mine) < len(cases) else []
    return [f"{number} of {len(mine)} {what}" for number, what in counts if number] + left


def _mean(values: Sequence[float], subjects: Sequence[str]) -> tuple[float, float]:
    """The mean of `values`, one a case, and its standard error; NaN where undefined."""
    mean = math.fsum(values) / len(values) if values else math.nan
    return mean, _error([value - mean for value in values], subjects)


def _ratio(over: Sequence[float], under: Sequence[float], subjects: Sequence[str]) -> tuple[float, float]:
    """The ratio of the two means, and its standard error to first order (delta method); NaN where undefined."""
    if not under:
        return math.nan, math.nan
    ratio = math.fsum(over) / math.fsum(under)
    residuals = [y - ratio * x for y, x in zip(over, under, strict=True)]
    return ratio, _error(residuals, subjects) / (math.fsum(under) / len(under))


def _error(residuals: Sequence[float], subjects: Sequence[str]) -> float:
    """The standard error of a mean from its residuals, robust to what the cases of one subject share.

    With one case a subject it is s / sqrt(n). NaN for fewer than two subjects.
    """
    sums: dict[str, float] = {}
    for residual, subject in zip(residuals, subjects, strict=True):
        sums[subject] = sums.get(subject, 0.0) + residual
    if len(sums) < 2:
        return math.nan
    return math.sqrt(len(sums) / (len(sums) - 1) * math.fsum(s * s for s in sums.values())) / len(residuals)


def _columns(means: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Every mean followed by its standard error, as `<name>` and `<name>_se`."""
    return {column: n for name, both in means.items() for column, n in zip((name, f"{name}_se"), both, strict=True)}


def _text(value: object, error: float = math.nan, *, percent: bool = False) -> str:
    """A cell as it is shown: a float to two decimals, or in per cent, with its standard error where there is one."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "n/a"
    numbers = [number for number in (value, error) if not math.isnan(number)]
    words = [f"{100 * number:.1f}" if percent else f"{number:.2f}" for number in numbers]
    return " \N{PLUS-MINUS SIGN} ".join(words) + (" %" if percent else "")


def write_sheet(sheet: Sheet, folder: Path) -> None:
    """Write `<name>.csv`, `.md` and `.tex` into `folder`, each whole or not at all. OSError if it cannot be written."""
    csv = csv_of(sheet.data)
    for suffix, text in (("csv", csv), ("md", markdown(sheet)), ("tex", latex(sheet))):
        with atomic_write(folder / f"{sheet.name}.{suffix}") as file:
            file.write(text.encode())


_MARKDOWN = str.maketrans({**{sign: f"\\{sign}" for sign in "\\|*_[]`"}, "<": "&lt;", "&": "&amp;"})
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "\N{PLUS-MINUS SIGN}": r"$\pm$",
    }
)


def _escaped(shown: pd.DataFrame, signs: dict[int, str]) -> pd.DataFrame:
    rows = [[" ".join(str(cell).split()).translate(signs) for cell in row] for row in shown.to_numpy()]
    return pd.DataFrame(rows, columns=[str(name).translate(signs) for name in shown.columns], dtype=str)


def markdown(sheet: Sheet) -> str:
    """The sheet as a GitHub Markdown table under its caption, notes as a list."""
    cells = _escaped(sheet.shown, _MARKDOWN)
    rows = [list(cells.columns), ["---"] * len(cells.columns), *cells.to_numpy().tolist()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "\n".join(f"- {note.translate(_MARKDOWN)}" for note in sheet.notes)
    return f"**{sheet.caption.translate(_MARKDOWN)}**\n\n{table}\n\n{notes}\n"


_WIDE = 25  # characters, above which a column of a LaTeX table breaks its lines


def latex(sheet: Sheet) -> str:
    """The sheet as a LaTeX table; needs `\\usepackage{booktabs}` alone. The notes stand in the caption."""
    caption = ". ".join((sheet.caption, " ".join(sheet.notes))).translate(_LATEX)
    cells = _escaped(sheet.shown, _LATEX)
    wide = [sheet.shown[name].str.len().max() > _WIDE for name in sheet.shown]
    form = "".join(r"p{0.2\linewidth}" if broken else "l" for broken in wide)
    return cells.to_latex(index=False, caption=caption, label=f"tab:{sheet.name}", column_format=form)
