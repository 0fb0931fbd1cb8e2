"""mitigation.parquet is read or refused by name; the paper's rows give its totals; strategies compare by case."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from seesaw.results.errors import RunDirectoryError
from seesaw.results.report.mitigation_section import choice_words
from seesaw.results.report.report import environment
from seesaw.results.report.trajectories import trajectories
from seesaw.results.tables.mitigation import Case
from seesaw.results.tables.mitigation_matrices import Matrix
from seesaw.results.tables.mitigation_tables import appendix, comparison, sheets, table1
from seesaw.results.tables.read_mitigation import cases_of, read_mitigation
from seesaw.results.tables.schemas import mitigation_schema
from seesaw.results.tables.sheet import Sheet, latex, markdown, write_sheet
from seesaw.results.tables.write import table_of, write_table

AXES = ("age", "gender", "clothing", "emotion", "ethnicity", "bodytype", "environment", "disability")
HOSTILE = "<b>50%_of|nurses & ~\\co"
NAN = math.nan

Row = dict[str, Any]


def steps_of(
    subject: str,
    chosen: Mapping[str, float],
    course: Sequence[tuple[str, float, Mapping[str, float]]],
    *,
    strategy: str = "greedy",
    outcome: str = "reached",
    model: str = "sd",
    case: str = "0",
    **more: Any,
) -> list[Row]:
    """The rows of one case; `course` has the axis, gamma and w of every step, w of unnamed axes being 0.5."""
    rows = []
    for step, (axis, gamma, w) in enumerate(course):
        every = dict.fromkeys(AXES, 0.5) | dict(w)
        row: Row = {"model": model, "subject": subject, "case": case, "strategy": strategy, "step": step, "axis": axis}
        row |= {"tau": math.fsum(p * every[a] for a, p in chosen.items()), "tau_se": NAN, "gamma": gamma}
        row |= {f"w_{a}": w for a, w in every.items()}
        row |= {"prompts": [f"A photo of a {subject}, {i}" for i in range(2**step)], "images": None, "alerts": []}
        row |= {"outcome": outcome if step == len(course) - 1 else "", "chosen": json.dumps(chosen), "epsilon": 0.35}
        row |= {"judged": "shared", "p_reached": NAN}
        rows.append(row | more)
    return rows


def nurse(**more: Any) -> list[Row]:
    """The nurse of the paper's figure, by the numbers of its text: tau 0.98, 0.50, 0.19."""
    course = [
        ("", NAN, {"clothing": 0.98, "environment": 0.98}),
        ("environment", 0.40, {"clothing": 0.8, "environment": 0.2}),
        ("clothing", 0.35, {"clothing": 0.1, "environment": 0.28}),
    ]
    rows = steps_of(more.pop("subject", "nurse"), {"clothing": 0.5, "environment": 0.5}, course, **more)
    rows[1]["alerts"] = ["emotion got worse: 0.30 to 0.50"]
    return rows


def table(rows: Sequence[Row]) -> pa.Table:
    schema = mitigation_schema(name[2:] for name in rows[0] if name.startswith("w_"))
    return table_of(pd.DataFrame(rows, dtype=object), schema)


def built(*cases: Sequence[Row]) -> list[Case]:
    return cases_of(table([row for rows in cases for row in rows]))


def paper(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(__file__).with_name(f"paper_{name}.csv"), comment="#")


def paper_cases(name: str, rows: pd.DataFrame) -> list[Case]:
    """The paper's rows as cases: the last tau is printed, everything else but the axes is unknown.

    ITI-GEN mitigates every chosen axis in order, which is what strategy `all` does.
    """
    made = []
    for number, printed in enumerate(rows.to_dict("records")):
        chosen = {axis: float(p) for axis, p in (item.split(":") for item in printed["priority"].split())}
        runs = {"greedy": (printed["mitigated"].split(), printed["mitamt"])}
        if "itigen_mitamt" in printed:
            runs["all"] = (list(chosen), printed["itigen_mitamt"])
        for strategy, (axes, tau) in runs.items():
            nothing = dict.fromkeys(AXES, NAN)
            course = [("", NAN, nothing), *((axis, NAN, nothing) for axis in axes)]
            more = {"strategy": strategy, "model": name, "case": str(number)}
            outcome = "reached" if tau <= 0.35 else "exhausted"
            case = steps_of(printed["occupation"], chosen, course, outcome=outcome, **more)
            case[-1]["tau"] = tau
            made += case
    return cases_of(table(made))


