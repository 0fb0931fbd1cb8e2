"""Priorities: what sums to one is taken as it is, what does not is refused, the paper's tables are read."""

from pathlib import Path

import pytest

from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.priorities import check_epsilon, check_priority, draw_priority, read_priorities
from seesaw.results.errors import ConfigError

DATASET = load_dataset("occupation")
NAMES = [axis.name for axis in DATASET.axes]

# Rows of the paper's two appendix tables as it prints them.
SD14 = """occupation,priority,mitigated,biases,steps,mitamt,itigen_mitamt
computer programmer,age:0.33 emotion:0.33 ethnicity:0.33,emotion ethnicity age,3,3,0.46,0.64
announcer,age:0.5 environment:0.5,age environment,2,2,0.04,0.18
"""
SD35 = """occupation,priority,mitigated,biases,steps,mitamt
accountant,clothing:0.20 environment:0.15 gender:0.65,clothing ethnicity emotion,3,3,0.25
teacher,bodytype:0.33 emotion:0.33 gender:0.33 age:0.33 clothing:0.33,environment clothing bodytype,5,3,0.28
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "priorities.csv"
    path.write_text(text)
    return path


def test_a_good_priority_stays_as_it_is_in_its_order():
    given = {"emotion": 0.1, "age": 0.2, "gender": 0.7}
    assert list(check_priority(DATASET, given).items()) == list(given.items())


def test_thirds_need_not_be_exact_and_zero_is_not_chosen():
    assert sum(check_priority(DATASET, dict.fromkeys(NAMES[:3], 0.3333333)).values()) == pytest.approx(1, abs=1e-6)
    assert check_priority(DATASET, {"age": 1, "gender": 0}) == {"age": 1.0}


def test_normalize_divides_by_the_sum():
    found = check_priority(DATASET, dict.fromkeys(NAMES[:5], 0.33), normalize=True)
    assert found == pytest.approx(dict.fromkeys(NAMES[:5], 0.2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"age": 0.33, "emotion": 0.33, "gender": 0.33}, "age 0.33, emotion 0.33, gender 0.33 sum to 0.99, not 1"),
        ({"age": 0.5, "emotin": 0.5}, "'emotin'; did you mean 'emotion'"),
        ({"age": 1.5, "emotion": -0.5}, "'emotion' is -0.5; it must be 0 or more"),
        ({"age": float("nan")}, "'age' is nan"),
        ({"age": float("inf")}, "'age' is inf"),
        ({"age": True}, "'age' is True; it must be a number"),
        ({"age": "half"}, "'age' is 'half'; it must be a number"),
        ({"age": 0}, "all priorities are 0"),
        ({}, "a mapping of axes"),
        (["age"], "a mapping of axes"),
    ],
)  # fmt: skip
def test_bad_priorities_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        check_priority(DATASET, given)
    if "sum to" not in message:
        with pytest.raises(ConfigError, match=message):
            check_priority(DATASET, given, normalize=True)


@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), "0.35", None, True])
def test_epsilon_outside_its_range_is_refused(value):
    with pytest.raises(ConfigError, match=r"epsilon is .*a number from 0 to 1"):
        check_epsilon(value)
    assert [check_epsilon(good) for good in (0, 0.35, 1)] == [0.0, 0.35, 1.0]


def test_the_papers_tables_are_read_and_their_traps_named(tmp_path):
    with pytest.raises(ConfigError, match=r"line 2: .*sum to 0.99, not 1.*normalize: true"):
        read_priorities(write(tmp_path, SD14), DATASET)
    (first, priority), (second, _) = read_priorities(write(tmp_path, SD14), DATASET, normalize=True)
    assert (first, second) == ("computer programmer", "announcer")
    assert priority == pytest.approx({"age": 1 / 3, "emotion": 1 / 3, "ethnicity": 1 / 3})
    with pytest.raises(ConfigError, match=r"line 3: .*'teacher'; did you mean 'elementary school teacher'"):
        read_priorities(write(tmp_path, SD35), DATASET, normalize=True)


def test_a_column_an_axis(tmp_path):
    path = write(tmp_path, "\ufeffsubject,age,gender\nnurse,0.5,0.5\nnurse,1,\nchef,,1.0\n")
    assert read_priorities(path, DATASET) == [
        ("nurse", {"age": 0.5, "gender": 0.5}), ("nurse", {"age": 1.0}), ("chef", {"gender": 1.0}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("who,age\nnurse,1\n", "no column 'subject'"),
        ("subject,age\n", "has no rows"),
        ("", "no column 'subject'"),
        ("subject,agee\nnurse,1\n", "column 'agee' is not an axis .*did you mean 'age'"),
        ("subject,age\nnurse,one\n", "line 2: the priority of axis 'age' is 'one'"),
        ("subject,age\nnurse,1,2\n", "line 2: has more fields"),
        ("subject,age\nnurse\n", "line 2: a priority is {}"),
        ("subject,priority\nnurse,age=1\n", "line 2: 'age=1' in a priority is not axis:number"),
        ("subject,priority\nnurse,age:0.5 age:0.5\n", "line 2: 'age:0.5' in a priority names an axis twice"),
        ("subject,age\nnurs,1\n", "line 2: .*no subject 'nurs'; did you mean 'nurse'"),
        ("subject,age\nnurse,nan\n", "line 2: .*'age' is nan"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_priorities(write(tmp_path, text), DATASET)


def test_no_file_and_no_text_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_priorities(tmp_path / "none.csv", DATASET)
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read as CSV"):
        read_priorities(tmp_path / "image.csv", DATASET)


def test_drawn_priorities_are_the_papers_kind():
    drawn = [draw_priority(DATASET, subject, seed) for subject in DATASET.subjects for seed in range(100)]
    sizes = [len(priority) for priority in drawn]
    assert all(0.2 < sizes.count(size) / len(sizes) < 0.3 for size in (2, 3, 4, 5))
    assert set(sizes) == {2, 3, 4, 5}
    for priority in drawn:
        assert check_priority(DATASET, priority) == priority
        assert len(set(priority.values())) == 1
    for name in NAMES:
        assert sum(name in priority for priority in drawn) / len(drawn) == pytest.approx(3.5 / 8, abs=0.03)


def test_a_draw_depends_on_seed_and_subject_alone():
    assert draw_priority(DATASET, "nurse", 7) == draw_priority(DATASET.select(subjects=["nurse"]), "nurse", 7)
    assert len({str(draw_priority(DATASET, "nurse", seed)) for seed in range(50)}) > 30
    assert draw_priority(DATASET, "nurse", 7) != draw_priority(DATASET, "chef", 7)
    assert draw_priority(DATASET, "nurse", 0) == dict.fromkeys(("gender", "clothing", "emotion"), 1 / 3)
