"""The rules of who may import whom, and that breaking one of them is noticed.

import-linter reads most of them from pyproject.toml. The graph has every import of every file, also those inside of
functions and those for type checkers alone.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
ROOMS = ("actors", "experiments", "results", "runner")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("seesaw", cache_dir=None)


def room_of(module: str) -> str:
    """The room of a module, and of the big rooms the room inside: `runner.jobs`, `results.store`, `actors`."""
    parts = module.split(".")[1:]
    inside = len(parts) > 1 and (REPOSITORY / parts[0] / parts[1]).is_dir()
    return ".".join(parts[: 2 if inside else 1])


def arrows(graph: grimp.ImportGraph) -> str:
    """Every arrow between two rooms, with the number of imports behind it, a line each."""
    counted = Counter(
        (room_of(module), room_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    return "\n".join(f"{a} -> {b}: {number}" for (a, b), number in sorted(counted.items()) if a != b and a and b)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "lint-imports", "pyproject.toml", "--no-cache"], cwd=folder, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


def test_imports_keep_to_the_contracts_of_pyproject(graph):
    done = lint_imports(REPOSITORY)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n\nArrows between rooms:\n{arrows(graph)}"
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("results/images.py", "from seesaw.experiments import lab", "from runner to experiments"),
        ("experiments/lab.py", "from seesaw.runner.plan import Plan", "from runner to experiments"),
        ("experiments/lab.py", "from seesaw.actors import engines", "from runner to experiments"),
        ("actors/process.py", "from seesaw.experiments import lab", "from runner to experiments"),
        ("experiments/prompts.py", "def late():\n    import ray", "no Ray and no model"),
        ("results/printable.py", "import torch", "no Ray and no model"),
        ("runner/scheduling/resources.py", "from ray import nodes", "Scheduling"),
        ("results/errors.py", "from seesaw.results.store import store", "circles"),
    ],
)
def test_an_import_against_a_contract_is_noticed(file, line, contract, tmp_path):
    for room in ROOMS:
        shutil.copytree(REPOSITORY / room, tmp_path / room, ignore=lambda folder, names: [
            name for name in names if not name.endswith(".py") and not os.path.isdir(f"{folder}/{name}")
        ])  # fmt: skip
    shutil.copytree(REPOSITORY / "seesaw", tmp_path / "seesaw", symlinks=True)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [shown for shown in done.stdout.splitlines() if shown.endswith("BROKEN")]
    assert any(contract in shown for shown in broken), broken


def imports_out_of_scheduling(graph: grimp.ImportGraph) -> list[tuple[str, str]]:
    """(module of scheduling, what it imports) for all that it imports of the rest of runner."""
    scheduling = "seesaw.runner.scheduling"
    return [
        (module, imported)
        for module in sorted(graph.find_descendants(scheduling))
        for imported in sorted(graph.find_modules_directly_imported_by(module))
        if imported.startswith("seesaw.runner") and not imported.startswith(scheduling)
    ]


def test_scheduling_imports_nothing_else_of_runner(graph):
    assert imports_out_of_scheduling(graph) == []
    graph = grimp.build_graph("seesaw", cache_dir=None)
    graph.add_import(importer="seesaw.runner.scheduling.policy", imported="seesaw.runner.plan")
    assert imports_out_of_scheduling(graph) == [("seesaw.runner.scheduling.policy", "seesaw.runner.plan")]


def starts_or_ends_ray(source: str) -> bool:
    """Whether `source` names `ray.init` or `ray.shutdown`, in whatever way they were imported."""
    names = {"init", "shutdown"}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="ray"), attr=name) if name in names:
                return True
            case ast.ImportFrom(module="ray", names=imported) if any(each.name in names for each in imported):
                return True
    return False


def test_nothing_but_the_room_of_the_cluster_starts_or_ends_ray():
    found = {
        str(path.relative_to(REPOSITORY))
        for room in ROOMS
        for path in (REPOSITORY / room).rglob("*.py")
        if starts_or_ends_ray(path.read_text())
    }
    assert found
    assert {str(Path(name).parent) for name in found} == {"runner/cluster"}
    assert starts_or_ends_ray("def f():\n    import ray\n    ray.init()")
    assert starts_or_ends_ray("from ray import shutdown as end")


@pytest.mark.parametrize(
    "line",
    [
        "import runner",
        "import results.errors",
        "from experiments import lab",
        "from actors.tti import serve",
        "import configs",
    ],
)
def test_a_room_by_its_bare_name_is_refused(line):
    done = subprocess.run(
        [BIN / "ruff", "check", "--no-cache", "--output-format=concise", "--stdin-filename=experiments/new.py", "-"],
        input=f"{line}\n", cwd=REPOSITORY, text=True, capture_output=True,
    )  # fmt: skip
    assert "TID251" in done.stdout
