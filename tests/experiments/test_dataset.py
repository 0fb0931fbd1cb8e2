"""The occupation dataset is the paper's, datasets merge by the rules, every contradiction is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from seesaw.experiments.dataset.load import Dataset, load_dataset
from seesaw.results.errors import ConfigError, DatasetError

GOOD = """\
template: A photo of a {subject}
person: Is there a person in the image (yes or no)?
subjects: [nurse, chef]
axes:
  height:
    attributes: [short, tall]
    question: What is the height (short, tall) of the person?
    counterfactuals:
      short: {template: "A photo of a short {subject}", adjective: short}
      tall: {template: "A photo of a tall {subject}", adjective: tall}
  glasses:
    attributes: [bare, glasses]
    none: bare
    questions:
      glasses: {text: "Does the person wear glasses (yes or no)?", choices: [yes, no]}
    counterfactuals:
      bare: {phrase: without glasses}
      glasses: {phrase: with glasses}
"""


def write(tmp_path: Path, text: str, name: str = "clinic.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def occupation() -> Dataset:
    return load_dataset("occupation")


def test_the_occupation_dataset_has_the_papers_counts_and_order(occupation: Dataset) -> None:
    assert len(occupation.subjects) == 26
    assert occupation.subjects[0] == "computer programmer"
    assert occupation.subjects[-1] == "gardener"
    assert [(a.name, len(a.attributes)) for a in occupation.axes] == [
        ("gender", 2), ("age", 3), ("ethnicity", 6), ("bodytype", 3),
        ("environment", 2), ("clothing", 2), ("emotion", 4), ("disability", 4),
    ]  # fmt: skip
    assert sum(len(a.counterfactuals) for a in occupation.axes) == 26
    assert all(tuple(c.attribute for c in a.counterfactuals) == a.attributes for a in occupation.axes)
    assert occupation.verbatim


def test_the_questions_are_the_papers_to_the_letter(occupation: Dataset) -> None:
    assert occupation.person is not None
    assert occupation.person.text == "Is there a person in the image (yes or no)?"
    assert occupation.person.choices == ("yes", "no")
    assert [q.text for a in occupation.axes for q in a.questions] == [
        "What is the gender (male, female) of the person?",
        "What is the age group (young, middle, old) of the person?",
        "What is the ethnicity (white, black, asian, south asian, middle eastern, hispanic) of the person?",
        "What is the body type (fat, slim, muscular) of the person?",
        "What is the environment (indoor, outdoor) of the person?",
        "What is the attire (formal, informal) of the person?",
        "What is the emotion (happy, sad, serious, tired) of the person?",
        "Is this person blind (yes or no)?",
        "Is this person wearing a hearing aid (yes or no)?",
        "Is this person on a wheelchair (yes or no)?",
    ]


def test_a_composite_axis_asks_yes_or_no_for_each_attribute_but_none(occupation: Dataset) -> None:
    disability = occupation.axis("disability")
    assert disability.none == "fit"
    assert [(q.attribute, q.choices) for q in disability.questions] == [
        (attribute, ("yes", "no")) for attribute in ("blind", "hearing aid", "wheelchair")
    ]
    age = occupation.axis("age")
    assert [(q.attribute, q.choices) for q in age.questions] == [("", ("young", "middle", "old"))]


def test_yes_and_no_stay_words(tmp_path: Path) -> None:
    text = GOOD.replace("[short, tall]", "[yes, no]").replace("short:", "yes:").replace("tall:", "no:")
    assert load_dataset(write(tmp_path, text)).axis("height").attributes == ("yes", "no")


def test_a_dataset_is_found_by_name_by_path_in_search_folders_and_inline(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    by_path = load_dataset(path)
    assert by_path.name == "clinic"
    assert load_dataset(str(path)) == by_path
    assert load_dataset("clinic", search=[tmp_path]) == by_path
    assert load_dataset("clinic.yaml", search=[tmp_path]) == by_path
    inline = load_dataset(OmegaConf.create({"extends": "clinic", "name": "clinic"}), search=[tmp_path])
    assert inline == by_path


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "clinic.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_dataset(path).subjects == ("nurse", "chef")


def test_a_dataset_as_plain_data_reads_back_as_itself(occupation: Dataset) -> None:
    assert load_dataset(occupation.to_mapping()) == occupation


def test_select_keeps_the_datasets_order_and_refuses_unknown_names(occupation: Dataset) -> None:
    chosen = occupation.select(subjects=["nurse", "chef"], axes=["age", "gender"])
    assert chosen.subjects == ("chef", "nurse")
    assert [a.name for a in chosen.axes] == ["gender", "age"]
    assert occupation.select() == occupation
    with pytest.raises(ConfigError, match="dataset 'occupation' has no subject 'nurze'; did you mean 'nurse'"):
        occupation.select(subjects=["nurze"])
    with pytest.raises(ConfigError, match="has no axis 'gendre'; did you mean 'gender'"):
        occupation.select(axes=["gendre"])
    with pytest.raises(ConfigError, match="no axis of dataset 'occupation' is chosen"):
        occupation.select(axes=[])
    with pytest.raises(ConfigError, match="has no axis 'Gender'; did you mean 'gender'"):
        occupation.axis("Gender")
    with pytest.raises(ConfigError, match="axis 'bodytype' has no attribute 'fatt'; did you mean 'fat'"):
        occupation.axis("bodytype").counterfactual("fatt")


def test_extending_adds_subjects_and_axes_and_overrides_the_rest(tmp_path: Path, occupation: Dataset) -> None:
    dataset = load_dataset(
        write(
            tmp_path,
            """\