def row_of(sheet: Sheet, **where: object) -> dict[str, Any]:
    data = sheet.data
    for column, value in where.items():
        data = data[data[column] == value]
    assert len(data) == 1
    return {str(name): value for name, value in data.iloc[0].items()}


def test_the_papers_rows_of_sd14_give_its_table_1() -> None:
    rows = paper("sd14")
    sheet = table1(paper_cases("SD1.4", rows))
    ours, itigen = row_of(sheet, strategy="greedy"), row_of(sheet, strategy="all")
    assert (ours["cases"], round(ours["mitamt"], 2), round(itigen["mitamt"], 2)) == (26, 0.33, 0.52)
    assert (round(ours["steps"], 2), round(ours["chosen"], 2)) == (2.38, 3.15)
    assert ours["mitsteps"] == pytest.approx(62 / 82)  # 75.6 %; the mean of the ratios would be 77.8 %
    assert itigen["mitsteps"] == 1
    assert ours["mitamt_se"] == pytest.approx(rows["mitamt"].std() / math.sqrt(26))
    assert itigen["mitamt_se"] == pytest.approx(rows["itigen_mitamt"].std() / math.sqrt(26))
    assert ours["steps_se"] == pytest.approx(rows["steps"].std() / math.sqrt(26))
    assert sheet.shown["MitSteps"][0].startswith("75.6 \N{PLUS-MINUS SIGN} ")


def test_the_first_14_rows_of_sd35_give_its_totals_and_all_of_them_do_not() -> None:
    rows = paper("sd35")
    ours = row_of(table1(paper_cases("SD3.5", rows[:14])))
    assert (round(ours["steps"], 2), round(ours["chosen"], 2), round(ours["mitamt"], 2)) == (2.71, 3.57, 0.27)
    assert ours["mitsteps"] == pytest.approx(0.76)
    whole = row_of(table1(paper_cases("SD3.5", rows)))
    assert whole["cases"] == 19
    assert whole["mitsteps"] == pytest.approx(48 / 62)


def test_the_error_of_mitsteps_is_that_of_a_ratio_of_means() -> None:
    rows = paper("sd14")
    error = row_of(table1(paper_cases("SD1.4", rows)), strategy="greedy")["mitsteps_se"]
    steps, chosen = rows["steps"].to_numpy(), rows["biases"].to_numpy()
    draws = np.random.default_rng(0).integers(26, size=(4000, 26))
    assert error == pytest.approx((steps[draws].sum(1) / chosen[draws].sum(1)).std(), rel=0.1)


def test_rows_of_the_paper_that_could_mislead_have_notes() -> None:
    cases = paper_cases("SD1.4", paper("sd14"))
    notes = {case.subject: case.notes for case in cases if case.strategy == "greedy"}
    assert notes["computer programmer"] == ("priorities sum to 0.99", "ends above epsilon 0.35")
    assert notes["chemist"] == ("priorities sum to 0.99", "outside the chosen axes: bodytype")
    assert notes["scientist"] == ("ends above epsilon 0.35", "outside the chosen axes: bodytype, disability")
    assert notes["doctor"] == notes["lawyer"] == ()
    total = str(row_of(table1(cases), strategy="greedy")["notes"])
    assert "8 of 26 have priorities that do not sum to 1" in total
    assert "7 of 26 end above epsilon" in total
    assert "9 of 26 mitigate axes outside the chosen" in total
    assert any("another scale" in note for note in table1(cases).notes)
    doctor = next(case for case in paper_cases("SD3.5", paper("sd35")) if case.subject == "doctor")
    assert doctor.notes == ("priorities sum to 1.65", "outside the chosen axes: disability, bodytype")


