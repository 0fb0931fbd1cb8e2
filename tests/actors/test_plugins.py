"""A class that a config names: found beside the config, executed under a private name, the same in every process."""

import hashlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from seesaw.actors.engines import TTI_ENGINES
from seesaw.actors.plugins import find_plugin
from seesaw.results.errors import ConfigError

ENGINE = """
from dataclasses import dataclass


@dataclass
class Mine:
    settings: dict

    def generate(self, prompt, seeds, adapter=""):
        return [b"image"] * len(seeds)
"""


def write(path: Path, text: str = ENGINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def mine(*folders: Path, name: str = "mine:Mine"):
    return find_plugin(name, TTI_ENGINES, "engine", folders)


def test_a_file_named_as_a_module_of_python_is_loaded_and_takes_its_place_nowhere(tmp_path):
    import random

    write(tmp_path / "random.py")
    plugin = mine(tmp_path, name="random:Mine")
    loaded = plugin.load()
    assert loaded({"a": 1}).settings == {"a": 1}
    assert sys.modules["random"] is random
    assert not hasattr(random, "Mine")
    assert plugin.load() is loaded
    assert inspect.getmodule(loaded).__file__ == str(tmp_path / "random.py")


def test_the_folder_beside_the_config_comes_before_the_working_directory(tmp_path):
    beside, here = write(tmp_path / "beside/mine.py"), write(tmp_path / "here/mine.py")
    assert mine(beside.parent, here.parent).path == str(beside)
    assert mine(tmp_path, here.parent).path == str(here)


def test_a_file_in_a_folder_has_a_name_with_a_dot(tmp_path):
    write(tmp_path / "engines/mine.py")
    plugin = mine(tmp_path, name="engines.mine:Mine")
    assert plugin.load().__name__ == "Mine"
    assert plugin.copy == "engines/mine.py"


def test_another_process_needs_no_file_and_has_the_text_in_its_tracebacks(tmp_path):
    """As an actor does that gets a plugin with its arguments, on a node that does not see the folder."""
    file = write(tmp_path / "mine.py", ENGINE.replace('[b"image"]', "[1 / 0]"))
    plugin = mine(tmp_path)
    file.unlink()
    program = (
        "import inspect, pickle, sys, traceback\nplugin = pickle.loads(sys.stdin.buffer.read())\n"
        "engine = plugin.load()\n"
        "assert inspect.getsource(engine).startswith('@dataclass')\nprint(plugin.identity()['code'], flush=True)\n"
        "assert pickle.loads(pickle.dumps(engine({}))) == engine({})\n"
        "try:\n    engine({}).generate('a', [1])\nexcept ZeroDivisionError:\n    traceback.print_exc()"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(plugin), capture_output=True)
    assert done.stdout.decode().strip() == plugin.identity()["code"]
    assert "ZeroDivisionError" in done.stderr.decode()
    assert "return [1 / 0] * len(seeds)" in done.stderr.decode()


@pytest.mark.parametrize(
    "content",
    [
        b"class Mine: ...\n",
        b"class Mine: ...",
        b"x = 1\r\nclass Mine: ...\r\n",
        "# coding: latin-1\nclass Mine:\n    word = 'Bär'".encode("latin-1"),
        "\ufeffclass Mine:\n    word = 'Bär'\n".encode(),
    ],
)
def test_the_identity_of_a_class_is_that_of_the_text_as_python_reads_it(content, tmp_path, monkeypatch):
    """The same as that of an imported module, which older runs have recorded."""
    (tmp_path / "mine.py").write_bytes(content)
    (tmp_path / "sub").mkdir()
    name = f"mine_{hashlib.sha256(content).hexdigest()[:8]}"
    (tmp_path / f"sub/{name}.py").write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path / "sub"))
    imported = find_plugin(f"{name}:Mine", {}).load()
    usual = hashlib.sha256(inspect.getsource(inspect.getmodule(imported)).encode()).hexdigest()
    assert mine(tmp_path).identity() == {"code": usual}
    assert getattr(mine(tmp_path).load(), "word", "Bär") == "Bär"


def test_a_change_of_the_file_is_another_class_of_another_identity(tmp_path):
    write(tmp_path / "mine.py")
    before = mine(tmp_path)
    write(tmp_path / "mine.py", ENGINE + "\nMine.changed = True\n")
    after = mine(tmp_path)
    assert before.identity() != after.identity()
    assert not hasattr(before.load(), "changed")
    assert after.load().changed


def test_a_sibling_is_imported_after_everything_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path / "json.py", "raise RuntimeError('in the place of the library')")
    write(tmp_path / "my_sibling.py", "WORD = 'sibling'")
    write(tmp_path / "mine.py", "import json\nimport my_sibling\nclass Mine:\n    word = my_sibling.WORD\n")
    before = list(sys.path)
    find_plugin("diffusers", TTI_ENGINES, "engine", [tmp_path])
    plugin = mine(tmp_path)
    assert sys.path == before
    assert plugin.load().word == "sibling"
    assert sys.path == [*before, str(tmp_path)]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "mine:Mine", "engine 'mine:Mine': module 'mine' has no 'Mine'"),
        ("Mine = 3", "mine:Mine", "'mine:Mine' is not a class"),
        ("import nowhere_at_all", "mine:Mine", "mine.py cannot be imported: ModuleNotFoundError: No module named 'now"),
        ("class Mine(", "mine:Mine", "mine.py cannot be imported: SyntaxError: '\\(' was never closed"),
        ("import sys; sys.exit(0)", "mine:Mine", "mine.py cannot be imported: SystemExit: 0"),
        ("raise KeyError", "mine:Mine", "mine.py cannot be imported: KeyError: KeyError"),
        ("", "its:Mine", "no module 'its' can be imported: it is not installed, and there is no file its.py beside"),
        ("", "diffusrs", "engine 'diffusrs' is unknown; did you mean 'diffusers'.*; or give 'module:Class'"),
        ("", "mine:", "is unknown"),
        ("", ":Mine", "is unknown"),
        ("", "../mine:Mine", "'../mine' is not the name of a module"),
    ],
)
def test_what_is_no_class_is_one_message(text, name, message, tmp_path):
    write(tmp_path / "mine.py", text)
    with pytest.raises(ConfigError, match=message):
        mine(tmp_path, name=name).load()


def test_a_file_that_fails_is_executed_again_by_the_next_who_loads_it(tmp_path):
    write(tmp_path / "mine.py", "import my_late_sibling\nclass Mine: ...\n")
    with pytest.raises(ConfigError, match="my_late_sibling"):
        mine(tmp_path).load()
    write(tmp_path / "my_late_sibling.py", "")
    assert mine(tmp_path).load().__name__ == "Mine"
