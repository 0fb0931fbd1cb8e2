"""Mitigations as mitigation.parquet has them, the paper's tables of them, and the course of tau as a picture.

Source: arXiv 2505.17280, Table 1 and section "Analyzing InterMit for Mitigation" (MitAmt, MitSteps), appendix
"Mitigation Prompts" (its tables of SD 1.4 and SD 3.5).
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from results.errors import RunDirectoryError, nearest
from results.heatmap import open_svg
from results.tables import write_bytes

__all__ = [
    "OUTCOMES",
    "STRATEGIES",
    "Case",
    "Course",
    "Sheet",
    "Step",
    "appendix",
    "cases_of",
    "comparison",
    "courses",
    "latex",
    "markdown",
    "mitigation_schema",
    "read_mitigation",
    "sheets",
    "table1",
    "write_sheet",
]

OUTCOMES = ("reached", "no_gain", "exhausted", "max_steps", "undefined")
#: Every strategy, and why it takes the axis that it takes.
STRATEGIES: Mapping[str, str] = {
    "greedy": "the axis, chosen or not, with the largest predicted gain gamma",
    "all": "every chosen axis in order, whatever it gains, to the last",
    "own": "the chosen axis whose own bias weighs most, whatever it does to the others",
    "random": "the chosen axes in random order",
}
_CLOSE = 1e-6  # by which sums and products of float64 may miss
_REACHED = 1e-9  # by which tau may exceed epsilon in its last bits and count as equal to it


@dataclass(frozen=True)
class Step:
    """One row of mitigation.parquet. Numbers are NaN where they are not known."""

    axis: str  #: mitigated at this step; "" at step 0, the state before any
    gamma: float  #: predicted gain: by how much tau was to fall
    predicted: float  #: tau that gamma predicts
    tau: float  #: measured after the step
    w: Mapping[str, float]  #: by axis, measured after the step
    prompts: tuple[str, ...]
    alerts: tuple[str, ...]
    images: float  #: generated for the step, where that is recorded


@dataclass(frozen=True)
class Case:
    """The mitigation of one subject on one model with one priority vector (`case`) by one strategy."""

    model: str
    subject: str
    case: str
    strategy: str
    chosen: Mapping[str, float]  #: priority by axis
    epsilon: float
    outcome: str  #: one of OUTCOMES; "" while unfinished
    course: tuple[Step, ...]  #: from step 0 on

    @property
    def mitigated(self) -> tuple[str, ...]:
        """Axes in the order of their mitigation."""
        return tuple(step.axis for step in self.course[1:])

    @property
    def steps(self) -> int:
        return len(self.course) - 1

    @property
    def tau(self) -> float:
        """tau after the last step."""
        return self.course[-1].tau

    @property
    def images(self) -> float:
        """Images generated for all its steps; NaN where that is not recorded."""
        return sum(step.images for step in self.course)

    @property
    def counts(self) -> bool:
        """Whether the case is in any mean: it is finished, and all that it was decided on is defined."""
        return self.outcome not in ("", "undefined") and not math.isnan(self.tau)

    @property
    def reached(self) -> bool:
        return self.tau <= self.epsilon + _REACHED

    @property
    def priorities(self) -> float:
        """Their sum; tau is on the scale of w where this is 1."""
        return math.fsum(self.chosen.values())

    @property
    def outside(self) -> tuple[str, ...]:
        """Mitigated axes that were not chosen."""
        return tuple(axis for axis in self.mitigated if axis not in self.chosen)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to read this case's figures right."""
        return tuple(
            note
            for holds, note in (
                (self.outcome == "", "unfinished: in no mean"),
                (self.outcome != "" and not self.counts, "undefined: in no mean"),
                (_uneven(self), f"priorities sum to {self.priorities:.2f}"),
                (self.counts and not self.reached, f"ends above epsilon {self.epsilon:g}"),
                (bool(self.outside), f"outside the chosen axes: {', '.join(self.outside)}"),
            )
            if holds
        )


def mitigation_schema(axes: Iterable[str]) -> pa.Schema:
    """The columns of mitigation.parquet for a dataset of `axes`: a row a step, `w_<axis>` for each of them."""
    return pa.schema(
        [
            *((name, pa.string()) for name in ("model", "subject", "case", "strategy")),
            ("step", pa.int64()),
            ("axis", pa.string()),
            *((name, pa.float64()) for name in ("tau", "gamma", *(f"w_{axis}" for axis in axes))),
            ("prompts", pa.list_(pa.string())),
            ("outcome", pa.string()),
            ("alerts", pa.list_(pa.string())),
            ("chosen", pa.string()),
            ("epsilon", pa.float64()),
        ]
    )