@pytest.mark.parametrize("name", ["sd14", "sd35"])
def test_the_appendix_table_has_the_papers_columns_and_rows(name: str) -> None:
    rows = paper(name)
    sheet = appendix(paper_cases(name, rows), name, "greedy")
    assert sheet.data["subject"].tolist() == rows["occupation"].tolist()
    assert sheet.data["mitigated"].tolist() == [text.replace(" ", ", ") for text in rows["mitigated"]]
    assert sheet.data["priority"][0].startswith("age 0.33, emotion" if name == "sd14" else "clothing 0.5, gender 0.5")
    for ours, theirs in (("chosen", "biases"), ("steps", "steps"), ("mitamt", "mitamt")):
        assert sheet.data[ours].tolist() == rows[theirs].tolist()
    assert ("MitAmt of all" in sheet.shown) == (name == "sd14")  # the paper has ITI-GEN on SD 1.4 alone
    if name == "sd14":
        assert sheet.data["all_mitamt"].tolist() == rows["itigen_mitamt"].tolist()
        assert "2.38 \N{PLUS-MINUS SIGN} 0.18 steps for 3.15" in sheet.notes[0]
    assert ("Case" in sheet.shown) == (name == "sd35")  # announcer and journalist are there twice
    assert set(sheet.shown["Initial tau"]) == {"n/a"}  # the paper does not print it


def test_a_table_that_was_written_is_read_with_every_step(tmp_path: Path) -> None:
    path = tmp_path / "mitigation.parquet"
    rows = nurse()
    write_table(path, table(list(reversed(rows))))
    (case,) = read_mitigation(path)
    assert (case.mitigated, case.steps, case.outcome) == (("environment", "clothing"), 2, "reached")
    assert [step.tau for step in case.trajectory] == pytest.approx([0.98, 0.50, 0.19])
    assert [step.predicted for step in case.trajectory[1:]] == pytest.approx([0.58, 0.15])
    assert [len(step.prompts) for step in case.trajectory] == [1, 2, 4]
    assert case.trajectory[1].alerts == ("emotion got worse: 0.30 to 0.50",)
    assert case.trajectory[2].w["clothing"] == 0.1
    assert (case.notes, case.reached) == ((), True)


def put(row: int, **values: object) -> Callable[[list[Row]], None]:
    return lambda rows: rows[row].update(values)


def put_all(**values: object) -> Callable[[list[Row]], None]:
    return lambda rows: [row.update(values) for row in rows].clear()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (put_all(strategy=""), "has no strategy"),
        (put(2, step=3), "has the steps 0, 1, 3"),
        (put(2, step=1), "has the steps 0, 1, 1"),
        (put(0, axis="age"), "step 0 is before any mitigation"),
        (put(0, gamma=0.1), "step 0 is before any mitigation"),
        (put(1, axis="environmnt"), "did you mean 'environment'?"),
        (put(1, axis=""), "step 1 mitigates ''"),
        (put(2, axis="environment"), "step 2 mitigates 'environment' again"),
        (put(1, outcome="reached"), "step 1 has the outcome 'reached', but is not the last"),
        (put(2, outcome="reach"), "did you mean 'reached'?"),
        (put(2, epsilon=0.2), "step 2 has other priorities, or another epsilon"),
        (put(1, chosen='{"age": 1.0}'), "step 1 has other priorities"),
        (put_all(epsilon=NAN), "step 0 has no epsilon"),
        (put_all(chosen="age"), "not JSON of priorities by axis"),
        (put_all(chosen="{}"), "not JSON of priorities by axis"),
        (put_all(chosen='{"agee": 1.0}'), "chosen names 'agee'"),
        (put_all(chosen='{"age": -0.5}'), "the priority of age is -0.5"),
        (put_all(chosen='{"age": NaN}'), "the priority of age is nan"),
        (put(1, tau=0.4), "step 1 has tau 0.4, but its w and priorities make 0.5"),
        (put(1, tau=NAN), "step 1 has tau nan, but"),
        (put(2, tau=0.5, w_clothing=0.72), "has the outcome 'reached' for epsilon 0.35, but its last tau is 0.5"),
        (put(1, tau_se=-0.1), "step 1 has a standard error below 0, -0.1"),
        (put(1, images=-8), "step 1 has looked at -8 images"),
        (put(1, alerts=[None]), "step 1 has a gap in its prompts or alerts"),
    ],
)
def test_rows_that_contradict_each_other_are_refused_by_name(spoil: Callable[[list[Row]], None], message: str) -> None:
    rows = nurse()
    spoil(rows)
    with pytest.raises(RunDirectoryError, match=re.escape(message)) as refused:
        cases_of(table(rows), "'run/mitigation.parquet'")
    assert str(refused.value).startswith("'run/mitigation.parquet': nurse on sd, case '0', ")


