"""The public names of `seesaw`: they are what is listed, quick to import, documented, and do what they say."""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import seesaw

ROOT = Path(__file__).resolve().parents[2]
DATASET = seesaw.load_dataset("occupation")
LAB = seesaw.ExactLab(DATASET, {name: world.shares for name, world in seesaw.WORLDS.items()})
#: What takes long to import, or cannot be imported everywhere.
HEAVY = ("ray", "torch", "vllm", "transformers", "diffusers", "pandas", "pyarrow", "numpy", "scipy")


def python(code: str) -> str:
    """What `code` prints in a Python of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout


def test_what_is_public_is_what_is_listed_imported_for_type_checkers_and_found():
    tree = ast.parse(Path(seesaw.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen_by_type_checkers = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(seen_by_type_checkers) == sorted(seesaw.__all__)
    assert seen_by_type_checkers == seesaw._MODULES
    assert set(seesaw.__all__) <= set(dir(seesaw))
    assert all(f"`{name}`" in seesaw.__doc__ for name in seesaw.__all__)
    assert len(seesaw.__all__) == 18
    for name in seesaw.__all__:
        assert getattr(seesaw, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        seesaw.analyse  # noqa: B018


def test_importing_seesaw_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, time; start = time.perf_counter(); import seesaw; print(time.perf_counter() - start, *sys.modules)"
    )
    answers = [python(code).split() for _ in range(3)]
    assert min(float(answer[0]) for answer in answers) < 0.05
    assert not set(HEAVY) & set(answers[0])
    # dir() is what a notebook's completion asks for: it imports nothing either
    assert python("import seesaw, sys; dir(seesaw); print('numpy' in sys.modules)") == "False\n"


@pytest.mark.parametrize("name", sorted({*seesaw.__all__} - {"run_sweep", "run_mitigation", "run_study"}))
def test_the_science_and_what_is_read_need_no_ray_and_no_torch(name):
    loaded = python(f"import seesaw, sys; seesaw.{name}; print(*sys.modules)").split()
    assert not {"ray", "torch", "vllm"} & set(loaded)


def documents(name: str) -> str:
    """What is written of a public name: its docstring, or its module's where it is no class or function."""
    value = getattr(seesaw, name)
    return inspect.getdoc(value if callable(value) else sys.modules[seesaw._MODULES[name]])


@pytest.mark.parametrize("name", sorted({*seesaw.__all__} - {"SeesawError"}))  # an error is caught, not called
def test_every_public_name_is_documented_with_an_example_that_names_what_is_there(name):
    code = re.findall(r"Example::\n\n((?: {4}.*\n?|\n)+)", documents(name) + "\n")
    assert code
    assert f"seesaw.{name}" in code[0]
    ast.parse(textwrap.dedent(code[0]))
    for public in re.findall(r"\bseesaw\.(\w+)", code[0]):
        assert public in seesaw.__all__


# --- the science -----------------------------------------------------------------------------------------------------


def test_biasconnect_gives_the_exact_matrix_by_axis():
    nurse = seesaw.biasconnect(LAB, DATASET, "birch", "nurse")
    names = [axis.name for axis in DATASET.axes]
    assert list(nurse.bias.index) == list(nurse.matrix.index) == list(nurse.matrix.columns) == names
    assert nurse.matrix.loc["disability", "clothing"] == pytest.approx(-0.59, abs=0.005)
    shares = seesaw.WORLDS["birch"].shares("A photo of a nurse")["gender"]
    assert nurse.bias["gender"] == pytest.approx(abs(shares[0] - shares[1]))


def test_mitigate_follows_the_paper_s_loop_and_greedy_needs_no_more_steps_than_the_order_as_written():
    priority = {"gender": 0.5, "clothing": 0.5}
    greedy = seesaw.mitigate(LAB, DATASET, "alder", "nurse", priority)
    assert greedy.outcome == "reached"
    assert greedy.tau <= 0.35
    assert greedy.mitigated == ("bodytype", "clothing", "gender")
    assert list(greedy.steps["axis"]) == ["", *greedy.mitigated]
    assert greedy.steps["tau"].is_monotonic_decreasing
    np.testing.assert_allclose(greedy.steps["predicted"][1:], greedy.steps["tau"][1:], atol=1e-9)
    np.testing.assert_allclose(greedy.steps["tau"], (greedy.steps["w_gender"] + greedy.steps["w_clothing"]) / 2)
    assert len(greedy.matrices) == len(greedy.mitigated)
    assert [len(matrix) for matrix in greedy.matrices] == [8, 7, 6]
    naive = seesaw.mitigate(LAB, DATASET, "alder", "nurse", priority, strategy="all")
    assert naive.mitigated == ("gender", "clothing")
    assert naive.matrices == ()
    assert naive.tau > greedy.tau


def test_the_science_also_answers_where_an_event_loop_runs_as_in_a_notebook():
    async def cell():
        return seesaw.biasconnect(LAB, DATASET, "birch", "nurse"), seesaw.mitigate(
            LAB, DATASET, "birch", "nurse", {"gender": 1.0}
        )

    connected, mitigated = asyncio.run(cell())
    pd.testing.assert_frame_equal(connected.matrix, seesaw.biasconnect(LAB, DATASET, "birch", "nurse").matrix)
    assert mitigated.outcome
    with pytest.raises(seesaw.SeesawError, match="did you mean 'birch'"):
        asyncio.run(_unknown_model())


