"""A run directory becomes one page that needs nothing else, says what the tables say, and survives what is missing."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import socket
from html import unescape
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from seesaw.results.errors import RunDirectoryError
from seesaw.results.report.heatmap import heatmap, signed
from seesaw.results.tables.run_reader import read_run_json
from seesaw.results.tables.write import write_table
from seesaw.runner.cli import main
from seesaw.runner.report import rewrite_report, write_report
from tests.results.trial import HOSTILE, article_of, page_of, run_of


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two models, two subjects of which one is hostile, one counterfactual without people and one that failed."""
    return run_of(
        tmp_path_factory.mktemp("trial"),
        worlds=("alder", "birch"),
        subjects=("nurse", HOSTILE),
        empty=lambda prompt: prompt.subject == "nurse" and prompt.source_value == "male",
        images={"initial": 96, "counterfactual": 24},
        failed=lambda prompt: prompt.subject == HOSTILE and prompt.source_value == "female",
    )


def test_the_page_loads_nothing_but_itself(trial: tuple[Path, str]) -> None:
    page = page_of(*trial)
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "@import" not in page
    references = re.findall(r'(?:src|href|action|data|srcset)="([^"]*)"', page)
    assert references
    assert all(reference.startswith(("data:image/", "#")) for reference in references)


def test_hostile_names_stay_text(trial: tuple[Path, str]) -> None:
    page = page_of(*trial)
    assert HOSTILE not in page
    assert "<script>alert" not in page
    assert page.count("<script>") == page.count("</script>") == 2  # the page's own
    assert HOSTILE in unescape(page)
    hostile = heatmap([HOSTILE[:18]], [HOSTILE[:18]], [[0.1]], [[True]], limit=1, label=HOSTILE, titles=[[HOSTILE]])
    assert "<script" not in hostile


def shown(run: Path) -> pd.DataFrame:
    """The matrices with the estimates that are shown."""
    spread = pd.read_parquet(run / "uncertainty.parquet").drop(columns="is")
    return pd.read_parquet(run / "matrices.parquet").merge(spread)


def test_every_number_of_the_matrices_is_in_its_cell(trial: tuple[Path, str]) -> None:
    run, store = trial
    page = page_of(run, store)
    for (model, subject), cells in shown(run).groupby(["model", "subject"]):
        article = article_of(page, f"{subject} on {model}")
        drawn = re.findall(r'font-weight="\d+">([^<]*)</text></g>', article)
        assert drawn == [signed(value) for value in cells["is_matched"]]
        for cell in cells[cells["is"].notna()].rename(columns={"is": "plug_in"}).itertuples():
            assert (
                f"w {cell.w_init:.2f} at first, {cell.w_after:.2f} after (IS {signed(cell.plug_in)} as in the "
                f"paper); {cell.n_init} and {cell.n_after} images" in article
            )


def test_cells_are_bold_exactly_where_the_table_calls_them_significant(trial: tuple[Path, str]) -> None:
    run, store = trial
    page = page_of(run, store)
    spread = pd.read_parquet(run / "uncertainty.parquet")
    cells = spread[(spread["model"] == "pictogram-birch") & (spread["subject"] == "nurse")]
    weights = re.findall(r'font-weight="(\d+)">[^<]*</text></g>', article_of(page, "nurse on pictogram-birch"))
    assert [weight == "700" for weight in weights] == cells["significant"].tolist()
    assert {"400", "700"} == set(weights)


def test_a_cell_that_may_be_chance_is_paler_and_an_undefined_one_is_hatched() -> None:
    drawn = heatmap(["a"], ["x", "y", "z"], [[-0.4, -0.4, np.nan]], [[True, False, False]], limit=0.5, label="matrix")
    sure, unsure, undefined = re.findall(r"<g><title>.*?</g>", drawn)
    brightness = [sum(bytes.fromhex(cell.split('fill="#')[1][:6])) for cell in (sure, unsure)]
    assert brightness[0] < brightness[1] - 100
    assert "n/a" in undefined
    assert "<path" in undefined
    assert "<path" not in sure + unsure