def test_two_strategies_of_one_case_must_have_the_same_priorities() -> None:
    other = steps_of("nurse", {"age": 1.0}, [("", NAN, {"age": 0.2})], strategy="all")
    with pytest.raises(RunDirectoryError, match="all: has other priorities, or another epsilon, than greedy"):
        built(nurse(), other)
    assert len(built(nurse(), [row | {"case": "1"} for row in other])) == 2


def test_a_file_that_is_not_a_mitigation_table_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mitigation.parquet"
    with pytest.raises(RunDirectoryError, match=r"holds no mitigation\.parquet; `seesaw mitigate` makes it"):
        read_mitigation(path)
    path.write_bytes(b"no table")
    with pytest.raises(RunDirectoryError, match="cannot be read as a table"):
        read_mitigation(path)
    good = table(nurse())
    spoilt = {
        "has no column 'gamma'": good.drop_columns(["gamma"]),
        "has no column w_<axis>": good.drop_columns([name for name in good.column_names if name[:2] == "w_"]),
        "column 'step', holds values that are not int64": good.set_column(4, "step", pa.array(["first", "2", "3"])),
        "column 'outcome', has gaps": good.set_column(
            good.column_names.index("outcome"), "outcome", pa.array([None, "", "reached"])
        ),
    }
    for message, bad in spoilt.items():
        write_table(path, bad)
        with pytest.raises(RunDirectoryError, match=re.escape(message)):
            read_mitigation(path)


def test_unfinished_and_undefined_cases_are_in_no_mean_and_a_note_says_so() -> None:
    lost = steps_of("chef", {"age": 1.0}, [("", NAN, {"age": NAN})], outcome="no_gain")
    cases = built(
        nurse(),
        nurse(subject="doctor"),
        nurse(subject="judge", outcome=""),
        lost,
        nurse(subject="farmer", outcome="undefined"),
    )
    ours = row_of(table1(cases))
    assert (ours["cases"], ours["mitamt"], ours["steps"]) == (2, pytest.approx(0.19), 2)
    assert ours["notes"] == "3 unfinished or undefined, in no mean"
    table_a1 = appendix(cases, "sd", "greedy")
    assert row_of(table_a1, subject="judge")["notes"] == "unfinished: in no mean"
    for subject in ("chef", "farmer"):
        assert row_of(table_a1, subject=subject)["notes"] == "undefined: in no mean"
    assert table_a1.shown["MitAmt"].tolist() == ["0.19", "0.19", "0.19", "n/a", "0.19"]
    only_lost = row_of(table1(built(lost)))
    assert only_lost["cases"] == 0
    assert math.isnan(only_lost["mitamt"])


def test_two_equal_cases_of_a_subject_do_not_halve_the_variance() -> None:
    def short(subject: str, case: str, w: float) -> list[Row]:
        return steps_of(subject, {"age": 1.0}, [("", NAN, {"age": w})], outcome="no_gain", case=case)

    subjects = {"nurse": 0.5, "doctor": 0.7, "chef": 0.9}
    once = built(*(short(subject, "0", w) for subject, w in subjects.items()))
    twice = built(*(short(subject, case, w) for subject, w in subjects.items() for case in "01"))
    assert row_of(table1(once))["mitamt_se"] == pytest.approx(0.2 / math.sqrt(3))
    assert row_of(table1(twice))["mitamt_se"] == pytest.approx(0.2 / math.sqrt(3))
    alone = row_of(table1(built(short("nurse", "0", 0.5), short("nurse", "1", 0.7))))
    assert math.isnan(alone["mitamt_se"])