async def _unknown_model():
    seesaw.biasconnect(LAB, DATASET, "brich", "nurse")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: seesaw.biasconnect(LAB, DATASET, "birch", "nurs"), "no subject 'nurs'; did you mean 'nurse'?"),
        (lambda: seesaw.biasconnect(LAB, DATASET, "birch", "nurse", metric="nominall"), "did you mean 'nominal'?"),
        (lambda: seesaw.mitigate(LAB, DATASET, "birch", "nurse", {"gender": 0.4}), "sum to 0.4, not 1"),
        (lambda: seesaw.mitigate(LAB, DATASET, "birch", "nurse", {"gender": 1}, strategy="greed"), "'greedy'?"),
        (lambda: seesaw.mitigate(LAB, DATASET, "birch", "nurse", {"gender": 1}, epsilon=2), "epsilon is 2"),
        (lambda: seesaw.load_dataset("ocupation"), "did you mean 'occupation'?"),
    ],
)
def test_a_slip_is_answered_with_what_would_be_right(call, message):
    with pytest.raises(seesaw.SeesawError) as raised:
        call()
    assert message in str(raised.value)


# --- answers that anyone made ----------------------------------------------------------------------------------------


def answers() -> pd.DataFrame:
    """40 images a prompt of a model whose nurses are women until they are asked to be old."""
    rows = []
    for source, value, women in (
        (None, None, 36), ("gender", "male", 0), ("gender", "female", 40),
        ("age", "young", 36), ("age", "middle", 30), ("age", "old", 12),
    ):  # fmt: skip
        for image in range(40):
            gender = "female" if image < women else "male"
            age = value if source == "age" else ("young", "middle")[image % 2]
            rows += [("mine", "nurse", source, value, image, "gender", gender),
                     ("mine", "nurse", source, value, image, "age", age)]  # fmt: skip
    return pd.DataFrame(rows, columns=["model", "subject", "source_axis", "source_value", "image", "axis", "answer"])


def test_analyze_takes_a_data_frame_with_gaps_and_numbers_and_says_what_a_file_would(tmp_path):
    result = seesaw.analyze(answers(), axes=["gender", "age"])
    entry = result.matrices.set_index(["source_axis", "target_axis"])["is"]
    # gender of the initial prompt is 36 : 4, so w is 0.8; over the three ages it is 78 : 42, so 0.3
    assert entry["age", "gender"] == pytest.approx(0.8 - 0.3)
    assert entry["gender", "gender"] == pytest.approx(0.8)
    assert len(result.uncertainty) == len(result.matrices) == 4
    answers().to_csv(tmp_path / "answers.csv", index=False)
    by_file = seesaw.analyze(tmp_path / "answers.csv", axes=["gender", "age"])
    pd.testing.assert_frame_equal(by_file.matrices, result.matrices)
    categories = answers().astype({"axis": "category", "answer": "category", "image": "float"})
    pd.testing.assert_frame_equal(seesaw.analyze(categories, axes=["gender", "age"]).matrices, result.matrices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.rename(columns={"answer": "anwser"}), "no column 'answer'; did you mean 'anwser'?"),
        (lambda frame: frame.assign(answer=frame["answer"].replace("female", "femal")), "did you mean 'female'?"),
        (lambda frame: frame.assign(image=frame["image"].astype(object).mask(frame.index == 2, None)), "row 3"),
        (lambda frame: frame.iloc[:0], "has columns but no rows"),
        (lambda frame: frame.assign(answer=[["a"], *frame["answer"][1:]]), "several types"),
    ],
)
def test_a_data_frame_that_is_no_answers_table_is_refused_in_one_line(change, message):
    with pytest.raises(seesaw.SeesawError) as raised:
        seesaw.analyze(change(answers()), axes=["gender", "age"])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


# --- pictures --------------------------------------------------------------------------------------------------------


def test_a_matrix_is_drawn_whole_and_can_be_shown_and_saved(tmp_path):
    matrix = seesaw.biasconnect(LAB, DATASET, "birch", "nurse").matrix
    picture = seesaw.draw_matrix(matrix)
    assert picture._repr_svg_() == picture.svg
    assert picture.save(tmp_path / "nurse.svg").read_text() == picture.svg
    root = ElementTree.fromstring(picture.svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("\N{MINUS SIGN}0.59") >= 1
    assert len(words) == 8 + 8 + 64
    with pytest.raises(seesaw.SeesawError, match=r"end it in \.svg"):
        picture.save(tmp_path / "nurse.png")


def test_a_long_table_is_drawn_with_its_intervals_once_it_is_one_matrix():
    result = seesaw.analyze(answers(), axes=["gender", "age"])
    of_table = seesaw.draw_matrix(result.uncertainty)
    svg = "{http://www.w3.org/2000/svg}"
    bold = [e.text for e in ElementTree.fromstring(of_table.svg).iter(f"{svg}text") if e.get("font-weight") == "700"]
    sure = result.uncertainty[result.uncertainty["significant"]]
    assert 0 < len(sure) < 4
    assert bold == [f"{value:+.2f}" for value in sure["is_matched"]]
    two = pd.concat([result.uncertainty, result.uncertainty.assign(subject="chef")])
    assert seesaw.draw_matrix(two, subject="nurse") == of_table
    with pytest.raises(seesaw.SeesawError, match=r"choose one with subject=.*nurse, chef"):
        seesaw.draw_matrix(two)
    with pytest.raises(seesaw.SeesawError, match="did you mean 'nurse'"):
        seesaw.draw_matrix(two, subject="nurs")