def test_the_headline_is_the_lowest_significant_interaction_and_its_share(trial: tuple[Path, str]) -> None:
    run, store = trial
    page = unescape(page_of(run, store))
    spread = pd.read_parquet(run / "uncertainty.parquet")
    off = spread[(spread["source_axis"] != spread["target_axis"]) & spread["is"].notna()]
    negative = off[off["significant"] & (off["is_matched"] < 0)].sort_values("is_matched")
    assert len(negative), "the trial is meant to have one"
    lowest = negative.iloc[0]
    sentence = re.search(r"Strongest: diversifying (.*?)</p>", page, re.DOTALL)
    assert sentence is not None
    for words in (lowest["source_axis"], lowest["target_axis"], lowest["model"], lowest["subject"]):
        assert words in sentence[1]
    picked = off["significant"].sum() / len(off)  # intervals of entries that were picked are wider
    value, width = lowest["is_matched"], NormalDist().inv_cdf(1 - 0.05 * picked / 2) / 1.96
    low, high = value - width * (value - lowest["low"]), value + width * (lowest["high"] - value)
    assert width > 1.1
    assert f"IS {signed(value)} (95% interval {signed(low)} to {signed(high)})" in sentence[1]
    assert f"of {len(off)} interactions between two axes are significantly negative: {len(negative)} tip" in page


def test_undefined_entries_say_why_and_failures_are_listed(trial: tuple[Path, str]) -> None:
    page = unescape(page_of(*trial))
    assert "gender on every axis: gender=male: none of its 24 images counts (no person, or withheld)" in page
    assert "gender on every axis: gender=female: no images" in page
    assert "2 batches failed for good" in page
    assert f"A photo of a female {HOSTILE}: it broke" in page
    assert "Drop rates differ strongly between the counterfactuals of gender on pictogram-alder" in page


