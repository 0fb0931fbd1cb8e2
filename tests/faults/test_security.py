"""Data as an attacker would make them: nothing of them runs, nothing lands where it should not, words stay words."""

import base64
import csv
import hashlib
import io
import json
import math
import os
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from results.errors import ConfigError, InputError, SeesawError, StoreError
from results.identity import batch_key, digest, image_key, image_seed
from results.pictures import Album
from results.printable import printable
from results.record import read_run
from results.report import write_report
from results.shards import deserialise, serialise
from results.store import IMAGES, Store, shard_folder
from results.tables import FAILURES, read_answers, table_of
from runner.cli import main

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "<script>alert(1)</script>"
HANDLER = "\"><img src=x onerror=alert(1)> ' onload=alert(2) {{ 7*7 }} {% raw %} ]]>--><svg onload=alert(3)>"
ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \r\b [red]markup[/red] :bomb: \u202eeverse"
FORMULA = "=cmd|' /C calc'!A0"
HEADER = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]
TAGS = """
html head meta title style script body header main section footer article p h1 h2 h3 h4 h5 b i a dl dt dd div
span table caption thead tbody tr th td figure figcaption img code ul li details summary form label select option output
svg g text rect path circle line"""
PATHS = [
    "../../x",
    "/etc/x",
    "..",
    ".",
    "a/../../b",
    "nul\0byte",
    "x" * 5000,
    "new\nline",
    "~root/x",
    "C:\\x",
]


# what is read never runs


