"""The documentation does not rot: it builds without a broken link, its examples run, and what it names is there."""

import ast
import asyncio
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import yaml

import seesaw
from seesaw.actors.diffusers_settings import DiffusersSettings
from seesaw.actors.engines import TTI_ENGINES, VQA_ENGINES
from seesaw.actors.vlm_settings import VLMSettings
from seesaw.runner.cli import main
from seesaw.runner.config import ClusterConfig, Config, ModelConfig, VLMConfig, load_config
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.mitigate import MitigateJob

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
ROOMS = "actors|benchmarks|configs|docs|examples|experiments|results|runner|seesaw|tests"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title ("" without), and what is in it."""

    page: Path
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.title}"


def blocks(page: Path) -> list[Block]:
    found = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(page, *block) for block in found]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def titled(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and block.title]


def code(page: Path) -> list[str]:
    """What is written as code: inline code, and the blocks that are to be run or read as they are."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [*re.findall(r"`([^`\n]+)`", prose), *(block.text for block in blocks(page))]


def build(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", folder / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)


def test_the_site_builds_with_no_broken_link_and_no_broken_anchor(tmp_path):
    built = build(tmp_path, ROOT / "mkdocs.yml")
    assert built.returncode == 0, built.stdout + built.stderr
    assert {page.stem for page in (tmp_path / "site").glob("*/")} >= {page.stem for page in DOCS} - {"index"}
    assert not list((tmp_path / "site").rglob("*.py"))


@pytest.mark.parametrize("link", ["[a page](nowhere.md)", "[an anchor](guide.md#nowhere)", "![a picture](nowhere.svg)"])
def test_a_broken_link_fails_the_build(tmp_path, link):
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write(f"\n{link}\n")
    built = build(tmp_path, tmp_path / "mkdocs.yml")
    assert built.returncode != 0
    assert "nowhere" in built.stdout + built.stderr


@pytest.mark.parametrize("page", PAGES[:3], ids=lambda page: page.name)
def test_every_link_of_the_root_pages_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        if "://" not in link:
            assert (ROOT / link.partition("#")[0]).is_file(), link


def test_the_readme_is_short_and_names_every_page():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 140
    for page in DOCS:
        if page.stem not in ("index", "contributing", "changelog"):
            assert f"](docs/{page.name})" in readme, page.name


# -- what is to be run -------------------------------------------------------------------------------------------------


@pytest.fixture
def workplace(request, tmp_path, monkeypatch):
    """A folder with the files of a block's page, and what those take for granted."""
    for other in blocks(request.param.page):
        if other.title:
            (tmp_path / other.title).write_text(other.text)
    (tmp_path / "my-pipeline").symlink_to(ROOT / "actors" / "pictogram" / "tti")
    (tmp_path / "my-lora").mkdir()
    (tmp_path / "my-lora" / "pytorch_lora_weights.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return request.param


def examples(*languages: str):
    """Every block with a title in these languages; what starts a run is slow."""
    each = [
        pytest.param(block, id=str(block), marks=[pytest.mark.slow] if "run_sweep(" in block.text else [])
        for block in titled(*languages)
    ]
    return pytest.mark.parametrize("workplace", each, indirect=True)


@examples("python")
def test_every_python_example_runs_as_in_a_notebook(workplace):
    compiled = compile(workplace.text, workplace.title, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"__name__": Path(workplace.title).stem}
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)


def test_every_python_and_yaml_block_has_a_title_and_so_is_tried():
    for block in BLOCKS:
        assert block.title or block.language not in ("python", "yaml", "csv"), block.text


@examples("yaml")
def test_every_yaml_example_is_a_config_a_model_a_vlm_or_a_dataset(workplace):
    keys = yaml.safe_load(workplace.text)
    if "engine" in keys:
        vlm = keys["engine"] in VQA_ENGINES and keys["engine"] not in TTI_ENGINES
        keys = {"models": ["pictogram-alder" if vlm else keys["name"]], "vqa": keys["name"] if vlm else "pictogram-vlm"}
    elif "models" not in keys:
        keys = {"models": ["pictogram-alder"], "vqa": "simulated", "dataset": workplace.title}
    Path("experiment.yaml").write_text(yaml.safe_dump(keys))
    experiment = load_experiment("experiment.yaml", ["store=store"])
    assert MitigateJob(experiment).identity()


@examples("csv")
def test_every_table_of_answers_can_be_analyzed(workplace):
    with pytest.raises(SystemExit) as end:
        main(["analyze", workplace.title, "--out", "tables"], standalone_mode=False)
    assert end.value.code == 0
    assert Path("tables/matrices.parquet").is_file()


def commands() -> list[tuple[Path, str]]:
    return [
        (block.page, line.partition(" #")[0].strip())
        for block in BLOCKS
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("seesaw ")
    ]


@pytest.mark.parametrize(("page", "line"), commands(), ids=str)
def test_every_command_is_one_that_seesaw_takes(page, line, tmp_path):
    _, verb, *arguments = shlex.split(line)
    if verb.startswith("-"):
        return
    given = main.commands[verb].make_context(verb, arguments).params
    if "config" in given:
        own = {block.title: block.text for block in blocks(page)}.get(given["config"])
        source = tmp_path / given["config"]
        if own is not None:
            source.write_text(own)
        load_config(given["config"] if own is None else str(source), given["overrides"])


# -- what is named -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    for text in code(page):
        for path in re.findall(rf"(?<![\w./-])(?:{ROOMS})/[\w./*-]*", text):
            assert list(ROOT.glob(path.rstrip("./") or path)), path
        for module in re.findall(r"python -m ((?:benchmarks|docs|seesaw)[\w.]*)", text):
            assert list(ROOT.glob(f"{module.replace('.', '/')}*")), module
        for target in re.findall(r"^make ([\w./-]+)", text, re.MULTILINE):
            assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_name_that_a_page_names_is_there(page):
    for text in code(page):
        for dotted in re.findall(r"(?<![\w./-])seesaw(?:\.\w+)+", text):
            assert is_there(dotted), dotted
    for name, path in re.findall(r"`(\w+)`(?: and `\w+`)? (?:in|of) `([\w/]+\.py)`", page.read_text()):
        assert name in names_of(ROOT / path), (name, path)
    for name, path in re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)", page.read_text()):
        assert name in names_of(ROOT / path), (name, path)


def test_what_the_code_cites_is_in_the_documentation():
    files = [file for room in ROOMS.split("|") for kind in ("*.py", "*.yaml") for file in (ROOT / room).rglob(kind)]
    for file in files:
        if file != Path(__file__):
            assert "DESIGN" not in file.read_text(), file
            for page in re.findall(r"docs/[\w-]+\.md", file.read_text()):
                assert (ROOT / page).is_file(), (file, page)


def names_of(module: Path) -> set[str]:
    """What a module defines or imports at its top."""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom | ast.If):
            names |= {alias.asname or alias.name for each in ast.walk(node) for alias in getattr(each, "names", [])}
    return names


def is_there(dotted: str) -> bool:
    """Whether it is a module, a package, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        module = next((m for m in (place.with_suffix(".py"), place / "__init__.py") if m.is_file()), None)
        if module is not None:
            return length == len(parts) or parts[length] in names_of(module)
        if place.is_dir():
            return length == len(parts)
    return False


def test_the_reference_has_every_command_and_option():
    reference = (ROOT / "docs" / "reference.md").read_text()
    for verb, command in main.commands.items():
        assert re.search(rf"^\| `{verb}[ `]", reference, re.M), verb
        for option in (name for each in command.params for name in each.opts if name.startswith("--")):
            assert option in reference, f"{verb} {option}"


@pytest.mark.parametrize("schema", [Config, ClusterConfig, ModelConfig, VLMConfig], ids=lambda schema: schema.__name__)
def test_the_reference_has_every_key_of_the_config_and_no_other(schema):
    reference = (ROOT / "docs" / "reference.md").read_text()
    keys = [key for cell in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", reference, re.MULTILINE) for key in names(cell)]
    for field in fields(schema):
        assert field.name in keys, field.name


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_page_on_python_has_every_public_name_and_no_other():
    named = re.findall(r"^\| `seesaw\.(\w+)` \|", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(seesaw.__all__)


@pytest.mark.parametrize("settings", [DiffusersSettings, VLMSettings], ids=lambda settings: settings.__name__)
def test_the_page_on_models_has_every_setting(settings):
    named = names((ROOT / "docs" / "models.md").read_text())
    text = (ROOT / "docs" / "models.md").read_text()
    for field in fields(settings):
        assert field.name in named or f"`{field.name}: " in text, field.name


def test_the_picture_of_the_readme_is_what_its_script_draws():
    """The numbers and words; pixels are compressed by a library that may do it in another way."""

    def drawn(svg: str) -> str:
        return re.sub(r'href="data:[^"]*"', "", svg)

    command = [sys.executable, "-c", "from docs.make_seesaw import picture; print(picture(), end='')"]
    made = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120, check=True)
    assert drawn(made.stdout) == drawn((ROOT / "docs" / "seesaw.svg").read_text())
