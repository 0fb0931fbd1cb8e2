"""From a YAML tree to a Dataset, and every way in which a dataset can contradict itself.

Raises DatasetError with file and line. The format is told in `experiments.dataset.load`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

import yaml

from seesaw.experiments.dataset.model import Axis, Counterfactual, Dataset, Question
from seesaw.experiments.dataset.yaml import entries, fail, text, truth, words
from seesaw.results.errors import nearest

__all__ = ["build"]

_DATASET = ("name", "extends", "verbatim", "template", "person", "subjects", "add_subjects", "axes")
_AXIS = ("attributes", "none", "question", "questions", "counterfactuals")
_COUNTERFACTUAL = ("template", "adjective", "phrase", "composed")
_YES_NO = ("yes", "no")
#: names that mean something else in the answers table: rows about the person, the initial prompt, the pooled images
_RESERVED_AXES = {"person": "the question whether there is one", "*": "the pooled intervention"}


def build(tree: yaml.MappingNode, name: str) -> Dataset:
    """The Dataset that `tree` describes, called `name` unless it says otherwise."""
    fields = entries(tree, "the dataset", _DATASET)
    if "add_subjects" in fields:
        fail(fields["add_subjects"][0], "`add_subjects` needs `extends`; without it, give `subjects`")
    _demand(tree, "the dataset", fields, ("template", "subjects", "axes"))
    subjects = words(fields["subjects"][1], "`subjects`", "subject")
    if not subjects:
        fail(fields["subjects"][1], "`subjects` is empty; a dataset is about at least one")
    template = _template(fields["template"][1], "`template`")
    axes = entries(fields["axes"][1], "`axes`")
    if not axes:
        fail(fields["axes"][1], "`axes` is empty; a dataset has at least one")
    return Dataset(
        name=text(fields["name"][1], "`name`") if "name" in fields else name,
        template=template,
        subjects=subjects,
        person=_question(fields["person"][1], "`person`", _YES_NO) if "person" in fields else None,
        axes=tuple(_axis(axis, key, node, template) for axis, (key, node) in axes.items()),
        verbatim=truth(fields["verbatim"][1], "`verbatim`") if "verbatim" in fields else True,
    )


def _demand(node: yaml.Node, what: str, fields: Iterable[str], needed: Iterable[str]) -> None:
    for key in needed:
        if key not in fields:
            fail(node, f"{what} has no `{key}`")


def _template(node: yaml.Node, what: str) -> str:
    """A template in which {subject} is the one placeholder."""
    template = text(node, what)
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        fail(node, f"{what} is not a template: {error}: {template!r}")
    for _, placeholder, spec, conversion in parts:
        if placeholder != "subject" or spec or conversion:
            written = f"{placeholder}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
            fail(node, f"{what} has the placeholder {{{written}}}; {{subject}} is the one there is: {template!r}")
    if not parts:
        fail(node, f"{what} does not say where the {{subject}} goes: {template!r}")
    return template


def _question(node: yaml.Node, what: str, choices: tuple[str, ...], attribute: str = "") -> Question:
    """A question, written as its text or as {text, choices}; choices that are written must be the ones that count."""
    if not isinstance(node, yaml.MappingNode):
        return Question(text(node, what), choices, attribute)
    fields = entries(node, what, ("text", "choices"))
    _demand(node, what, fields, ("text",))
    if "choices" in fields:
        written = words(fields["choices"][1], f"`choices` of {what}", "choice")
        if written != choices:
            fail(
                fields["choices"][1],
                f"the choices of {what} are [{', '.join(written)}] but must be [{', '.join(choices)}], in this order",
            )
    return Question(text(fields["text"][1], f"`text` of {what}"), choices, attribute)


def _axis(name: str, key: yaml.Node, node: yaml.Node, template: str) -> Axis:
    if name in _RESERVED_AXES:
        fail(key, f"an axis cannot be called '{name}': in the tables that is {_RESERVED_AXES[name]}")
    what = f"axis '{name}'"
    fields = entries(node, what, _AXIS)
    _demand(key, what, fields, ("attributes", "counterfactuals"))
    attributes = words(fields["attributes"][1], f"`attributes` of {what}", "attribute")
    if len(attributes) < 2:
        fail(fields["attributes"][1], f"{what} needs two attributes or more, not {len(attributes)}")
    if "*" in attributes:
        fail(
            fields["attributes"][1], f"an attribute of {what} cannot be called '*': the tables use it for pooled images"
        )
    if "+" in name:
        fail(key, f"{what} has a + in its name, which joins the names of several axes; call it otherwise")
    if ("question" in fields) == ("questions" in fields):
        fail(key, f"{what} needs either one `question` or, for a composite axis, yes/no `questions` and `none`")
    if "question" in fields:
        if "none" in fields:
            fail(fields["none"][0], f"{what} has one `question`, so no `none`; `none` goes with yes/no `questions`")
        questions: tuple[Question, ...] = (_question(fields["question"][1], f"`question` of {what}", attributes),)
        none = ""
    else:
        none = _none(key, what, fields, attributes)
        questions = _yes_no_questions(fields["questions"][1], what, attributes, none)
    counterfactuals = _counterfactuals(fields["counterfactuals"][1], what, attributes, template)
    return Axis(name, attributes, questions, counterfactuals, none)


def _none(
    key: yaml.Node, what: str, fields: dict[str, tuple[yaml.Node, yaml.Node]], attributes: tuple[str, ...]
) -> str:
    """The attribute of a composite axis that holds when every question is answered no."""
    if "none" not in fields:
        fail(key, f"{what} has yes/no `questions` but no `none`: which attribute holds when all are answered no?")
    none = text(fields["none"][1], f"`none` of {what}")
    if none not in attributes:
        fail(fields["none"][1], f"`none` of {what} is '{none}', which is no attribute of it{nearest(none, attributes)}")
    return none


def _yes_no_questions(node: yaml.Node, what: str, attributes: tuple[str, ...], none: str) -> tuple[Question, ...]:
    found = _by_attribute(node, "questions", "question", what, attributes)
    if none in found:
        fail(found[none][0], f"'{none}' of {what} holds when all are answered no; it has no question of its own")
    asked = [a for a in attributes if a != none]
    for attribute in asked:
        if attribute not in found:
            fail(node, f"attribute '{attribute}' of {what} has no question in `questions`")
    return tuple(_question(found[a][1], f"question '{a}' of {what}", _YES_NO, a) for a in asked)


def _counterfactuals(
    node: yaml.Node, what: str, attributes: tuple[str, ...], initial: str
) -> tuple[Counterfactual, ...]:
    """One counterfactual for each attribute, no two of which could be mistaken for each other or the initial prompt."""
    found = _by_attribute(node, "counterfactuals", "counterfactual", what, attributes)
    templates, wordings = {initial: "the initial prompt"}, {("", ""): "the initial prompt"}
    result = {}
    for attribute, (key, value) in found.items():
        counterfactual = _counterfactual(value, f"counterfactual '{attribute}' of {what}", attribute)
        wording = counterfactual.adjective, counterfactual.composed or counterfactual.phrase
        if counterfactual.template in templates:
            same = templates[counterfactual.template]
            fail(key, f"counterfactual '{attribute}' of {what} has the same prompt as {same}")
        if wording in wordings and wording != ("", ""):
            fail(key, f"counterfactual '{attribute}' of {what} says the same words as {wordings[wording]}")
        if counterfactual.template:
            templates[counterfactual.template] = f"'{attribute}'"
        wordings[wording] = f"'{attribute}'"
        result[attribute] = counterfactual
    for attribute in attributes:
        if attribute not in result:
            fail(node, f"attribute '{attribute}' of {what} has no counterfactual")
    return tuple(result[a] for a in attributes)


def _by_attribute(
    node: yaml.Node, plural: str, singular: str, what: str, attributes: tuple[str, ...]
) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The entries of a mapping keyed by attribute, none of them unknown."""
    found = entries(node, f"`{plural}` of {what}")
    for attribute, (key, _) in found.items():
        if attribute not in attributes:
            fail(key, f"{singular} '{attribute}' of {what} names no attribute of it{nearest(attribute, attributes)}")
    return found


def _counterfactual(node: yaml.Node, what: str, attribute: str) -> Counterfactual:
    fields = entries(node, what, _COUNTERFACTUAL)
    if not {"template", "adjective", "phrase"} & set(fields):
        fail(node, f"{what} needs a `template`, an `adjective` or a `phrase`")
    if "composed" in fields and "phrase" not in fields:
        fail(fields["composed"][0], f"`composed` of {what} takes the place of a `phrase`, and there is none")
    said = {key: text(fields[key][1], f"`{key}` of {what}") for key in fields if key != "template"}
    template = _template(fields["template"][1], f"`template` of {what}") if "template" in fields else ""
    return Counterfactual(
        attribute, template, said.get("adjective", ""), said.get("phrase", ""), said.get("composed", "")
    )