def test_strategies_are_compared_over_the_cases_that_all_of_them_finished() -> None:
    chosen = {"age": 0.5, "gender": 0.5}

    def run(subject: str, strategy: str, taus: Sequence[float], outcome: str = "exhausted") -> list[Row]:
        course = [(axis, NAN, {"age": tau, "gender": tau}) for axis, tau in zip(("", *AXES), taus, strict=False)]
        return steps_of(subject, chosen, course, strategy=strategy, outcome=outcome, images=48)

    rows = [
        *run("nurse", "greedy", [0.9, 0.3]),
        *run("nurse", "all", [0.9, 0.5, 0.2]),
        *run("doctor", "greedy", [0.9, 0.4, 0.35 + 1e-12]),
        *run("doctor", "all", [0.9, 0.7, 0.6, 0.5]),
        *run("chef", "greedy", [0.9]),
        *run("judge", "greedy", [0.9]),
        *run("judge", "all", [0.9, 0.1], outcome=""),
    ]
    sheet = comparison(cases_of(table(rows)))
    greedy, every = row_of(sheet, strategy="greedy"), row_of(sheet, strategy="all")
    assert (greedy["cases"], greedy["steps"], greedy["tau"], greedy["reached"]) == (2, 1.5, pytest.approx(0.325), 1)
    assert (every["cases"], every["steps"], every["tau"], every["reached"]) == (2, 2.5, pytest.approx(0.35), 0.5)
    assert (every["steps_se"], every["more_steps"], every["more_steps_se"]) == (0.5, 1, 0)  # paired: always one more
    assert (greedy["images"], every["images"], every["images_se"]) == (120, 168, 24)
    assert sheet.notes[0].startswith("2 of 4 cases are left out")
    assert sheet.shown["Reached epsilon"].tolist()[0].startswith("100.0")
    assert "Images looked at" in sheet.shown
    unrecorded = comparison(cases_of(table([rows[0] | {"images": None}, *rows[1:]])))
    assert not {"images", "images_se"} & set(unrecorded.data)
    assert "Images looked at" not in unrecorded.shown
    nothing = comparison(cases_of(table([*rows[:2], *rows[5:8]])))  # nurse by greedy, doctor by greedy: one strategy
    assert nothing.data["strategy"].tolist() == ["greedy"]
    apart = comparison(built(run("nurse", "greedy", [0.9, 0.3]), run("chef", "all", [0.9, 0.3])))
    assert apart.data["cases"].tolist() == [0, 0]
    assert apart.shown["Final tau"].tolist() == ["n/a", "n/a"]