def read_mitigation(path: Path) -> list[Case]:
    """The cases of the mitigation.parquet at `path`. Raises RunDirectoryError naming the file and what is wrong."""
    try:
        table = pq.read_table(path, partitioning=None)
    except FileNotFoundError:
        raise RunDirectoryError(f"'{path.parent}' holds no {path.name}; `seesaw mitigate` makes it") from None
    except (pa.ArrowException, OSError) as error:
        raise RunDirectoryError(f"'{path}' cannot be read as a table: {str(error).splitlines()[0]}") from None
    return cases_of(table, f"'{path}'")


def cases_of(table: pa.Table, where: str = "mitigation.parquet") -> list[Case]:
    """The cases of a table of `mitigation_schema`, in their order, steps sorted, all checked.

    A column `images` (images generated for the step) may be there; further columns are ignored.

    Raises:
        RunDirectoryError: a column is missing or of another type, or the rows contradict each other; `where` names the
            table.
    """
    axes = [name[2:] for name in table.column_names if name.startswith("w_")]
    rows = _typed(table, axes, where).to_pylist()
    by_key: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault((row["model"], row["subject"], row["case"], row["strategy"]), []).append(row)
    found: list[Case] = []
    vectors: dict[tuple[str, str, str], Case] = {}
    for key, mine in by_key.items():
        mine.sort(key=lambda row: row["step"])
        fault = next(_faults(mine, axes), None)
        case = None if fault else _case(mine, axes)
        if case is not None:
            first = vectors.setdefault(_vector(case), case)
            fault = next(_contradictions(case, first), None)
        if case is None or fault:
            model, subject, number, strategy = key
            raise RunDirectoryError(f"{where}: {subject} on {model}, case '{number}', {strategy}: {fault}")
        found.append(case)
    return found


def _typed(table: pa.Table, axes: Sequence[str], where: str) -> pa.Table:
    if not axes:
        raise RunDirectoryError(f"{where} has no column w_<axis>, so no axis")
    schema = mitigation_schema(axes)
    for name in schema.names:
        if table.column_names.count(name) != 1:
            has = "two columns" if name in table.column_names else "no column"
            raise RunDirectoryError(f"{where} has {has} '{name}'{nearest(name, table.column_names)}")
    if "images" in table.column_names:
        schema = schema.append(pa.field("images", pa.float64()))
    columns = []
    for field in schema:
        try:
            columns.append(table[field.name].cast(field.type))
        except pa.ArrowException as error:
            raise RunDirectoryError(f"{where}, column '{field.name}', holds what is no {field.type}: {error}") from None
        if columns[-1].null_count and not pa.types.is_floating(field.type):
            raise RunDirectoryError(f"{where}, column '{field.name}', has gaps")
    return pa.table(columns, schema=schema)


