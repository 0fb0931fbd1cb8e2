"""Every way to get Seesaw onto a machine gives the same package, and nothing but that package.

The source is what a commit of the working tree would hold. It is built and installed in each way into an environment of
its own. Dependencies are found in the environment of the tests, through a .pth file; the editable install of the tests
is not, because Python reads no .pth file of a folder that a .pth file names.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

# builds and installs seven times over, and starts Ray
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = ("actors", "configs", "experiments", "results", "runner")
#: What a room holds beside Python, by its ending. Whatever else lies in a room is not needed by the package.
DATA = ("*.yaml", "*.sbatch", "*.j2", "*.json", "*.jinja", "*.safetensors")
WAYS = (
    "sdist",
    "wheel of the sdist",
    "wheel of the tree",
    "zip archive",
    "tar archive",
    "editable",
    "editable, no links",
)


def run(*command: object, cwd: Path, **env: str) -> str:
    """What a command printed. Its environment has nothing that leads Python to the working tree."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **env}, text=True, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: object, cwd: Path) -> None:
    """pip without an index: all that a build needs is in the environment of the tests."""
    run(sys.executable, "-m", "pip", "--quiet", "--no-input", *arguments, cwd=cwd, PIP_NO_INDEX="1")


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> dict[str, Path]:
    """The two archives that code hosts serve, of the working tree as a commit would hold it now."""
    folder = tmp_path_factory.mktemp("archives")
    objects = run("git", "rev-parse", "--path-format=absolute", "--git-path", "objects", cwd=REPOSITORY).strip()
    (folder / "objects").mkdir()
    # an index and new objects of the test's own, so that the repository stays as it is
    aside = {
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
    }
    run("git", "read-tree", "HEAD", cwd=REPOSITORY, **aside)
    run("git", "add", "--all", cwd=REPOSITORY, **aside)
    tree = run("git", "write-tree", cwd=REPOSITORY, **aside).strip()
    made = {}
    for form in ("zip", "tar.gz"):
        made[form] = folder / f"seesaw-main.{form}"
        # level 1: nearly all of it is weights, which do not get smaller
        run("git", "archive", "-1", "--prefix=seesaw-main/", f"--format={form}", "-o", made[form], tree,
            cwd=REPOSITORY, **aside)  # fmt: skip
    return made


@pytest.fixture(scope="module")
def checkout(archives, tmp_path_factory) -> Path:
    """The source with its links, as git and tar lay it out."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.unpack_archive(archives["tar.gz"], folder)  # as tar does: what a link leads to is not looked at
    return folder / "seesaw-main"


@pytest.fixture(scope="module")
def without_links(archives, tmp_path_factory) -> Path:
    """The source as Python's zipfile, and so pip, unpacks it."""
    folder = tmp_path_factory.mktemp("without_links")
    with zipfile.ZipFile(archives["zip"]) as archive:
        archive.extractall(folder)
    return folder / "seesaw-main"


@pytest.fixture(scope="module")
def sdist(checkout, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, folder, cwd=checkout)
    [made] = folder.iterdir()
    return made


