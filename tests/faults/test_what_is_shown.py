"""Names as an attacker would choose them: wherever they are shown, words stay words."""

import base64
import csv
import hashlib
import io
import json
import math
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from click.testing import CliRunner

from seesaw.results.printable import printable
from seesaw.results.report.example_images import ExampleImages
from seesaw.runner.cli import main
from seesaw.runner.report import write_report
from tests.faults.hostile import (
    SCRIPT,
    axis_of,
    encoded,
    hostile_answers,
    hostile_run,
    value_of,
)

HANDLER = "\"><img src=x onerror=alert(1)> ' onload=alert(2) {{ 7*7 }} {% raw %} ]]>--><svg onload=alert(3)>"
ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \r\b [red]markup[/red] :bomb: \u202eeverse"
FORMULA = "=cmd|' /C calc'!A0"
TAGS = """
html head meta title style script body header main section footer article p h1 h2 h3 h4 h5 b i a dl dt dd div
span table caption thead tbody tr th td figure figcaption img code ul li details summary form label select option output
svg g text rect path circle line"""


class Page(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        inside = self.elements[-1][0] if self.elements else ""
        (self.scripts if inside == "script" and len(self.scripts) < self.count("script") else self.words).append(data)

    def count(self, tag: str) -> int:
        return sum(element == tag for element, _ in self.elements)


def check_page(page: str) -> Page:
    """Nothing active stands in it but its own two scripts, which its policy names."""
    read = Page(page)
    (policy,) = [a["content"] for tag, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert read.count("script") == len(read.scripts) == 2
    for script in read.scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
        assert "alert(" not in script
    allowed = set(TAGS.split())
    for tag, attributes in read.elements:
        assert tag in allowed, tag
        assert not [name for name in attributes if name.startswith("on") or name in ("srcdoc", "srcset", "action")]
        assert (attributes.get("href") or "#").startswith("#")
        assert re.match(
            r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/=]*$", attributes.get("src") or "data:image/png;base64,"
        )
        assert re.fullmatch(r"[\w:;.%,#() -]*", attributes.get("style") or "")
    return read


@pytest.mark.parametrize("word", [SCRIPT, HANDLER, ESCAPES, FORMULA, "a</title></style></script><base href=//x>"])
def test_names_stay_words_in_the_report(word, tmp_path):
    run = hostile_run(tmp_path, word)
    page = write_report(run, str(tmp_path / "store")).read_text(encoding="utf-8")
    read = check_page(page)
    assert printable(word) in " ".join(read.words)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)


def test_files_that_are_not_images_are_not_in_the_report(tmp_path):
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    eps = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n("
        + str(tmp_path / "marker").encode()
        + b") (w) file\n%%EOF\n"
    )
    tail = encoded("PNG") + SCRIPT.encode()
    run = hostile_run(tmp_path, SCRIPT, (svg, b"<html>" + SCRIPT.encode(), eps, encoded("GIF"), encoded("TIFF"), tail))
    page = write_report(run, str(tmp_path / "store")).read_text(encoding="utf-8")
    read = check_page(page)
    assert page.count("image cannot be decoded") == 7 + 2 * 4
    shown = [a["src"] for tag, a in read.elements if tag == "img"]
    assert shown == [
        "data:image/png;base64," + base64.b64encode(tail).decode()
    ]  # a browser takes what it is said to be
    assert not (tmp_path / "marker").exists()


def test_pillow_opens_no_format_that_runs_a_program(tmp_path):
    for form in ("EPS", "PDF", "GIF", "TIFF", "ICO"):
        album = ExampleImages(str(tmp_path / "store"), {}, 0)
        assert album.size == 0
        from seesaw.results.images import open_image

        with pytest.raises(OSError, match="cannot identify"):
            open_image(encoded(form, 16))


def clean(output: str, word: str) -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", output), repr(output)
    if word == ESCAPES:
        joined = "".join(output.split())
        assert "[red]markup[/red]" in joined
        assert ":bomb:" in joined
        assert "\\x1b[31mred" in joined