def test_csv_keeps_the_numbers_and_markdown_and_latex_survive_any_name(tmp_path: Path) -> None:
    runs = [nurse(subject=s, strategy=of, p_reached=0.9) for of in ("greedy", "all") for s in (HOSTILE, "doctor")]
    cases = built(*runs)
    names = [sheet.name for sheet in sheets(cases)]
    assert names == ["table1", "comparison", "appendix-sd-greedy"]
    sheet = sheets(cases)[2]
    write_sheet(sheet, tmp_path)
    csv = pd.read_csv(
        io.BytesIO((tmp_path / "appendix-sd-greedy.csv").read_bytes()), dtype={"case": str}, keep_default_na=False
    )
    pd.testing.assert_frame_equal(csv, sheet.data, check_dtype=False)
    lines = (tmp_path / "appendix-sd-greedy.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(sheet.shown.columns) + 1}
    assert "| &lt;b>50%\\_of\\|nurses &amp; ~\\\\co |" in rows[2]
    text = (tmp_path / "appendix-sd-greedy.tex").read_text()
    assert r"\textless{}b\textgreater{}50\%\_of\textbar{}nurses \& \textasciitilde{}\textbackslash{}co &" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:", r"\# steps"))
    assert r"0.19 $\pm$ 0.00" in text
    assert r"\begin{tabular}{lp{0.2\linewidth}llllllllll}" in text  # long texts break their lines
    assert text.isascii()
    assert not re.search(r"(?<!\\)[#%]", text)
    assert sheets([]) == []
    assert markdown(table1(cases)).count("\n|") == 4
    assert r"100.0 $\pm$ 0.0 \%" in latex(table1(cases))


def test_the_trajectory_of_tau_is_drawn_where_it_was_measured_and_also_put_into_words() -> None:
    (trajectory,) = trajectories(built(nurse(subject=HOSTILE)))
    picture = ElementTree.fromstring(trajectory.picture)
    assert picture.attrib["role"] == "img"
    label = picture.attrib["aria-label"]
    assert label.startswith(f"tau of {HOSTILE} on sd, greedy: 0.98 before any mitigation, 0.50 after environment (pre")
    assert label.endswith("0.19 after clothing (predicted 0.15); epsilon 0.35")
    above = [float(mark.attrib["y"]) + 3.5 for mark in picture.iter("rect")]
    below = [float(mark.attrib["cy"]) for mark in picture.iter("circle") if "stroke" not in mark.attrib]
    rings = [float(mark.attrib["cy"]) for mark in picture.iter("circle") if "stroke" in mark.attrib]
    (level,) = [float(p.attrib["d"].split()[1].split("H")[0]) for p in picture.iter("path") if "dash" in str(p.attrib)]
    heights = np.array([*above, *below, level, *rings])
    assert heights == pytest.approx(148 - 130 * np.array([0.98, 0.50, 0.19, 0.35, 0.58, 0.15]), abs=0.1)
    assert [title.text for title in picture.iter("title")][1] == "0.50 after environment (predicted 0.58)"


def test_an_axis_of_any_name_is_drawn() -> None:
    axis = "<i>a & b of more letters"
    course = [("", NAN, {axis: 0.9}), (axis, 0.5, {axis: 0.3})]
    (shown,) = trajectories(built(steps_of("nurse", {axis: 1.0}, course)))
    picture = ElementTree.fromstring(shown.picture)
    assert [title.text for title in picture.iter("title")][1] == f"0.30 after {axis} (predicted 0.40)"
    assert [text.text for text in picture.iter("text")][-1] is None  # its name is cut, and whole in the tooltip
    assert picture.findall(".//text/title")[-1].text == axis


def test_a_tau_that_is_undefined_is_not_drawn() -> None:
    course = [("", NAN, {"age": 0.9}), ("gender", 0.2, {"age": NAN}), ("clothing", NAN, {"age": 0.3})]
    (shown,) = trajectories(built(steps_of("nurse", {"age": 1.0}, course)))
    picture = ElementTree.fromstring(shown.picture)
    assert "undefined after gender (predicted 0.70)" in picture.attrib["aria-label"]
    assert [text.text for text in picture.iter("text")].count("n/a") == 1
    assert [p.attrib["d"] for p in picture.iter("path")][2] == ""  # no line to it, and none from it
    assert "nan" not in shown.picture


def test_a_standard_error_is_a_bar_of_its_length_and_is_in_the_words() -> None:
    rows = nurse()
    for row, error in zip(rows, (0.1, 0.0, NAN), strict=True):
        row["tau_se"] = error
    (trajectory,) = trajectories(built(rows))
    picture = ElementTree.fromstring(trajectory.picture)
    (bar,) = picture.iter("line")
    top = 0.98 + 0.1  # the largest of what is drawn is the top of the plot
    assert [float(bar.attrib[y]) for y in ("y1", "y2")] == pytest.approx(
        [148 - 130 * tau / top for tau in (1.08, 0.88)], abs=0.1
    )
    label = picture.attrib["aria-label"]
    assert "0.98 \N{PLUS-MINUS SIGN} 0.10 before any mitigation, 0.50 \N{PLUS-MINUS SIGN} 0.00 after env" in label
    assert "0.19 after clothing" in label
    assert (trajectory.has_errors, trajectory.has_predictions) == (True, True)
    (plain,) = trajectories(
        built(steps_of("nurse", {"age": 1.0}, [("", NAN, {})], strategy="own", outcome="exhausted"))
    )
    assert (plain.has_errors, plain.has_predictions) == (False, False)


@pytest.mark.parametrize(
    ("gains", "message"),
    [
        ({"environment": 0.4, "age": 0.15, "gender": -0.2}, "environment: gamma 0.40, the largest of 3; next age 0.15"),
        ({"age": 0.4, "environment": 0.4}, "environment: gamma 0.40, the largest of 2; next age 0.40"),
        ({"age": 0.5, "environment": 0.4}, "environment: gamma 0.40, number 2 of 2; next age 0.50"),
        ({"environment": 0.4}, "environment: gamma 0.40, the only candidate"),
        ({"environment": 0.4, "age": NAN}, "environment: gamma 0.40, the only candidate"),
        ({"environment": NAN}, "no candidate has a gamma"),
    ],
)
def test_a_choice_comes_with_its_reason(gains: Mapping[str, float], message: str) -> None:
    (case,) = built(nurse())
    rows = np.array([[gain, gain] for gain in gains.values()])
    matrix = Matrix(tuple(gains), ("clothing", "environment"), rows, np.ones(2), 1 - rows)
    assert choice_words(case, matrix, 0) == message


@pytest.mark.parametrize(
    ("outcome", "message"),
    [("no_gain", "no axis gains"), ("", "not mitigated yet"), ("max_steps", "nothing was mitigated")],
)
def test_a_step_that_mitigates_nothing_names_the_largest_gamma(outcome: str, message: str) -> None:
    (case,) = built(nurse(outcome=outcome, epsilon=0.1))
    matrix = Matrix(("age", "gender"), ("clothing", "environment"), np.full((2, 2), -0.03), np.ones(2), np.ones((2, 2)))
    minus = "\N{MINUS SIGN}0.03"
    assert choice_words(case, matrix, 2) == f"{message}; age: gamma {minus}, the largest of 2; next gender {minus}"


def test_the_report_fragment_shows_what_was_chosen_why_and_the_alerts() -> None:
    page = environment().from_string(
        "{% import 'mitigation.html.j2' as m %}{% for c in all %}{{ m.case(c) }}{% endfor %}{{ m.sheet(sheet) }}"
    )
    above = steps_of("chef", {"age": 0.66}, [("", NAN, {})], outcome="no_gain")
    cases = built(nurse(subject=HOSTILE), above, nurse(outcome="", strategy="all"))
    html = page.render(all=trajectories(cases), sheet=table1(cases))
    assert "<b>50%" not in html
    words = unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)))
    assert (
        "Strategy greedy takes the axis, chosen or not, with the largest predicted gain gamma. Outcome: reached , "
        "judged on " in words
    )
    assert "Strategy all takes every chosen axis, in order" in words
    assert (
        "1 environment 0.40 0.58 0.50 2 2 clothing" in words
    )  # step, axis, gamma, tau predicted and measured, prompts
    assert "0 0.50 0.50 0.98 0.50 0.50 0.50 0.98 0.50 1 " in words  # w by axis
    assert "after environment: emotion got worse: 0.30 to 0.50" in words
    assert "priorities sum to 0.66." in words
    assert "unfinished: in no mean." in words
    assert "the 4 prompts at the end" in words
    assert f"A photo of a {HOSTILE}, 3" in unescape(html)
    assert "MitAmt: mean tau after the last step" in words


def test_models_with_odd_names_have_files_of_their_own_with_names_of_legal_length() -> None:
    names = {
        appendix([], model, "greedy").name
        for model in ("sd-1.4", "sd 1.4", "sd/1.4", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100)
    }
    assert len(names) == 4
    assert "appendix-sd-1.4-greedy" in names
    assert all(len(f".{name}.parquet.12345.tmp".encode()) < 200 and "/" not in name for name in names)
