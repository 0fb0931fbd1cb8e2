"""The page of a mitigation, alone and beside a sweep: every step of every case is on it, and nothing that is not."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seesaw.results.errors import RunDirectoryError
from seesaw.results.report.example_images import ExampleImages
from seesaw.results.report.heatmap import signed
from seesaw.results.store.identity import image_key, image_seed
from seesaw.results.store.store import Store
from seesaw.results.tables.mitigation_matrices import matrices_of
from seesaw.results.tables.mitigation_tables import sheets
from seesaw.results.tables.read_mitigation import cases_of
from seesaw.results.tables.run_reader import read_run_json
from seesaw.results.tables.write import about_of, write_table
from seesaw.runner.report import write_report
from tests.results.trial import HOSTILE, article_of, page_of, run_of

Trial = tuple[Path, str]
KEYS = {
    "priorities": [{"gender": 0.5, "age": 0.5}, {"priority": {"clothing": 0.7, "age": 0.3}, "epsilon": 0.1}],
    "strategy": ["greedy", "all"],
}
CASE = ["model", "subject", "case", "strategy"]
FIRST_CASE = "gender:0.5 age:0.5"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Two models and two subjects, of which one is hostile and has a counterfactual that shows nobody."""
    return run_of(
        tmp_path_factory.mktemp("alone"),
        worlds=("alder", "birch"),
        subjects=("nurse", HOSTILE),
        axes=("gender", "age", "clothing"),
        images=16,
        empty=lambda prompt: prompt.text == f"A photo of a male {HOSTILE}",
        sweep=False,
        mitigate=KEYS,
    )


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A sweep and a mitigation of one model and subject, in one directory."""
    return run_of(tmp_path_factory.mktemp("beside"), axes=("gender", "age"), images=16, mitigate={"priorities": "draw"})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return run_of(tmp_path_factory.mktemp("swept"), axes=("gender", "age"), images=16)


@pytest.fixture
def copy(alone: Trial, tmp_path: Path) -> Trial:
    """The run directory of `alone`, to be spoilt; its store is the same."""
    shutil.copytree(alone[0], tmp_path / "run")
    return tmp_path / "run", alone[1]


def table_of_steps(run: Path) -> pd.DataFrame:
    return pq.read_table(run / "mitigation.parquet").to_pandas()


def heading(case: pd.Series | dict[str, str]) -> str:
    return f'{case["subject"]} on {case["model"]} <span class="soft">{case["case"]}, {case["strategy"]}</span>'


def rewritten(run: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = run / f"{name}.parquet"
    table = pq.read_table(path)
    write_table(path, pa.Table.from_pandas(change(table.to_pandas()), schema=table.schema, preserve_index=False))


@pytest.mark.parametrize("kind", ["alone", "beside", "swept"])
def test_every_link_of_the_page_has_exactly_one_target(kind: str, request: pytest.FixtureRequest) -> None:
    page = page_of(*request.getfixturevalue(kind))
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    pointed = [*re.findall(r'href="#([^"]*)"', page), *re.findall(r'data-first="([^"]*)"', page)]
    assert pointed
    assert set(pointed) <= set(ids)
    assert page.count('<form class="pick"') == (2 if kind == "beside" else 1)
    assert "undefined" not in re.findall(r'(?:href|id|src)="([^"]*)"', page)
    for reference in re.findall(r'(?:src|href|action|data|srcset)="([^"]*)"', page):
        assert reference.startswith(("data:image/", "#"))


OF_SWEEPS = ("How to read this", "Findings", "All pairs at a glance", "pair-0", "answers.parquet", "bootstrap")
OF_MITIGATIONS = ("mitigation.parquet", "mitigation_matrices.parquet", "MitAmt", "case-0", "no_gain", "epsilon")


@pytest.mark.parametrize(("kind", "sweep", "mitigation"), [("alone", 0, 1), ("beside", 1, 1), ("swept", 1, 0)])
def test_the_page_covers_what_the_directory_holds_and_nothing_else(
    kind: str, sweep: int, mitigation: int, request: pytest.FixtureRequest
) -> None:
    page = page_of(*request.getfixturevalue(kind)).split("</style>")[1]
    assert [word in page for word in OF_SWEEPS] == [bool(sweep)] * len(OF_SWEEPS)
    assert [word in page for word in OF_MITIGATIONS] == [bool(mitigation)] * len(OF_MITIGATIONS)
    assert '<h2 id="failures">' in page


@pytest.mark.parametrize("kind", ["alone", "beside"])
def test_the_same_files_make_the_same_bytes(kind: str, request: pytest.FixtureRequest) -> None:
    trial = request.getfixturevalue(kind)
    assert page_of(*trial) == page_of(*trial)


def test_the_head_says_what_was_run_and_how_it_ended(alone: Trial) -> None:
    page, steps = page_of(*alone), table_of_steps(alone[0])
    ends = steps[steps["outcome"] != ""]
    counts = ends["outcome"].value_counts()
    assert {"reached", "undefined"} <= set(counts.index), "the trial is meant to have these"
    lead = re.search(r'<p class="lead">(.*?)</p>', page, re.DOTALL)
    assert lead is not None
    assert f"{len(ends)} cases of 2 subjects on 2 models" in lead[1]
    assert sorted(lead[1].split("; ")[1].rstrip(".").split(", ")) == sorted(f"{n} {o}" for o, n in counts.items())
    words = unescape(page)
    for text in (
        "<dt>models</dt><dd>pictogram-alder, pictogram-birch</dd>",
        f"<dt>subjects</dt><dd>nurse, {HOSTILE}</dd>",
        "<dt>axes</dt><dd>gender, age, clothing <span",
        "<dt>priorities</dt><dd>2 vectors</dd>",
        "<dt>strategies</dt><dd>greedy, all</dd>",
        "<dt>epsilon</dt><dd>0.1, 0.35</dd>",
        "<dt>metric</dt><dd>nominal</dd>",
        "<dt>targets</dt><dd>uniform on every axis</dd>",
        "<dt>intervention</dt><dd>counterfactuals are weighted by the target of their axis</dd>",
        f"<code>{read_run_json(alone[0])['id']}</code>",
    ):
        assert text in words


def test_settings_that_differ_from_the_sweeps_are_shown_separately(beside: Trial) -> None:
    page = page_of(*beside)
    assert (
        "<dt>intervention</dt><dd>all counterfactuals of an axis have the same weight; in the mitigation: "
        "counterfactuals are weighted by the target of their axis</dd>" in page
    )
    assert page.count("in the mitigation:") == 1
    assert "the last command, <code>seesaw mitigate</code>: 2030" in page


def test_every_outcome_tau_and_alert_of_the_table_is_in_its_case(alone: Trial) -> None:
    page, alerts = page_of(*alone), 0
    for _, steps in table_of_steps(alone[0]).groupby(CASE):
        article = unescape(article_of(page, heading(steps.iloc[0])))
        last = steps.iloc[-1]
        assert f"Outcome: <b>{last['outcome']}</b>, judged on" in article
        assert ("undefined: in no mean" in article) == (last["outcome"] == "undefined")
        shown = re.findall(r"<tr><th scope=.row.>(\d+)</th><td>(.*?)</td>.*?</tr>", article.split("</table>")[0])
        assert shown == [(str(row.step), row.axis or "nothing") for row in steps.itertuples()]
        for row in steps.itertuples():
            if row.tau == row.tau:
                assert f'<td class="n">{row.tau:.2f} ± {row.tau_se:.2f}</td>' in article
                assert (
                    f"{row.tau:.2f} ± {row.tau_se:.2f} {'after ' + row.axis if row.axis else 'before any'}" in article
                )
            for alert in row.alerts:
                assert f"{'after ' + row.axis if row.axis else 'before'}: {alert}</li>" in article
                alerts += 1
    assert alerts > 2


def test_every_matrix_has_its_numbers_and_gamma_with_the_mitigated_axis_framed(alone: Trial) -> None:
    run, page = alone[0], page_of(*alone)
    steps = table_of_steps(run).set_index([*CASE, "step"]).sort_index()
    matrices = pd.read_parquet(run / "mitigation_matrices.parquet")
    seen = 0
    for key, case in matrices.groupby(CASE):
        priority = pd.Series(json.loads(steps.loc[(*key, 0), "chosen"]))
        part = article_of(page, heading(dict(zip(CASE, key, strict=True)))).split("What each step saw")[1]
        figures = part.split("</figure>")
        for figure, (step, rows) in zip(figures, case.groupby("step"), strict=False):
            table = rows.pivot(index="source_axis", columns="target_axis", values="is")
            order = list(dict.fromkeys(rows["source_axis"])), list(dict.fromkeys(rows["target_axis"]))
            table = table.loc[order[0], order[1]]
            table["gamma"] = table[priority.index] @ priority
            assert re.findall(r'font-weight="700">([^<]*)</text></g>', figure) == [
                signed(value) for value in table.to_numpy().ravel()
            ]
            ranked = table["gamma"].sort_values(ascending=False, kind="stable")
            words = f"{ranked.index[0]}: gamma {signed(ranked.iloc[0]).lstrip('+')}, the largest of {len(ranked)}"
            if len(ranked) == 1:
                words = words.replace("the largest of 1", "the only candidate")
            else:
                words += f"; next {ranked.index[1]} {signed(ranked.iloc[1]).lstrip('+')}"
            when = f"After step {step}" if step else "Before any mitigation"
            frame = re.findall(r'y="([\d.]+)" width="[\d.]+" height="34" fill="none" stroke="#111"', figure)
            if (*key, step + 1) in steps.index:
                assert steps.loc[(*key, step + 1), "axis"] == ranked.index[0]
                assert f"<figcaption>{when}: {words}.</figcaption>" in figure
                assert frame == [f"{22 + 34 * order[0].index(ranked.index[0]):.1f}"]
            else:
                assert f"<figcaption>{when}: no axis gains; {words}.</figcaption>" in figure
                assert not frame
            seen += 1
    assert seen == len(matrices.groupby([*CASE, "step"])) > 4
    looking = [article for article in page.split("<article")[1:] if "What each step saw" in article]
    assert len(looking) == len(matrices.groupby(CASE)) < page.count("<article")  # strategy all sees none


def test_every_sheet_is_on_the_page_before_the_cases(alone: Trial) -> None:
    page = unescape(page_of(*alone).split('<h2 id="cases">')[0])
    expected = sheets(cases_of(pq.read_table(alone[0] / "mitigation.parquet")))
    captions = re.findall(r"<caption>(.*?)</caption>", page)
    assert captions == [sheet.caption for sheet in expected]
    assert captions[:2] == ["Bias left and steps taken by mitigation", "Strategies over the same cases"]
    for sheet in expected:
        for cell in sheet.shown.to_numpy().ravel():
            assert f">{cell}<" in page


def test_a_case_that_is_not_finished_says_so(copy: Trial) -> None:
    def unfinished(steps: pd.DataFrame) -> pd.DataFrame:
        mine = (steps["model"] == "pictogram-birch") & (steps["subject"] == "nurse") & (steps["case"] == FIRST_CASE)
        mine &= steps["strategy"] == "greedy"
        assert mine.sum() > 2
        last = mine & (steps["step"] == steps[mine]["step"].max())
        return steps.assign(outcome=steps["outcome"].where(~mine, ""))[~last]

    rewritten(copy[0], "mitigation", unfinished)
    page = page_of(*copy)
    article = article_of(page, f'nurse on pictogram-birch <span class="soft">{FIRST_CASE}, greedy')
    assert "Outcome: <b>none yet</b>." in article
    assert "unfinished: in no mean" in article
    assert "not mitigated yet; " in article
    assert "1 unfinished" in page.split("</header>")[0]


def test_hostile_names_stay_text(alone: Trial) -> None:
    page = page_of(*alone)
    assert HOSTILE not in page
    assert "<script>alert" not in page
    assert page.count("<script>") == page.count("</script>") == 2
    assert HOSTILE in unescape(page)


def test_a_case_of_any_name_stays_text(copy: Trial) -> None:
    for name in ("mitigation", "mitigation_matrices"):
        rewritten(copy[0], name, lambda table: table.assign(case=table["case"] + HOSTILE))
    page = page_of(*copy)
    assert "<script>alert" not in page
    assert f"{FIRST_CASE}{HOSTILE}, greedy" in unescape(page)


def test_images_before_and_after_are_the_first_ones_of_those_prompts_in_the_store(alone: Trial) -> None:
    run, store = alone
    record = read_run_json(run)["fingerprint"]
    identity, seeds = record["models"]["pictogram-birch"], [image_seed(record["seed"], i) for i in range(8)]
    stored = {
        row["image_key"]: row["image"]["bytes"]
        for path in Path(store).glob("images/*/*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    steps = table_of_steps(run)
    mine = steps[(steps["model"] == "pictogram-birch") & (steps["subject"] == "nurse") & (steps["strategy"] == "all")]
    mine = mine[mine["case"] == FIRST_CASE]
    end = list(mine.iloc[-1]["prompts"])
    assert len(end) == 6
    wanted = [("A photo of a nurse", seed) for seed in seeds] + [(p, seed) for p in end for seed in seeds[:2]]
    article = article_of(page_of(run, store), heading(mine.iloc[0]))
    shown = [base64.b64decode(image) for image in re.findall(r'src="data:image/png;base64,([^"]*)"', article)]
    assert shown == [stored[image_key(identity, prompt, "", seed)] for prompt, seed in wanted]
    assert "then those of the prompts at the end" in article
    for prompt in end:
        assert f"&ldquo;{prompt}&rdquo;" in article


def test_many_prompts_are_shown_by_a_spread_of_them(tmp_path: Path) -> None:
    keys = {"priorities": {"clothing": 0.5, "age": 0.3, "gender": 0.2}, "strategy": "all", "epsilon": 0.0}
    run, store = run_of(tmp_path, axes=("gender", "age", "clothing"), images=16, sweep=False, mitigate=keys)
    end = list(table_of_steps(run).iloc[-1]["prompts"])
    assert len(end) == 12
    page = page_of(run, store)
    assert "then those of 8 of the 12 prompts at the end" in page
    after = page.split('<div class="after">')[1]
    pictured = re.findall(r'class="soft">&ldquo;(.*?)&rdquo;</div>', after)
    assert pictured == [end[i] for i in (0, 1, 3, 4, 6, 7, 9, 10)]


def test_missing_and_damaged_images_leave_a_note_and_the_rest(beside: Trial, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(beside[1], store)
    whole = page_of(*beside)
    shards = sorted(store.glob("images/*/*.parquet"))
    for shard in shards[::2]:
        shard.write_bytes(shard.read_bytes()[:-20])
    for shard in shards[1::2]:
        shard.unlink()
    page = page_of(beside[0], str(store))
    assert "<img" in whole
    assert "<img" not in page
    assert "image not in the store" in page.split('<h2 id="cases">')[1]
    assert re.findall(r"<svg.*?</svg>", page) == re.findall(r"<svg.*?</svg>", whole)


def test_an_image_that_was_withheld_is_not_shown(beside: Trial, tmp_path: Path) -> None:
    record = read_run_json(beside[0])["fingerprint"]
    store, source = Store(tmp_path / "store"), Store(beside[1])
    path = next(path for path in Path(beside[1]).glob("images/*/*.parquet"))
    name = f"images/{path.parent.name}/{path.name}"
    table = source.read(name)
    flagged = ["flagged", *table.column("withheld").to_pylist()[1:]]
    store.commit(name, table.set_column(table.column_names.index("withheld"), "withheld", pa.array(flagged)))
    album = ExampleImages(str(store.root), record["models"], record["seed"])
    pictures = album.first("pictogram-birch", table.column("prompt")[0].as_py(), 3)
    assert [bool(picture.uri) for picture in pictures] == [False, True, True]
    assert pictures[0].missing == "withheld: flagged"


def test_a_page_too_large_shows_matrices_and_images_of_some_cases(
    alone: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page_of(*alone)
    assert "To keep this page small" not in whole
    number = whole.count("<article")
    monkeypatch.setattr("seesaw.results.report.mitigation_section._DETAILED", 2)
    page = page_of(*alone)
    assert f"matrices are shown for 2 and images for 2 of {number} cases" in page
    articles = page.split("<article")[1:]
    assert sum("What each step saw" in article for article in articles) == 2
    assert sum("<img" in article for article in articles) == 2
    assert all("tau by step" in article for article in articles)
    monkeypatch.setattr("seesaw.results.report.mitigation_section._BYTES", 1)
    assert f"matrices are shown for 2 and images for 1 of {number} cases" in page_of(*alone)
    monkeypatch.setattr("seesaw.results.report.mitigation_section._SHOWN", 3)
    page = page_of(*alone)
    assert f"the trajectory is shown for 3, matrices are shown for 2 and images for 1 of {number} cases" in page
    assert page.count("<article") == 3
    assert f"{number} cases of 2 subjects" in page


def test_failures_are_listed_and_say_what_they_cost(tmp_path: Path) -> None:
    run, store = run_of(
        tmp_path,
        axes=("gender", "age"),
        images=8,
        failed=lambda prompt: prompt.text == "A photo of a male nurse",
        sweep=False,
        mitigate={"priorities": {"gender": 1.0}},
    )
    page = page_of(run, store)
    assert '<a href="#failures">see what failed</a>' in page
    assert "1 batch failed for good; mitigations that need them end undefined." in page
    assert "A photo of a male nurse: it broke" in page
    assert "in no matrix" not in page
    assert "Outcome: <b>undefined</b>" in page


@pytest.mark.parametrize("name", ["mitigation", "mitigation_matrices", "failures"])
def test_a_truncated_table_is_named(copy: Trial, name: str) -> None:
    path = copy[0] / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RunDirectoryError, match=rf"/{name}\.parquet' cannot be read.*delete it.*seesaw mitigate"):
        write_report(*copy)


@pytest.mark.parametrize("name", ["mitigation", "mitigation_matrices", "failures"])
def test_a_missing_table_is_named(copy: Trial, name: str) -> None:
    (copy[0] / f"{name}.parquet").unlink()
    with pytest.raises(RunDirectoryError, match=rf"holds no {name}\.parquet.*`seesaw mitigate"):
        write_report(*copy)
    assert not (copy[0] / "report").exists() or (copy[0] / "report" / "index.html").exists()


@pytest.mark.parametrize("name", ["matrices", "uncertainty", "answers", "distributions"])
def test_a_sweep_that_lacks_a_table_is_an_error_even_beside_a_mitigation(
    beside: Trial, tmp_path: Path, name: str
) -> None:
    shutil.copytree(beside[0], tmp_path / "run")
    (tmp_path / "run" / f"{name}.parquet").unlink()
    with pytest.raises(RunDirectoryError, match=rf"holds no {name}\.parquet.*`seesaw sweep"):
        write_report(tmp_path / "run", beside[1])


def test_a_mitigation_without_cases_is_refused(copy: Trial) -> None:
    rewritten(copy[0], "mitigation", lambda steps: steps[:0])
    with pytest.raises(RunDirectoryError, match=r"mitigation\.parquet' holds no case"):
        write_report(*copy)


def at(row: int, **values: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """The table with other values in one row."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        table = table.copy()
        for column, value in values.items():
            table.loc[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda table: table.assign(strategy="own"), "has a matrix, but is not a case of mitigation.parquet"),
        (lambda table: table.assign(step=table["step"] + 7), "mitigation.parquet has the steps 0 to"),
        (lambda table: table.assign(step=-1), "step -1: has a matrix, but mitigation.parquet has the steps 0 to"),
        (lambda table: table.drop(index=1), "does not have one row for every candidate and every axis"),
        (lambda table: pd.concat([table, table[:1]]), "does not have one row for every candidate and every axis"),
        (at(0, source_axis="posture"), "'posture' is a candidate, but not an axis of mitigation.parquet"),
        (lambda table: table.assign(step=table["step"].clip(1, 1)), "is a candidate, but was mitigated before"),
        (lambda table: table.assign(w_init=table["w_init"] + 0.1), "its w_init differ from the w"),
        (at(0, w_after=0.123), "is differs from w_init - w_after"),
        (
            lambda table: table.assign(**{"is": table["is"] + 0.1, "w_after": table["w_after"] - 0.1}),
            "in mitigation.parquet",
        ),
        (lambda table: table[table["source_axis"] == "clothing"], "next, which is not a candidate here"),
    ],
)
def test_matrices_that_do_not_belong_to_the_cases_are_refused_by_name(
    copy: Trial, spoil: Callable[[pd.DataFrame], pd.DataFrame], text: str
) -> None:
    rewritten(copy[0], "mitigation_matrices", spoil)
    with pytest.raises(RunDirectoryError, match=re.escape(text)) as refused:
        write_report(*copy)
    assert str(refused.value).startswith(f"'{copy[0]}/mitigation_matrices.parquet': ")


def test_matrices_are_read_whole_in_any_order_of_rows(alone: Trial) -> None:
    table = pq.read_table(alone[0] / "mitigation_matrices.parquet")
    cases = cases_of(pq.read_table(alone[0] / "mitigation.parquet"))
    matrices = matrices_of(table, cases, "it")
    again = matrices_of(table.sort_by([("w_after", "descending")]), cases, "it")
    assert {key: set(steps) for key, steps in matrices.items()} == {key: set(steps) for key, steps in again.items()}
    for key, steps in matrices.items():
        case = next(case for case in cases if case.key == key)
        for step, matrix in steps.items():
            gains, shuffled = matrix.gamma(case.chosen), again[key][step].gamma(case.chosen)
            assert gains == pytest.approx(shuffled)
            assert set(gains).isdisjoint(case.mitigated[:step])
            if step < case.steps:
                assert gains[case.trajectory[step + 1].axis] == pytest.approx(case.trajectory[step + 1].gamma)
    assert about_of(alone[0] / "mitigation_matrices.parquet")["dataset"] == "occupation"