def test_images_are_the_stores_and_can_be_decoded(trial: tuple[Path, str]) -> None:
    run, store = trial
    article = article_of(page_of(run, store), "nurse on pictogram-birch")
    shown = [base64.b64decode(image) for image in re.findall(r'src="data:image/png;base64,([^"]*)"', article)]
    answers = pd.read_parquet(run / "answers.parquet")
    initial = answers[
        (answers["model"] == "pictogram-birch") & (answers["subject"] == "nurse") & (answers["source_axis"] == "")
    ]
    keys = initial.drop_duplicates("image").sort_values("image")["image_key"].head(8).tolist()
    stored = {
        row["image_key"]: row["image"]["bytes"]
        for path in Path(store).glob("images/*/*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    assert shown[:8] == [stored[key] for key in keys]
    for image in shown:
        assert Image.open(io.BytesIO(image)).size == (64, 64)
    assert len(re.findall('<img [^>]*alt="Image', article)) == len(shown)
    assert 'class="tiny"' in article


def test_large_images_are_scaled_down(tmp_path: Path) -> None:
    run, store = run_of(tmp_path, axes=("clothing",), images=2, side=400)
    images = re.findall(r'src="data:image/jpeg;base64,([^"]*)"', page_of(run, store))
    assert len(images) == 2 + 2 * 2
    assert all(Image.open(io.BytesIO(base64.b64decode(image))).size == (192, 192) for image in images)


def test_missing_and_damaged_shards_leave_a_note_and_the_rest(tmp_path: Path) -> None:
    run, store = run_of(tmp_path, images=4)
    whole = page_of(run, store)
    shards = sorted(Path(store).glob("images/*/*.parquet"))
    for shard_path in shards[::2]:
        shard_path.write_bytes(shard_path.read_bytes()[:-20])
    for shard_path in shards[1::2]:
        shard_path.unlink()
    page = page_of(run, store)
    assert "<img" not in page
    assert "image not in the store" in page
    assert "image not readable in the store" in page
    assert re.findall(r"<svg.*?</svg>", page) == re.findall(r"<svg.*?</svg>", whole)


def test_one_subject_and_one_axis_are_enough(tmp_path: Path) -> None:
    page = page_of(*run_of(tmp_path, axes=("gender",), images=8))
    assert "No interaction between two axes is significantly negative" in page
    assert "Images behind gender on gender" in page


def test_the_same_inputs_make_the_same_bytes(trial: tuple[Path, str]) -> None:
    assert page_of(*trial) == page_of(*trial)


@pytest.fixture(scope="module")
def true_trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two models, the truth of one of which is known; its matrix of the nurse lacks a row."""
    return run_of(
        tmp_path_factory.mktemp("true"),
        worlds=("alder", "birch"),
        subjects=("nurse", "chef"),
        images=16,
        empty=lambda prompt: prompt.subject == "nurse" and prompt.source_value == "male",
        known=("birch",),
    )


def compared(run: Path) -> pd.DataFrame:
    """Measured and exact values of a run, side by side, where there are both."""
    entry = ["model", "subject", "source_axis", "target_axis"]
    exact = pd.read_parquet(run / "truth.parquet").rename(columns={"is": "exact"})
    measured = pd.read_parquet(run / "uncertainty.parquet").drop(columns="is").rename(columns={"is_matched": "is"})
    return measured.merge(exact, on=entry).dropna()


def test_a_run_without_truth_shows_nothing_of_it(trial: tuple[Path, str]) -> None:
    page = page_of(*trial)
    assert not (trial[0] / "truth.parquet").exists()
    assert "<body>" in page
    for word in ("exact", "Exact", "truth.parquet", "<circle", 'class="both"'):
        assert word not in page.split("</style>")[1]


@pytest.mark.parametrize("off", [0.0, 0.4])
def test_measured_is_is_shown_beside_exact_is_with_figures_that_can_be_checked(
    true_trial: tuple[Path, str], tmp_path: Path, off: float
) -> None:
    run, store = tmp_path / "run", true_trial[1]
    shutil.copytree(true_trial[0], run)
    table = pq.read_table(run / "truth.parquet")
    frame = table.to_pandas().assign(**{"is": lambda t: t["is"] + off})  # as if the model had learnt another world
    write_table(run / "truth.parquet", pa.Table.from_pandas(frame, schema=table.schema))
    page, both = page_of(run, store), compared(run)
    assert set(both["model"]) == {"pictogram-birch"}
    assert len(both) == 2 * 9 - 3
    section = re.search(r'<h2 id="exact">.*?</section>', page, re.DOTALL)
    assert section is not None
    assert "The world that pictogram-birch draws from, or was trained on, is known" in section[0]
    rows = re.findall(r"<tr><th scope=.row.>(.*?)</th>(.*?)</tr>", section[0])
    for (model, cells), mine in zip(rows, (both, both[both["source_axis"] != both["target_axis"]]), strict=True):
        assert model == "pictogram-birch"
        covered = ((mine["low"] <= mine["exact"]) & (mine["exact"] <= mine["high"])).mean()
        assert re.findall(r"<td[^>]*>(.*?)</td>", cells) == [
            "birch",
            "all" if len(mine) == len(both) else "one axis on another",
            str(len(mine)),
            f"{np.corrcoef(mine['is'], mine['exact'])[0, 1]:.2f}",
            f"{np.polyfit(mine['exact'], mine['is'], 1)[0]:.2f}",
            f"{(mine['is'] - mine['exact']).abs().mean():.3f}",
            f"{covered:.0%}" if covered in (0, 1) or 0.05 <= covered <= 0.995 else f"{covered:.1%}",
        ]
    assert re.search(r'<svg role="img" aria-label="Measured IS against exact IS of pictogram-birch; 15 ', section[0])


def test_every_entry_is_a_dot_at_its_place_and_own_axes_are_squares(true_trial: tuple[Path, str]) -> None:
    run, store = true_trial
    page, both = page_of(run, store), compared(run)
    own = both["source_axis"] == both["target_axis"]
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="2.5"><title>(.*?)</title>', page)
    squares = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="6" height="6"><title>(.*?)</title>', page)
    diagonal = re.search(r'<path d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" stroke-dasharray', page)
    assert diagonal is not None
    left, bottom, right, top = map(float, diagonal.groups())
    place: list[float] = []
    value: list[float] = []
    for dots, middle, mine in ((circles, 0, both[~own]), (squares, 3, both[own])):
        assert [title for _, _, title in dots] == [
            f"{c.subject}: {c.source_axis} on {c.target_axis}, exact {signed(c.exact)}, measured {signed(c.measured)}"
            for c in mine.rename(columns={"is": "measured"}).itertuples()
        ]
        place += [(float(x) + middle - left) / (right - left) for x, _, _ in dots]
        place += [(bottom - float(y) - middle) / (bottom - top) for _, y, _ in dots]
        value += [*mine["exact"], *mine["is"]]
    # one scale for both axes, so that the diagonal is where measured is exact
    assert place == pytest.approx(np.polyval(np.polyfit(value, place, 1), value).tolist(), abs=1e-3)
    assert 0 < min(place) < 0.2
    assert 0.8 < max(place) < 1


def test_the_exact_matrix_is_shown_beside_the_measured_one(true_trial: tuple[Path, str]) -> None:
    run, store = true_trial
    page = page_of(run, store)
    exact = pd.read_parquet(run / "truth.parquet")
    measured = pd.read_parquet(run / "uncertainty.parquet").assign(**{"is": lambda t: t["is_matched"]})
    for subject in ("nurse", "chef"):
        figures = article_of(page, f"{subject} on pictogram-birch").split("<figure>")[1:3]
        for figure, table in zip(figures, (measured, exact), strict=True):
            mine = table[(table["model"] == "pictogram-birch") & (table["subject"] == subject)]
            drawn = re.findall(r'font-weight="\d+">([^<]*)</text></g>', figure)
            assert drawn == [signed(value) for value in mine["is"]]
        assert f'aria-label="Exact IS matrix of {subject} for pictogram-birch"' in figures[1]
        assert "what the world birch says" in figures[1]
        assert 'class="both"' not in article_of(page, f"{subject} on pictogram-alder")


def test_a_single_entry_has_no_correlation(tmp_path: Path) -> None:
    page = page_of(*run_of(tmp_path, axes=("gender",), images=8, known=("birch",)))
    assert re.search(r'<td>all</td><td class="n">1</td><td class="n">n/a</td><td class="n">n/a</td>', page)
    assert "one axis on another</td>" not in page


def test_a_page_too_large_shows_the_most_telling_pairs(
    trial: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seesaw.results.report.sweep_section._DETAILED", 1)
    page = page_of(*trial)
    assert "distributions are shown for 1 and example images for 1 of 4 pairs" in page
    pictured = [article for article in page.split("<article")[1:] if "<img" in article]
    chosen = re.search(r'data-first="(pair-\d+)"', page)
    assert chosen is not None
    assert len(pictured) == 1
    assert f'id="{chosen[1]}"' in pictured[0]


def test_a_full_page_takes_no_more_images(trial: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seesaw.results.report.sweep_section._BYTES", 1)
    assert "distributions are shown for 4 and example images for 1 of 4 pairs" in page_of(*trial)


@pytest.mark.parametrize("person", [True, False])
def test_the_number_of_answers_read_at_a_time_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, person: bool
) -> None:
    run, store = run_of(tmp_path, worlds=("elm",), axes=("gender",), images=8, person=person)
    at_once = page_of(run, store)
    monkeypatch.setattr("seesaw.results.store.parquet._ROWS", 5)  # fewer than a cell has
    assert page_of(run, store) == at_once


def test_columns_may_be_in_any_order(tmp_path: Path) -> None:
    run, store = run_of(tmp_path, worlds=("elm",), axes=("gender",), images=8)
    page = page_of(run, store)
    answers = pq.read_table(run / "answers.parquet")
    pq.write_table(answers.select(answers.column_names[::-1]), run / "answers.parquet")
    assert page_of(run, store) == page


def test_without_a_person_question_every_image_counts(tmp_path: Path) -> None:
    page = page_of(*run_of(tmp_path, worlds=("elm",), axes=("gender",), images=8, person=False))
    assert "<dt>left out</dt><dd>no image</dd>" in page
    assert "Images without a person" not in page


def test_a_run_json_with_only_the_fingerprint_is_enough(tmp_path: Path) -> None:
    run, store = run_of(tmp_path, axes=("gender",), images=2)
    fingerprint = json.loads((run / "run.json").read_text())["fingerprint"]
    (run / "run.json").write_text(json.dumps({"fingerprint": fingerprint}))
    assert "<dt>versions</dt><dd>not recorded</dd>" in page_of(run, store)


def test_a_run_without_tables_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        write_report(tmp_path, str(tmp_path))
    run, store = run_of(tmp_path / "trial", axes=("gender",), images=2)
    (run / "matrices.parquet").unlink()
    with pytest.raises(RunDirectoryError, match=r"holds no matrices\.parquet.*seesaw sweep .*config\.yaml"):
        write_report(run, store)
    assert not (run / "report").exists()


@pytest.mark.parametrize("name", ["answers", "distributions", "matrices", "uncertainty", "truth", "failures"])
def test_a_truncated_table_is_named(tmp_path: Path, name: str) -> None:
    run, store = run_of(tmp_path, axes=("gender",), images=2, known=("birch",))
    path = run / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RunDirectoryError, match=rf"{name}\.parquet' cannot be read.*delete it"):
        write_report(run, store)


@pytest.mark.parametrize(("name", "content"), [("run.json", '{"state": '), ("run.json", "[]"), ("config.yaml", "a: [")])
def test_a_broken_run_json_is_named(tmp_path: Path, name: str, content: str) -> None:
    run, store = run_of(tmp_path, axes=("gender",), images=2)
    (run / name).write_text(content)
    with pytest.raises(RunDirectoryError, match=re.escape(name)):
        write_report(run, store)


def test_a_uri_that_a_run_names_is_opened_only_if_it_is_given(tmp_path: Path) -> None:
    run, store = run_of(tmp_path, axes=("gender",), images=2)
    config = yaml.safe_load((run / "config.yaml").read_text())
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        uri = f"s3://evil/x?endpoint_override=127.0.0.1%3A{server.getsockname()[1]}&scheme=http"
        (run / "config.yaml").write_text(yaml.safe_dump({**config, "store": uri}))
        path, message = rewrite_report(run, None)
        assert "--store STORE" in message
        assert "the store was not opened" in path.read_text()
        with pytest.raises(BlockingIOError):  # nobody came
            server.accept()
        assert "<img " in rewrite_report(run, store)[0].read_text()
        page = path.read_bytes()
        with pytest.raises(RunDirectoryError, match="--store STORE"):
            rewrite_report(run, None)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert path.read_bytes() == page


def test_a_report_with_images_is_not_replaced_by_one_without(tmp_path: Path) -> None:
    run, store = run_of(tmp_path, axes=("gender",), images=2)
    page = page_of(run, store)
    with pytest.raises(RunDirectoryError, match="there is no store at"):
        rewrite_report(run, str(tmp_path / "nowhere"))
    assert (run / "report" / "index.html").read_text() == page


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("notes", 5),
        ("notes", [{}]),
        ("versions", [1]),
        ("state", {"a": 1}),
        ("command", ["sweep"]),
        ("finished", 7),
        ("began", 3),
        ("fingerprint.models", ["m"]),
        ("fingerprint.models", {"m": 1}),
        ("fingerprint.subjects", 5),
        ("fingerprint.subjects", [["a"]]),
        ("fingerprint.seed", "x"),
        ("fingerprint.store", {"a": 1}),
        ("fingerprint.mitigation", {"cases": 3}),
    ],
)
def test_run_json_with_a_value_of_another_type_is_named(tmp_path: Path, key: str, value: object) -> None:
    run = {"state": "done", "fingerprint": {"models": {"m": "0" * 32}, "seed": 0}}
    *inside, last = key.split(".")
    (run[inside[0]] if inside else run)[last] = value  # type: ignore[index]
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(RunDirectoryError, match=re.escape(f"its {key}")):
        read_run_json(tmp_path)
    for command in ("report", "status"):
        done = CliRunner().invoke(main, [command, str(tmp_path)])
        assert done.exit_code == 2, done.exception


def test_run_json_that_is_nested_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(RunDirectoryError, match="nested too deeply"):
        read_run_json(tmp_path)