def _faults(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Iterator[str]:
    """What is wrong with the rows of one case, which are sorted by step."""
    if rows[0]["strategy"] not in STRATEGIES:
        yield f"no such strategy{nearest(rows[0]['strategy'], STRATEGIES)}"
    steps = [row["step"] for row in rows]
    if steps != list(range(len(rows))):
        yield f"has the steps {', '.join(map(str, steps))}; they must be 0, 1, 2, ..., each once"
    for row in rows:
        at, axis, before = f"step {row['step']}", row["axis"], [r["axis"] for r in rows[: row["step"]]]
        if not row["step"] and (axis or not math.isnan(_number(row["gamma"]))):
            yield "step 0 is before any mitigation: its axis must be '' and its gamma NaN"
        if row["step"] and axis not in axes:
            yield f"{at} mitigates '{axis}', which is no axis of the table{nearest(axis, axes)}"
        if row["step"] and axis in before:
            yield f"{at} mitigates '{axis}' again"
        if row["outcome"] and row is not rows[-1]:
            yield f"{at} has the outcome '{row['outcome']}', but is not the last"
        if row["outcome"] not in ("", *OUTCOMES):
            yield f"{at} has the outcome '{row['outcome']}'{nearest(row['outcome'], OUTCOMES)}"
        if (row["chosen"], row["epsilon"]) != (rows[0]["chosen"], rows[0]["epsilon"]):
            yield f"{at} has other priorities, or another epsilon, than step 0"
        if not math.isfinite(_number(row["epsilon"])):
            yield f"{at} has no epsilon"
        if None in row["prompts"] or None in row["alerts"]:
            yield f"{at} has a gap in its prompts or alerts"
    yield from _wrong_priorities(rows[0]["chosen"], axes)


def _wrong_priorities(text: str, axes: Sequence[str]) -> Iterator[str]:
    try:
        chosen = json.loads(text)
    except ValueError:
        chosen = None
    if not isinstance(chosen, dict) or not chosen:
        yield f"chosen is '{text}', not JSON of priorities by axis"
        return
    for axis, priority in chosen.items():
        if axis not in axes:
            yield f"chosen names '{axis}', which is no axis of the table{nearest(axis, axes)}"
        if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 <= priority < math.inf:
            yield f"the priority of {axis} is {priority!r}, not a number from 0 up"


def _contradictions(case: Case, first: Case) -> Iterator[str]:
    """What a case's numbers say against each other, or against the `first` case of its name, of another strategy."""
    if (case.chosen, case.epsilon) != (first.chosen, first.epsilon):
        yield f"has other priorities, or another epsilon, than {first.strategy} under the same case"
    for number, step in enumerate(case.course):
        tau = math.fsum(priority * step.w[axis] for axis, priority in case.chosen.items())
        if abs(step.tau - tau) > _CLOSE or (math.isnan(step.tau) and not math.isnan(tau)):
            yield f"step {number} has tau {step.tau:.6g}, but its w and priorities make {tau:.6g}"
    if case.outcome == "reached" and not case.reached:
        yield f"is said to have reached epsilon {case.epsilon:g}, but its last tau is {case.tau:.6g}"


def _case(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Case:
    first, taus = rows[0], [math.nan, *(_number(row["tau"]) for row in rows)]
    return Case(
        **{name: first[name] for name in ("model", "subject", "case", "strategy", "epsilon")},
        chosen=json.loads(first["chosen"]),
        outcome=rows[-1]["outcome"],
        course=tuple(
            Step(
                axis=row["axis"],
                gamma=_number(row["gamma"]),
                predicted=before - _number(row["gamma"]),
                tau=_number(row["tau"]),
                w={axis: _number(row[f"w_{axis}"]) for axis in axes},
                prompts=tuple(row["prompts"]),
                alerts=tuple(row["alerts"]),
                images=_number(row.get("images")),
            )
            for row, before in zip(rows, taus, strict=False)
        ),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _uneven(case: Case) -> bool:
    return abs(case.priorities - 1) > _CLOSE


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
    """Table 1, an appendix table of every model and strategy but `all`, and the comparison where there are several."""
    pairs = dict.fromkeys((case.model, case.strategy) for case in cases if case.strategy != "all")
    several = len({case.strategy for case in cases}) > 1
    head = [table1(cases)] if cases else []
    return [*head, *(appendix(cases, *pair) for pair in pairs), *([comparison(cases)] if several else [])]


def table1(cases: Sequence[Case]) -> Sheet:
    """The paper's Table 1 without its image quality: MitAmt and MitSteps of every model and strategy.

    MitAmt is the mean of the last tau, MitSteps the mean number of steps over the mean number of chosen axes, which is
    what `all` takes (a ratio of means, not a mean of ratios). Only cases that are finished count.
    """
    rows = []
    for model in dict.fromkeys(case.model for case in cases):
        for strategy in STRATEGIES:
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
    name = re.sub(r"[^\w.-]+", "-", f"appendix-{model}-{strategy}")
    return _sheet(name, f"Every case of {model}, mitigated by {strategy}", rows, headings, notes)


def comparison(cases: Sequence[Case]) -> Sheet:
    """All strategies among `cases`, over those (model, subject, case) that every one of them finished.

    `more_steps` is paired: the mean over cases of the steps beyond those of the first row's strategy. Images are shown
    where they are recorded for every case compared.
    """
    by_strategy = {
        strategy: {_vector(c): c for c in cases if c.strategy == strategy and c.counts}
        for strategy in STRATEGIES
        if any(c.strategy == strategy for c in cases)
    }
    known = dict.fromkeys(map(_vector, cases))
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
    headings |= {"tau": "Final tau", "reached": "Reached epsilon", "images": "Images generated"}
    left = len(known) - len(common)
    notes = (
        *([f"{left} of {len(known)} cases are left out: not every strategy has finished them."] if left else []),
        "Reached epsilon: share of cases whose last tau is at most epsilon.",
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


def _vector(case: Case) -> tuple[str, str, str]:
    """What a case has in common with the same case by another strategy."""
    return case.model, case.subject, case.case


def _common_notes(cases: Sequence[Case]) -> tuple[str, ...]:
    return (_ERRORS, _SCALE) if any(map(_uneven, cases)) else (_ERRORS,)


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
        (sum(map(_uneven, mine)), "have priorities that do not sum to 1"),
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
    csv = sheet.data.to_csv(index=False, lineterminator="\n")
    for suffix, text in (("csv", csv), ("md", markdown(sheet)), ("tex", latex(sheet))):
        write_bytes(folder / f"{sheet.name}.{suffix}", text.encode())


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


@dataclass(frozen=True)
class Course:
    """A case as the report shows it (macro `case` of mitigation.html.j2)."""

    case: Case
    why: str  #: what the strategy takes
    picture: Markup


def courses(cases: Iterable[Case]) -> list[Course]:
    """What the report shows of every case."""
    return [Course(case, STRATEGIES[case.strategy], Markup(_picture(case))) for case in cases]


_LEFT, _TOP, _HEIGHT, _PITCH = 34, 18, 130, 104  # of the plot and between steps, in px
_ABOVE, _BELOW = "#d9772b", "#4c8fc9"  # epsilon; told apart by their shape too; both are seen on white and on black


def _picture(case: Case) -> str:
    """tau by step as an `<svg>` element: measured, predicted (rings), and a dashed line at epsilon."""
    top = max(1.0, case.epsilon, *(n for s in case.course for n in (s.tau, s.predicted) if not math.isnan(n)))
    right, bottom = _LEFT + _PITCH * len(case.course), _TOP + _HEIGHT
    points = [(_LEFT + _PITCH * (i + 0.5), bottom - s.tau / top * _HEIGHT, s) for i, s in enumerate(case.course)]
    level = bottom - case.epsilon / top * _HEIGHT
    pairs = [pair for pair in itertools.pairwise(points) if not any(math.isnan(step.tau) for *_, step in pair)]
    lines = "".join(f"M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" for (x, y, _), (u, v, _) in pairs)
    parts = [
        open_svg((right + 50, bottom + 24), _sentence(case)),
        '<g fill="none" stroke="currentColor">'
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke-opacity="0.3"/>'
        f'<path d="M{_LEFT} {level:.1f}H{right}" stroke-dasharray="5 4"/><path d="{lines}" stroke-width="1.5"/></g>',
        f'<text x="{_LEFT - 6}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{top:.3g}</text>',
        f'<text x="{right + 4}" y="{level + 4:.1f}" text-anchor="start" font-style="italic">'
        f"\N{GREEK SMALL LETTER EPSILON} {case.epsilon:g}</text>",
        *(_point(x, y, step, case, bottom - step.predicted / top * _HEIGHT) for x, y, step in points),
    ]
    for x, _, step in points:
        name = step.axis or "before"
        shown = name if len(name) <= 15 else name[:14] + "\N{HORIZONTAL ELLIPSIS}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}"><title>{escape(name)}</title>{escape(shown)}</text>')
    return "".join([*parts, "</g></svg>"])


def _point(x: float, y: float, step: Step, case: Case, predicted: float) -> str:
    ring = f'<circle cx="{x:.1f}" cy="{predicted:.1f}" r="5" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'
    shown = "" if math.isnan(predicted) else ring
    if math.isnan(y):
        return f'<text x="{x:.1f}" y="{_TOP + _HEIGHT - 6}">n/a</text>{shown}'
    if step.tau <= case.epsilon + _REACHED:
        shown += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_BELOW}"/>'
    else:
        shown += f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{_ABOVE}"/>'
    shown += f'<text x="{x + 7:.1f}" y="{y - 5:.1f}" text-anchor="start">{step.tau:.2f}</text>'
    return f"<g><title>{escape(_after(step))}</title>{shown}</g>"


def _after(step: Step) -> str:
    measured = "undefined" if math.isnan(step.tau) else f"{step.tau:.2f}"
    foreseen = "" if math.isnan(step.predicted) else f" (predicted {step.predicted:.2f})"
    return f"{measured} after {step.axis}{foreseen}" if step.axis else f"{measured} before any mitigation"


def _sentence(case: Case) -> str:
    """The picture in words, for those who do not see it."""
    words = ", ".join(map(_after, case.course))
    return f"tau of {case.subject} on {case.model}, {case.strategy}: {words}; epsilon {case.epsilon:g}"