def wheel_of(source: Path, folder: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def tree_wheel(checkout, tmp_path_factory) -> Path:
    return wheel_of(checkout, tmp_path_factory.mktemp("tree_wheel"))


@pytest.fixture(scope="module")
def sdist_wheel(sdist, tmp_path_factory) -> Path:
    return wheel_of(sdist, tmp_path_factory.mktemp("sdist_wheel"))


@pytest.fixture(scope="module", params=WAYS)
def installed(request, tmp_path_factory) -> Path:
    """An environment into which Seesaw was installed in one of the ways."""
    sources = {
        "sdist": "sdist",
        "wheel of the sdist": "sdist_wheel",
        "wheel of the tree": "tree_wheel",
        "editable": "checkout",
        "editable, no links": "without_links",
    }
    way = request.param
    if way in sources:
        source = request.getfixturevalue(sources[way])
    else:
        source = request.getfixturevalue("archives")["zip" if way == "zip archive" else "tar.gz"]
    editable = ["--editable"] if way.startswith("editable") else []
    return environment(tmp_path_factory.mktemp("environment"), *editable, source)


def environment(folder: Path, *what: object) -> Path:
    """A fresh environment in `folder` with Seesaw installed by pip from `what`."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (site_packages(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # --ignore-installed: pip also sees the Seesaw of the tests' environment, and would leave it at that
    install = ("install", "--no-deps", "--no-build-isolation", "--ignore-installed", "--no-compile")
    pip("--python", folder / "bin/python", *install, *what, cwd=folder)
    return folder


def site_packages(environment: Path) -> Path:
    [found] = environment.glob("lib/python3.*/site-packages")
    return found


#: Run in an environment: what of Python and data lies in every room that is imported, and which names are importable.
LOOK = """
import importlib, importlib.util, json, sys
from pathlib import Path
from seesaw.runner.config import CONFIGS
patterns, rooms, names = json.loads(sys.argv[1])
folder = {room: CONFIGS if room == "configs" else Path(importlib.import_module(f"seesaw.{room}").__path__[0])
          for room in rooms}
found = {room: sorted(str(path.relative_to(here)) for pattern in patterns for path in here.rglob(pattern))
         for room, here in folder.items()}
print(json.dumps([found, [name for name in names if importlib.util.find_spec(name)]]))
"""


def test_nothing_but_seesaw_is_installed_and_all_of_it(installed):
    names = {path.name for path in site_packages(installed).iterdir()} - {"dependencies.pth"}
    [metadata] = [name for name in names if name.endswith(".dist-info")]
    version = metadata.removeprefix("seesaw-").removesuffix(".dist-info")
    assert version[0].isdigit()
    finder = f"__editable___seesaw_{version.replace('.', '_')}_finder"
    assert names in (
        {metadata, "seesaw"},
        {metadata, f"__editable__.seesaw-{version}.pth", f"{finder}.py", "__pycache__"},
        {metadata, f"__editable__.seesaw-{version}.pth", f"{finder}.py"},
    )
    asked = json.dumps([["*.py", *DATA], ROOMS, ["seesaw", *ROOMS, "benchmarks", "tests", "docs", "examples"]])
    found, importable = json.loads(run(installed / "bin/python", "-c", LOOK, asked, cwd=installed))
    assert importable == ["seesaw"]
    for room in ROOMS:
        folder = REPOSITORY / room
        files = sorted(str(path.relative_to(folder)) for pattern in ("*.py", *DATA) for path in folder.rglob(pattern))
        assert found[room] == files
        assert files


def test_the_command_the_module_and_the_import_answer_from_any_folder(installed, tmp_path):
    by_name = run(installed / "bin/seesaw", "--help", cwd=tmp_path)
    assert "sweep" in by_name
    by_module = run(installed / "bin/python", "-m", "seesaw", "--help", cwd=tmp_path)
    assert by_module.replace("python -m seesaw", "seesaw", 1) == by_name
    code = "import seesaw; print(seesaw.load_dataset('occupation').name)"
    assert run(installed / "bin/python", "-c", code, cwd=tmp_path) == "occupation\n"


def test_a_wheel_holds_no_tests_benchmarks_or_documentation(tree_wheel, sdist_wheel):
    for wheel in (tree_wheel, sdist_wheel):
        names = zipfile.ZipFile(wheel).namelist()
        folders = {tuple(Path(name).parts[:2]) for name in names if not Path(name).parts[0].endswith(".dist-info")}
        assert folders == {("seesaw", name) for name in (*ROOMS, "__init__.py", "__main__.py", "py.typed")}


def test_both_wheels_are_the_same_package(tree_wheel, sdist_wheel):
    [of_tree, of_sdist] = [
        {name: archive.read(name) for name in archive.namelist() if name.startswith("seesaw/")}
        for archive in map(zipfile.ZipFile, (tree_wheel, sdist_wheel))
    ]
    assert of_tree.keys() == of_sdist.keys()
    assert of_tree == of_sdist


def test_pip_unpacks_a_link_of_a_zip_archive_as_a_file_so_builds_do_not_use_the_links(without_links, checkout):
    """Why setup.py maps the rooms. If this fails, pip and Python restore links, and setup.py can be simpler."""
    for room in ROOMS:
        assert (checkout / "seesaw" / room).is_symlink()
        assert not (without_links / "seesaw" / room).is_symlink()
        assert (without_links / "seesaw" / room).read_text() == f"../{room}"


CONFIG = """
name: small
models: [{name: one, engine: simulated, cpus: 0.2}]
vqa: {name: vlm, engine: simulated, cpus: 0.2}
subjects: [nurse]
axes: [gender, age]
images: 8
cluster: {cpus: 1}
"""


def test_a_sweep_of_the_wheel_is_not_led_astray_by_the_names_of_a_user_s_own_files(tree_wheel, tmp_path):
    """Files that are named as our rooms and as Python's own modules, in the working folder and beside the config."""
    home = tmp_path / "environment"
    home.mkdir()
    environment(home, tree_wheel)
    user = tmp_path / "user"
    for name in ("runner.py", "actors.py", "types.py", "random.py", "results/__init__.py", "seesaw/__init__.py"):
        (user / name).parent.mkdir(parents=True, exist_ok=True)
        (user / name).write_text(f"raise ImportError('the user has a {name} of their own')\n")
    (user / "small.yaml").write_text(textwrap.dedent(CONFIG))
    run(home / "bin/seesaw", "sweep", "small.yaml", cwd=user)
    record = json.loads((user / "outputs/small/run.json").read_text())
    assert record["state"] == "done"
    assert record["counts"]["images_made"] == 48