class Bomb:
    """Pickled, it makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


class Trap(pa.ExtensionType):
    """As `ray.data` registers them: whoever opens a file with such a column unpickles what the file says of it."""

    def __init__(self, payload: bytes = b"") -> None:
        self.payload = payload
        super().__init__(pa.string(), "trap.type")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.payload

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        pickle.loads(serialized)
        return cls(serialized)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def trap(marker):
    pa.register_extension_type(Trap())
    yield Trap(pickle.dumps(Bomb(marker)))
    pa.unregister_extension_type("trap.type")


def trapped(trap: Trap, **columns: list) -> pa.Table:
    rows = len(next(iter(columns.values())))
    further = pa.ExtensionArray.from_storage(trap, pa.array(["x"] * rows))
    return pa.table({**columns, "further": further})


def answers_of(*rows: tuple) -> dict[str, list]:
    return {name: [row[i] for row in rows] for i, name in enumerate(HEADER)}


def test_a_pickle_in_an_answers_table_does_not_run(tmp_path, trap, marker):
    path = tmp_path / "answers.parquet"
    rows = answers_of(("m", "s", "", "", 0, "gender", "male"))
    for shift in range(3):  # base64 writes a word in three ways
        pq.write_table(trapped(trap, **{"y" * (1 + shift): [1]}, **rows), path)
        pq.read_schema(path)
        assert marker.exists(), "this attack is none any more"
        marker.unlink()
        with pytest.raises(InputError, match="extension type"):
            read_answers(path)
        assert not marker.exists()


def test_a_plain_answers_table_is_read_with_its_further_columns(tmp_path):
    path = tmp_path / "answers.parquet"
    table = pa.table({**answers_of(("m", "s", "", "", 0, "gender", "male")), "when": pd.to_datetime(["2026-01-01"])})
    pq.write_table(table, path)
    assert list(read_answers(path).columns) == HEADER


def test_a_pickle_in_a_shard_does_not_run(tmp_path, trap, marker):
    rows = {name: pa.array([None], IMAGES.field(name).type) for name in IMAGES.names}
    content = serialise(trapped(trap, **rows))  # whole, with the SHA-256 of itself
    marker.unlink(missing_ok=True)
    name = f"images/m-{'0' * 32}/{'1' * 32}.parquet"
    with pytest.raises(StoreError, match="extension type"):
        deserialise(name, content)
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (found,) = Store(tmp_path / "store").verify()
    assert found[1].kind == "damaged"
    assert not marker.exists()


@pytest.mark.parametrize("name", ["answers", "matrices", "uncertainty", "distributions", "failures", "mitigation"])
def test_a_pickle_in_a_run_directory_does_not_run(name, tmp_path, trap, marker):
    run = hostile_run(tmp_path, SCRIPT)
    path = run / f"{name}.parquet"
    held = pq.read_table(path).to_pydict() if path.exists() else {"model": ["m"]}
    pq.write_table(trapped(trap, **held), path)
    marker.unlink(missing_ok=True)
    with pytest.raises(SeesawError, match="extension type"):
        read_run(run)
    done = CliRunner().invoke(main, ["status", str(run)])
    assert done.exit_code in (0, 2), done.output
    assert not marker.exists()


@pytest.mark.parametrize(
    "tag", ["python/object/apply:os.system", "python/object/new:os.system", "python/name:os.system"]
)
@pytest.mark.parametrize("kind", ["config", "dataset", "models", "run"])
def test_a_yaml_that_calls_python_calls_nothing(tag, kind, tmp_path, marker, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = f"!!{tag} ['touch {marker}']"
    Path("evil.yaml").write_text(f"name: {evil}\nengine: simulated\nmodels: [m]\ntemplate: {evil}\n")
    config = {"dataset": "dataset: evil.yaml\nmodels: []", "models": "models: [evil.yaml]"}.get(kind, f"name: {evil}")
    Path("config.yaml").write_text(config)
    Path("run.json").write_text('{"state": "done", "fingerprint": {"models": {}, "seed": 0}}')
    done = CliRunner().invoke(main, ["report", "."] if kind == "run" else ["plan", "config.yaml"])
    assert done.exit_code == 2, done.output
    assert not marker.exists()


def test_a_secret_of_the_environment_never_gets_into_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "verysecretvalue0")
    monkeypatch.setenv("PLACE", "outputs/here")
    good = "models: [{name: m, engine: simulated}]\nvqa: simulated\nsubjects: [nurse]\nimages: 8\n"
    for line in ("name: ${oc.env:HF_TOKEN}", "store: a/${oc.env:HF_TOKEN}/b", "run: verysecretvalue0"):
        Path("config.yaml").write_text(f"{good}{line}\n")
        done = CliRunner().invoke(main, ["plan", "config.yaml"])
        assert done.exit_code == 2
        assert "holds the value of HF_TOKEN" in done.output
        assert "verysecretvalue0" not in done.output
    Path("config.yaml").write_text(good)
    done = CliRunner().invoke(main, ["plan", "config.yaml", "dataset.template=${oc.env:HF_TOKEN} {subject}"])
    assert done.exit_code == 2
    assert "verysecretvalue0" not in done.output
    done = CliRunner().invoke(main, ["plan", "config.yaml", "store=${oc.env:PLACE}"])
    assert done.exit_code == 0, done.output
    assert "outputs/here" in done.output


# what is shown is text


def axis_of(word: str, name: str) -> str:
    return f"{word} {name}".replace("+", "").strip()  # a + in it would be refused, and so would the space


def value_of(word: str, name: str) -> str:
    return f"{word} {name}".strip()


def hostile_dataset(word: str) -> dict[str, object]:
    axes = {
        axis_of(word, axis): {
            "attributes": [value_of(word, "a"), value_of(word, "b")],
            "question": f"Which {axis}?",
            "counterfactuals": {value_of(word, value): {"adjective": axis + value} for value in "ab"},
        }
        for axis in "xy"
    }
    return {"name": f"n {word}".strip(), "template": "A {subject}", "subjects": [word.strip()], "axes": axes}


def hostile_answers(word: str) -> pd.DataFrame:
    """32 images of the initial prompt and of every counterfactual; x tips y."""
    rows = []
    for source, value in [("", ""), *((source, value) for source in "xy" for value in "ab")]:
        states = (axis_of(word, source), value_of(word, value)) if source else ("", "")
        for image, axis in ((image, axis) for image in range(32) for axis in "xy"):
            answer = "a" if image % 2 or (source and axis == "y") else "b"
            rows.append((word, word.strip(), *states, image, axis_of(word, axis), value_of(word, answer)))
    return pd.DataFrame(rows, columns=HEADER)


def hostile_run(root: Path, word: str, images: tuple[bytes, ...] = ()) -> Path:
    """A run directory in which every name is `word`, as somebody may hand it on, and a store with `images`."""
    run, identity = root / "run", digest("model", {})
    run.mkdir(parents=True)
    (root / "hostile.yaml").write_text(yaml.safe_dump(hostile_dataset(word)))
    frame, prompt = hostile_answers(word), f"A {word}"
    keys = {seed: image_key(identity, prompt, "", image_seed(0, seed)) for seed in range(8)}
    frame = frame.assign(
        probability=1.0, prompt=prompt, seed=frame["image"], image_key=frame["image"].map(keys), vlm=word
    )
    frame.to_parquet(run / "answers.parquet", index=False)
    done = CliRunner().invoke(
        main, ["analyze", str(run / "answers.parquet"), "--out", str(run), f"dataset={root / 'hostile.yaml'}"]
    )
    assert done.exit_code == 0, done.output
    failure = dict.fromkeys(FAILURES.names, word) | {"attempts": 1}
    pq.write_table(table_of(pd.DataFrame([failure]), FAILURES), run / "failures.parquet")
    finger = {"models": {word: identity}, "seed": 0, "vqa": {word: word}, "store": str(root / "store")}
    record = {
        "state": word,
        "command": word,
        "id": word,
        "fingerprint": finger,
        "versions": {word: word},
        "began": word,
    }
    (run / "run.json").write_text(json.dumps(record))
    config = {"name": "n", "models": [{"name": "m [red]x", "engine": "simulated"}], "vqa": "simulated", "images": 8}
    text = yaml.safe_dump({**config, "dataset": hostile_dataset(word), "store": str(root / "store")})
    (run / "config.yaml").write_text(text)
    if images:
        seeds = [image_seed(0, seed) for seed in range(8)]
        held = [{"bytes": images[i % len(images)], "path": None} for i in range(8)]
        columns = {"image_key": list(keys.values()), "image": held, "model": [word] * 8, "prompt": [prompt] * 8}
        columns |= {"adapter": [""] * 8, "seed": seeds, "withheld": [""] * 8}
        name = f"{shard_folder('images', word, identity)}/{batch_key(identity, prompt, '', seeds)}.parquet"
        Store(root / "store").commit(name, pa.table(columns, schema=IMAGES))
    return run


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
    svg = re.sub(r"<svg.*?</svg>", "", page, flags=re.S)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", svg)


def encoded(form: str, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").resize((side, side)).convert("RGB").save(file, form)
    return file.getvalue()


def test_images_that_are_none_are_no_part_of_the_report(tmp_path):
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
        album = Album(str(tmp_path / "store"), {}, 0)
        assert album.size == 0
        from results.images import open_image

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
    run = hostile_run(tmp_path, word)
    monkeypatch.setenv("COLUMNS", "200")
    table = hostile_answers(word)
    table = table[table["source_value"] != value_of(word, "b")]  # so that rows are undefined, and told
    table.to_csv(tmp_path / "answers.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    dataset = f"dataset={tmp_path / 'hostile.yaml'}"
    told = CliRunner().invoke(main, ["analyze", str(tmp_path / "answers.csv"), "--out", str(tmp_path / "out"), dataset])
    assert told.exit_code == 0, told.output
    assert "undefined: " in told.output
    clean(told.output, word)
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
    told = CliRunner().invoke(main, ["verify", str(tmp_path / "store")])
    clean(told.output, "")
    assert len(told.output.splitlines()) == 3


@pytest.mark.parametrize("terminal", [True, False])
def test_a_display_shows_errors_and_notes_as_words(terminal):
    from rich.console import Console as Rich

    from runner.events import Events
    from runner.progress import _Lines, _Live
    from runner.terminal import Console

    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    screen, plain = Screen(), Screen()
    events = Events((_Live if terminal else _Lines)(screen))
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


def test_half_characters_and_controls_are_written_out():
    assert printable("a\ud800b\x00\x1b\u202e\x85") == "a\\ud800b\\x00\\x1b\\u202e\\x85"
    assert (
        printable("\u00e9t\u00e9 \u4e16 \U0001f469\u200d\U0001f680")
        == "\u00e9t\u00e9 \u4e16 \U0001f469\u200d\U0001f680"
    )
    assert printable("a\nb\r", lines=True) == "a\nb\\r"


@pytest.mark.parametrize("word", [FORMULA, "@SUM(1)", "-2+3", "+1|x", "\t=1", "\uff1d1+1", "x\r=1+1"])
def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(word, tmp_path):
    from results.mitigation_tables import Sheet, write_sheet

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
    kept, told = pd.read_parquet(run / "matrices.parquet"), pd.read_csv(files["matrices"])
    assert (kept["is"] < 0).any()
    pd.testing.assert_series_equal(kept["is"], told["is"])
    assert set(kept["model"]) == {word}
    assert axis_of(word, "x") in set(kept["source_axis"])


# names never become paths unchecked


def listing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("name", PATHS)
def test_no_name_leads_out_of_a_store(name, tmp_path):
    folder = shard_folder("images", name, "0" * 32)
    assert re.fullmatch(r"images/[\w-][\w.-]{0,99}", folder, re.ASCII)
    root = tmp_path / "a" / "b" / "store"
    row = {
        "image_key": "k",
        "image": {"bytes": b"", "path": None},
        "model": name,
        "prompt": name,
        "adapter": "",
        "seed": 1,
    }
    Store(root).commit(f"{folder}/{'1' * 32}.parquet", pa.Table.from_pylist([{**row, "withheld": ""}], IMAGES))
    assert listing(tmp_path) - {"a", "a/b"} == {
        f"a/b/store{end}" for end in ("", "/images", f"/{folder}", f"/{folder}/{'1' * 32}.parquet")
    }


@pytest.mark.parametrize("name", PATHS)
def test_no_name_in_a_table_leads_out_of_its_folder(name, tmp_path):
    run = hostile_run(tmp_path / "deep" / "deeper", name)
    write_report(run, str(tmp_path / "deep" / "deeper" / "store"))
    tables = {
        f"{table}.{form}" for table in ("distributions", "matrices", "uncertainty") for form in ("parquet", "csv")
    }
    assert listing(run) == tables | {
        *("answers.parquet", "failures.parquet", "run.json", "config.yaml", "report", "report/index.html")
    }
    assert listing(tmp_path) - {f"deep/deeper/run/{file}" for file in listing(run)} == {
        *("deep", "deep/deeper", "deep/deeper/run", "deep/deeper/hostile.yaml")
    }


@pytest.mark.parametrize("name", [name for name in PATHS if name not in ("~root/x", "C:\\x")] + ["\x1b[2J"])
def test_a_config_whose_names_are_no_names_is_refused(name, tmp_path, monkeypatch):
    from runner.experiment import load_experiment

    monkeypatch.chdir(tmp_path)
    model = {"name": "m", "engine": "simulated"}
    good = {"name": "n", "models": [model], "vqa": "simulated", "subjects": ["nurse"], "images": 8}
    bad = {**good, "name": name}
    Path("config.yaml").write_text(json.dumps(bad))
    with pytest.raises(ConfigError):
        load_experiment("config.yaml")
    Path("config.yaml").write_text(json.dumps({**good, "models": [{**model, "name": name}]}))
    if len(name) < 100 and name.isprintable():  # a name like another: its folder is not
        assert "/.." not in load_experiment("config.yaml").models[0].folder
    else:
        with pytest.raises(ConfigError):
            load_experiment("config.yaml")
    if "\0" in name:
        for key in ("run", "store", "dataset", "priorities"):
            Path("config.yaml").write_text(json.dumps({**good, key: name}))
            with pytest.raises(ConfigError, match="NUL"):
                load_experiment("config.yaml")
    assert listing(tmp_path) == {"config.yaml"}


def test_a_subject_that_is_a_path_gets_no_other_folders_images(tmp_path):
    from actors.folder_engine import FolderEngine

    for folder in ("real/nurse", "secret"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.png").write_bytes(encoded("PNG"))
    (tmp_path / "real" / "nurse" / "1.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    engine = FolderEngine({"path": str(tmp_path / "real")})
    for subject in ("../secret", str(tmp_path / "secret"), "nurse/../../secret"):
        with pytest.raises(ConfigError):
            engine.generate(f"A photo of a {subject}", [image_seed(0, 0)])
    with pytest.raises(ConfigError, match=r"1\.png is no image"):
        FolderEngine.preflight({"path": str(tmp_path / "real")})


def test_links_in_a_store_neither_show_nor_change_what_they_lead_to(tmp_path):
    store, secret = tmp_path / "store", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("TOP SECRET")
    folder = store / "images" / f"m-{'0' * 32}"
    folder.mkdir(parents=True)
    shard = f"images/m-{'0' * 32}/{'1' * 32}.parquet"
    (store / shard).symlink_to(secret / "key")
    (folder / f"{'2' * 32}.parquet").symlink_to(secret)
    (folder / f"{'3' * 32}.parquet").symlink_to(tmp_path / "nowhere")
    told = CliRunner().invoke(main, ["verify", str(store)])
    assert told.exit_code == 1, told.output
    assert "SECRET" not in told.output
    with pytest.raises(StoreError):
        Store(store).read(shard)
    table = IMAGES.empty_table()
    for digit in "123":
        assert not Store(store).commit(shard.replace("1" * 32, digit * 32), table)  # whoever was there first stays
    Store(store).quarantine(shard)
    assert not (store / shard).is_symlink()
    assert listing(secret) == {"key"}
    assert (secret / "key").read_text() == "TOP SECRET"
    assert not (tmp_path / "nowhere").exists()


# the ways in and out that exist, and no others

#: what is not to be found in the source, and where it may be, with the reason
FORBIDDEN = {
    r"^\s*(?:import|from)\s+(?:pickle|cloudpickle|marshal|shelve|dill|joblib|cPickle)\b": {},
    r"torch\.load\(|allow_pickle|weights_only\s*=\s*False|use_safetensors\W+False": {},
    r"yaml\.(?:load|load_all|unsafe_load|full_load)\(|UnsafeLoader|FullLoader|yaml\.Loader\b": {},
    r"(?<![\w.])(?:eval|exec|__import__)\(": {},
    r"shell\s*=\s*True|os\.system\(|os\.popen\(": {},
    r"autoescape\s*=\s*False|\|\s*safe\b|autoescape false": {},
    r"\bMarkup\(": {
        "results/agreement.py": "an SVG of ours, its names escaped",
        "results/courses.py": "an SVG of ours, its names escaped",
        "results/measured.py": "results.heatmap escapes names",
        "results/mitigated.py": "results.heatmap escapes names",
        "results/report.py": "the colour scale, which has no names",
    },
    r"pq\.(?:read_\w+|ParquetFile|ParquetDataset)\(|pd\.read_(?:parquet|pickle|feather)|pa\.ipc\.": {
        "results/parquet.py": "where extension types are refused",
        "experiments/bench/campaign.py": "reads what it has just written itself",
    },
    r"Image\.open\(": {"results/images.py": "where the formats are few"},
    r"\.to_csv\(": {"results/tables.py": "where no word is a formula"},
    r"from rich(?:\.markup|\.console)? import .*(?:escape|Console|markup|console|print)": {
        "runner/terminal.py": "where control characters are written out"
    },
    r"(?<![\w.])print\(|click\.(?:echo|secho)\(|sys\.std(?:out|err)\.write": {
        "runner/streams.py": "where control characters are written out",
        "actors/pictogram/train_tti.py": "a script of ours that prints numbers",
        "actors/pictogram/train_vlm.py": "a script of ours that prints numbers",
        **{
            f"experiments/bench/{path.name}": "a benchmark, which prints its own figures"
            for path in (ROOT / "experiments" / "bench").glob("*.py")
        },
    },
}


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_dangerous_calls_are_where_they_are_known(pattern):
    allowed, found = FORBIDDEN[pattern], set()
    for room in ("actors", "experiments", "results", "runner"):
        for path in (p for p in (ROOT / room).rglob("*") if p.suffix in (".py", ".j2")):
            if re.search(pattern, path.read_text(encoding="utf-8"), re.M):
                found.add(path.relative_to(ROOT).as_posix())
    assert found <= set(allowed), sorted(found - set(allowed))


def test_weights_are_safetensors_wherever_we_load_them():
    for path in ("actors/diffusers_load.py", "actors/transformers_engine.py"):
        assert "use_safetensors" in (ROOT / path).read_text()
    assert os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0") == "0"