extends: occupation
verbatim: false
add_subjects: [astronaut]
axes:
  hair:
    attributes: [bald, long]
    question: Which hair (bald, long)?
    counterfactuals: {bald: {adjective: bald}, long: {phrase: with long hair}}
  bodytype:
    counterfactuals:
      fat: {template: "A photo of a fat {subject}", adjective: fat}
""",
        )
    )
    assert dataset.name == "clinic"
    assert dataset.subjects == (*occupation.subjects, "astronaut")
    assert [a.name for a in dataset.axes] == [*(a.name for a in occupation.axes), "hair"]
    assert dataset.axis("bodytype").counterfactual("fat").adjective == "fat"
    assert dataset.axis("bodytype").counterfactual("slim") == occupation.axis("bodytype").counterfactual("slim")
    assert not dataset.verbatim


def test_new_attributes_take_a_new_question_and_drop_what_belonged_to_the_old(tmp_path: Path) -> None:
    text = """\
extends: occupation
axes:
  age:
    attributes: [young, old]
    question: What is the age group (young, old) of the person?
"""
    age = load_dataset(write(tmp_path, text)).axis("age")
    assert [c.attribute for c in age.counterfactuals] == ["young", "old"]
    assert age.questions[0].choices == ("young", "old")
    stale = "\n".join(text.splitlines()[:-1])
    with pytest.raises(DatasetError, match=r"stale.yaml:4: axis 'age' has new attributes but its old question"):
        load_dataset(write(tmp_path, stale, "stale.yaml"))


def test_a_subject_added_twice_names_the_file_of_the_first(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "base.yaml")
    with pytest.raises(
        DatasetError, match=r"clinic\.yaml:2: subject 'chef' is listed twice \(first in line 3 of .*base"
    ):
        load_dataset(write(tmp_path, "extends: base\nadd_subjects: [chef]\n"))


def test_a_question_turns_a_composite_axis_into_a_plain_one() -> None:
    dataset = load_dataset({"extends": "occupation", "axes": {"disability": {"question": "Which disability?"}}})
    assert dataset.axis("disability").none == ""
    assert dataset.axis("disability").questions[0].choices == ("fit", "blind", "hearing aid", "wheelchair")


def test_subjects_replace_the_inherited_ones() -> None:
    assert load_dataset({"extends": "occupation", "subjects": ["astronaut"]}).subjects == ("astronaut",)


REFUSED = [  # what is changed in GOOD, into what, the line and the message
    ("[nurse, chef]", "[nurse, nurse]", 3, "subject 'nurse' is listed twice (first in line 3)"),
    ("[short, tall]", "[short, short]", 6, "attribute 'short' is listed twice"),
    ("  glasses:\n    attributes", "  height:\n    attributes", 11, "`axes` has 'height' twice (first in line 5)"),
    ("tall: {template", "short: {template", 10, "`counterfactuals` of axis 'height' has 'short' twice"),
    ("tall: {template", "tal: {template", 10, "axis 'height': the axis has no attribute 'tal'; did you mean 'tall'?"),
    ("a tall {subject}", "a short {subject}", 10, "'tall' of axis 'height' has the same prompt as 'short'"),
    ("a tall {subject}", "a {subject}", 10, "has the same prompt as the initial prompt"),
    ("adjective: tall", "adjective: short", 10, "'tall' of axis 'height' has the same words as 'short'"),
    ("with glasses}", "without glasses}", 18, "has the same words as 'bare'"),
    (
        '      tall: {template: "A photo of a tall {subject}", adjective: tall}\n',
        "",
        9,
        "attribute 'tall' of axis 'height' has no counterfactual",
    ),
    ("[bare, glasses]", "[bare]", 12, "axis 'glasses' needs two attributes or more, not 1"),
    ("photo of a {subject}\n", "photo of a nurse\n", 1, "does not say where the {subject} goes"),
    ("photo of a {subject}\n", "photo of a {subjct}\n", 1, "has the placeholder {subjct}; {subject} is the only one"),
    ("photo of a {subject}\n", "photo of a {subject:>9}\n", 1, "has the placeholder {subject:>9}"),
    ("photo of a {subject}\n", "photo of a {subject!r}\n", 1, "has the placeholder {subject!r}"),
    ("photo of a {subject}\n", '"photo of a {subject"\n', 1, "is not a template"),
    (
        "a tall {subject}",
        "a tall {person}",
        10,
        "`template` of counterfactual 'tall' of axis 'height' has the placeholder",
    ),
    ("choices: [yes, no]", "choices: [yes, never]", 15, "are [yes, never] but must be [yes, no], in this order"),
    (
        "question: What is the height (short, tall) of the person?",
        'question: {text: "Height?", choices: [tall, short]}',
        7,
        "must be [short, tall]",
    ),
    ("  height:", "  person:", 5, "an axis cannot be called 'person'"),
    ("  height:", '  "*":', 5, "an axis cannot be called '*'"),
    ("  height:", "  height+age:", 5, "axis 'height+age' has a + in its name"),
    ("  height:", '  "":', 5, "a key of `axes` is empty"),
    ("[short, tall]", "[short, '*']", 6, "an attribute of axis 'height' cannot be called '*'"),
    ("person: Is", "persn: Is", 2, "the dataset has no key 'persn'; did you mean 'person'?"),
    ("    none: bare", "    non: bare", 13, "axis 'glasses' has no key 'non'; did you mean 'none'?"),
    ("adjective: tall", "adjectiv: tall", 10, "has no key 'adjectiv'; did you mean 'adjective'?"),
    ("    none: bare\n", "", 11, "has yes/no `questions` but no `none`"),
    (
        "none: bare",
        "none: bear",
        13,
        "`none` of axis 'glasses' is 'bear', which is not an attribute of the axis; did you mean 'bare'?",
    ),
    ("      glasses: {text", "      bare: {text", 15, "'bare' of axis 'glasses' holds if all are answered no"),
    ("    question: What", "    none: short\n    question: What", 7, "has one `question`, so no `none`"),
    ("    question: What is the height (short, tall) of the person?\n", "", 5, "needs either one `question` or"),
    ("[nurse, chef]", "nurse", 3, "`subjects` must be a list, not text"),
    ("[nurse, chef]", "{nurse: chef}", 3, "`subjects` must be a list, not a mapping"),
    ("[nurse, chef]", "[[nurse], chef]", 3, "subject must be text, not a list"),
    ("[nurse, chef]", "[]", 3, "`subjects` is empty"),
    ("[nurse, chef]", "[nurse, ]\nverbatim: maybe", 4, "`verbatim` must be true or false"),
    ("[nurse, chef]", "[nurse, ' chef']", 3, "subject starts or ends with white space"),
    ("[nurse, chef]", "[nurse, '']", 3, "subject is empty"),
    ("{phrase: with glasses}", "[with glasses]", 18, "must be a mapping, not a list"),
    ("{phrase: with glasses}", "{}", 18, "needs a `template`, an `adjective` or a `phrase`"),
    ("{phrase: with glasses}", "{adjective: spectacled, composed: in glasses}", 18, "takes the place of a `phrase`"),
    ("subjects: [nurse, chef]", "add_subjects: [nurse]", 3, "`add_subjects` needs `extends`"),
    ("subjects: [nurse, chef]\n", "", 1, "the dataset has no `subjects`"),
    ("[nurse, chef]", "[nurse, chef", 4, "is not valid YAML"),
    (
        "subjects:",
        "extends: occupaton\nsubjects:",
        3,
        "`extends`: there is no dataset 'occupaton'; did you mean 'occupation'?",
    ),
    ("subjects:", "extends: occupation\nadd_subjects: [a]\nsubjects:", 4, "give one of them"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"), REFUSED, ids=[f"{i}-{r[3][:40]}" for i, r in enumerate(REFUSED)]
)
def test_a_contradiction_is_refused_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert GOOD.count(old) == 1
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(DatasetError) as refused:
        load_dataset(path)
    assert str(refused.value).startswith(f"{path}:{line}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": is empty"),
        (b"# only a comment\n", ": is empty"),
        (b"\x00\x01\x02\x03", ": holds binary data"),
        ("subjects: [café]".encode("latin-1"), ": is not UTF-8 text (byte 14)"),
        (b"- nurse\n", ":1: a dataset is a mapping"),
        (b"a: 1\n---\nb: 2\n", ":2: is not valid YAML"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "clinic.yaml"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as refused:
        load_dataset(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_a_missing_dataset_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with pytest.raises(DatasetError, match="there is no dataset 'clinc'; did you mean 'clinic'"):
        load_dataset("clinc", search=[tmp_path])
    with pytest.raises(DatasetError, match=r"there is no dataset file clinc\.yaml; did you mean 'clinic'"):
        load_dataset("clinc.yaml", search=[tmp_path])
    with pytest.raises(DatasetError, match="is a directory"):
        load_dataset(tmp_path)


def test_a_dataset_that_extends_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "extends: b\n", "a.yaml")
    write(tmp_path, "\nextends: a\n", "b.yaml")
    with pytest.raises(DatasetError, match=r"b\.yaml:2: `extends`: the dataset extends itself"):
        load_dataset("a", search=[tmp_path])


def test_the_line_of_a_merged_part_is_that_of_the_file_it_came_from(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("adjective: tall", "adjective: short"), "base.yaml")
    with pytest.raises(DatasetError, match=r"base\.yaml:10: .*same words"):
        load_dataset(write(tmp_path, "extends: base\n"))


def test_an_inline_dataset_is_refused_without_a_line() -> None:
    with pytest.raises(
        DatasetError, match=r"^inline dataset: choice must be text, but YAML read it as True; put it in"
    ):
        load_dataset({"extends": "occupation", "person": {"text": "Anyone?", "choices": [True, False]}})