@pytest.mark.parametrize("word", [ESCAPES, SCRIPT, HANDLER])
def test_names_stay_words_on_a_terminal(word, tmp_path, monkeypatch):
    run = hostile_run(tmp_path, word, (encoded("PNG"),))  # with a store, or `status` says that there is none
    monkeypatch.setenv("COLUMNS", "200")
    table = hostile_answers(word)
    table = table[table["source_value"] != value_of(word, "b")]  # so that rows are undefined, and told
    table.to_csv(tmp_path / "answers.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    dataset = f"dataset={tmp_path / 'hostile.yaml'}"
    result = CliRunner().invoke(
        main, ["analyze", str(tmp_path / "answers.csv"), "--out", str(tmp_path / "out"), dataset]
    )
    assert result.exit_code == 0, result.output
    assert "undefined: " in result.output
    clean(result.output, word)
    table.assign(answer=word).to_csv(tmp_path / "bad.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    refused = CliRunner().invoke(main, ["analyze", str(tmp_path / "bad.csv"), "--out", str(tmp_path / "out"), dataset])
    assert refused.exit_code == 2
    clean(refused.output, word)
    status = CliRunner().invoke(main, ["status", str(run)])
    assert status.exit_code == 0, status.output
    assert "m [red]x" in status.output
    clean(status.output, word)
    as_json = CliRunner().invoke(
        main, ["analyze", str(tmp_path / "answers.csv"), "--out", str(tmp_path / "out"), dataset, "--json"]
    )
    clean(as_json.output, "")
    assert json.loads(as_json.output)["models"] == [word]


def test_names_of_files_in_a_store_stay_words_on_a_terminal(tmp_path):
    folder = tmp_path / "store" / "images" / f"m-{'0' * 32}"
    folder.mkdir(parents=True)
    (folder / ESCAPES.replace("/", "")).write_bytes(b"x")
    (tmp_path / "store" / "\x1b[2J\nsound").mkdir()
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "store")])
    clean(result.output, "")
    assert len(result.output.splitlines()) == 3


@pytest.mark.parametrize("terminal", [True, False])
def test_a_display_shows_errors_and_notes_as_words(terminal):
    from rich.console import Console as Rich

    from seesaw.runner.display.events import Events
    from seesaw.runner.display.progress import LineDisplay, LiveDisplay
    from seesaw.runner.display.terminal import Console

    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    screen, plain = Screen(), Screen()
    events = Events((LiveDisplay if terminal else LineDisplay)(screen))
    events.start(message=f"run {ESCAPES}")
    events.note(ESCAPES)
    events.lost(ESCAPES, ESCAPES, 1)
    events.end(message=ESCAPES, state="done")
    assert "\x1b[31m" not in screen.getvalue()
    assert "\x1b]0;" not in screen.getvalue()
    assert "\\x1b]0;title" in screen.getvalue()
    assert "[red]markup[/red] :bomb:" in screen.getvalue()
    Console(file=plain, force_terminal=False, width=500).print(ESCAPES, markup=False)
    clean(plain.getvalue(), ESCAPES)
    Rich(file=plain, force_terminal=False, emoji=False).print(ESCAPES, markup=False)
    assert "\x1b" in plain.getvalue()  # which is why rich alone will not do


def test_unpaired_surrogates_and_control_characters_are_escaped():
    assert printable("a\ud800b\x00\x1b\u202e\x85") == "a\\ud800b\\x00\\x1b\\u202e\\x85"
    assert (
        printable("\u00e9t\u00e9 \u4e16 \U0001f469\u200d\U0001f680")
        == "\u00e9t\u00e9 \u4e16 \U0001f469\u200d\U0001f680"
    )
    assert printable("a\nb\r", lines=True) == "a\nb\\r"


@pytest.mark.parametrize("word", [FORMULA, "@SUM(1)", "-2+3", "+1|x", "\t=1", "\uff1d1+1", "x\r=1+1"])
def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(word, tmp_path):
    from seesaw.results.tables.sheet import Sheet, write_sheet

    hostile_run(tmp_path, word)
    run = tmp_path / "run"
    files = {name: run / f"{name}.csv" for name in ("distributions", "matrices", "uncertainty")}
    sheet = pd.DataFrame({"model": [word], word: [-0.5]})
    write_sheet(Sheet("sheet", word, sheet, sheet.astype(str), ()), tmp_path)
    files["sheet"] = tmp_path / "sheet.csv"
    for name, path in files.items():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert len({len(row) for row in rows}) == 1, name
        for cell in (cell for row in rows for cell in row):
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d")) or math.isfinite(float(cell)), (
                name,
                cell,
            )
    in_parquet, in_csv = pd.read_parquet(run / "matrices.parquet"), pd.read_csv(files["matrices"])
    assert (in_parquet["is"] < 0).any()
    pd.testing.assert_series_equal(in_parquet["is"], in_csv["is"])
    assert set(in_parquet["model"]) == {word}
    assert axis_of(word, "x") in set(in_parquet["source_axis"])
