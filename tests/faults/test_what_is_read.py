"""Data as an attacker would make them: nothing of them runs, and nothing lands where it should not."""

import json
import os
import pickle
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from seesaw.results.errors import ConfigError, InputError, SeesawError, StoreError
from seesaw.results.store.identity import image_seed
from seesaw.results.store.shards import deserialise, serialise
from seesaw.results.store.store import IMAGE_SHARD, Store, shard_folder
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.run_reader import read_run
from seesaw.runner.cli import main
from seesaw.runner.report import write_report
from tests.faults.hostile import HEADER, SCRIPT, encoded, hostile_run

ROOT = Path(__file__).resolve().parents[2]
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
    rows = {name: pa.array([None], IMAGE_SHARD.field(name).type) for name in IMAGE_SHARD.names}
    content = serialise(trapped(trap, **rows))  # whole, with the SHA-256 of itself
    marker.unlink(missing_ok=True)
    name = f"images/m-{'0' * 32}/{'1' * 32}.parquet"
    with pytest.raises(StoreError, match="extension type"):
        deserialise(name, content)
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (verified,) = Store(tmp_path / "store").verify()
    assert verified[1].kind == "damaged"
    assert not marker.exists()


@pytest.mark.parametrize("name", ["answers", "matrices", "uncertainty", "distributions", "failures", "mitigation"])
def test_a_pickle_in_a_run_directory_does_not_run(name, tmp_path, trap, marker):
    run = hostile_run(tmp_path, SCRIPT)
    path = run / f"{name}.parquet"
    columns = pq.read_table(path).to_pydict() if path.exists() else {"model": ["m"]}
    pq.write_table(trapped(trap, **columns), path)
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
    Store(root).commit(f"{folder}/{'1' * 32}.parquet", pa.Table.from_pylist([{**row, "withheld": ""}], IMAGE_SHARD))
    assert listing(tmp_path) - {"a", "a/b"} == {
        f"a/b/store{end}" for end in ("", "/images", f"/{folder}", f"/{folder}/{'1' * 32}.parquet")
    }


@pytest.mark.parametrize("name", PATHS)
def test_no_name_in_a_table_leads_out_of_its_folder(name, tmp_path):
    run = hostile_run(tmp_path / "deep" / "deeper", name)
    write_report(run, str(tmp_path / "deep" / "deeper" / "store"))
    tables = {
        f"{table}.{form}"
        for table in ("bias", "distributions", "matrices", "means", "uncertainty")
        for form in ("parquet", "csv")
    }
    assert listing(run) == tables | {
        *("answers.parquet", "failures.parquet", "run.json", "config.yaml", "report", "report/index.html")
    }
    assert listing(tmp_path) - {f"deep/deeper/run/{file}" for file in listing(run)} == {
        *("deep", "deep/deeper", "deep/deeper/run", "deep/deeper/hostile.yaml")
    }


@pytest.mark.parametrize("name", [name for name in PATHS if name not in ("~root/x", "C:\\x")] + ["\x1b[2J"])
def test_a_config_whose_names_are_paths_or_controls_is_refused(name, tmp_path, monkeypatch):
    from seesaw.runner.experiment import load_experiment

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
    from seesaw.actors.folder_engine import FolderEngine

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


def test_links_in_a_store_neither_show_nor_change_their_targets(tmp_path):
    store, secret = tmp_path / "store", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("TOP SECRET")
    folder = store / "images" / f"m-{'0' * 32}"
    folder.mkdir(parents=True)
    shard = f"images/m-{'0' * 32}/{'1' * 32}.parquet"
    (store / shard).symlink_to(secret / "key")
    (folder / f"{'2' * 32}.parquet").symlink_to(secret)
    (folder / f"{'3' * 32}.parquet").symlink_to(tmp_path / "nowhere")
    result = CliRunner().invoke(main, ["verify", str(store)])
    assert result.exit_code == 1, result.output
    assert "SECRET" not in result.output
    with pytest.raises(StoreError):
        Store(store).read(shard)
    table = IMAGE_SHARD.empty_table()
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
        "results/report/agreement.py": "an SVG of ours, its names escaped",
        "results/report/trajectories.py": "an SVG of ours, its names escaped",
        "results/report/sweep_section.py": "seesaw.results.report.heatmap escapes names",
        "results/report/mitigation_section.py": "seesaw.results.report.heatmap escapes names",
        "results/report/report.py": "the colour scale, which has no names",
    },
    r"pq\.(?:read_\w+|ParquetFile|ParquetDataset)\(|pd\.read_(?:parquet|pickle|feather)|pa\.ipc\.": {
        "results/store/parquet.py": "where extension types are refused",
        "benchmarks/campaign.py": "reads what it has just written itself",
    },
    r"Image\.open\(": {"results/images.py": "where the formats are few"},
    r"\.to_csv\(": {"results/tables/write.py": "where no word is a formula"},
    r"from rich(?:\.markup|\.console)? import .*(?:escape|Console|markup|console|print)": {
        "runner/display/terminal.py": "where control characters are written out"
    },
    r"(?<![\w.])print\(|click\.(?:echo|secho)\(|sys\.std(?:out|err)\.write": {
        "runner/display/streams.py": "where control characters are written out",
        "runner/doctor.py": "a program for a process of its own, whose output is read and shown through streams",
        "actors/pictogram/train_tti.py": "a script of ours that prints numbers",
        "actors/pictogram/train_vlm.py": "a script of ours that prints numbers",
        **{
            path.relative_to(ROOT).as_posix(): "a benchmark, which prints its own figures"
            for path in (ROOT / "benchmarks").rglob("*.py")
        },
    },
}


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_dangerous_calls_are_only_where_they_are_allowed(pattern):
    allowed, files = FORBIDDEN[pattern], set()
    for room in ("actors", "benchmarks", "experiments", "results", "runner", "seesaw"):
        for path in (p for p in (ROOT / room).rglob("*") if not p.is_symlink() and p.suffix in (".py", ".j2")):
            if re.search(pattern, path.read_text(encoding="utf-8"), re.M):
                files.add(path.relative_to(ROOT).as_posix())
    assert files <= set(allowed), sorted(files - set(allowed))


def test_weights_are_safetensors_wherever_we_load_them():
    for path in ("actors/diffusers_load.py", "actors/transformers_engine.py"):
        assert "use_safetensors" in (ROOT / path).read_text()
    assert os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0") == "0"
