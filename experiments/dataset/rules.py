"""Builds a Dataset from a YAML tree, and refuses every contradiction in it.

Functions raise DatasetError, which names file and line. The docstring of `experiments.dataset.load` has the format.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

import yaml

from seesaw.experiments.dataset.model import Axis, Counterfactual, Dataset, Question
from seesaw.experiments.dataset.yaml import boolean, entries, fail, text, words
from seesaw.results.errors import nearest

__all__ = ["build"]

_DATASET_KEYS = ("name", "extends", "verbatim", "template", "person", "subjects", "add_subjects", "axes")
_AXIS_KEYS = ("attributes", "none", "question", "questions", "counterfactuals")
_COUNTERFACTUAL_KEYS = ("template", "adjective", "phrase", "composed")
_YES_NO = ("yes", "no")
#: names that no axis may have, and what they mean in the tables
_RESERVED_AXES = {"person": "the question whether an image shows a person", "*": "the pooled intervention"}


def build(tree: yaml.MappingNode, name: str) -> Dataset:
    """The Dataset that `tree` describes; `name` is its name if `tree` gives none."""
    fields = entries(tree, "the dataset", _DATASET_KEYS)
    if "add_subjects" in fields:
        fail(fields["add_subjects"][0], "`add_subjects` needs `extends`; without it, give `subjects`")
    _require(tree, "the dataset", fields, ("template", "subjects", "axes"))
    subjects = words(fields["subjects"][1], "`subjects`", "subject")
    if not subjects:
        fail(fields["subjects"][1], "`subjects` is empty; a dataset needs at least one")
    template = _template(fields["template"][1], "`template`")
    axes = entries(fields["axes"][1], "`axes`")
    if not axes:
        fail(fields["axes"][1], "`axes` is empty; a dataset needs at least one")
    return Dataset(
        name=text(fields["name"][1], "`name`") if "name" in fields else name,
        template=template,
        subjects=subjects,
        person=_question(fields["person"][1], "`person`", _YES_NO) if "person" in fields else None,
        axes=tuple(_axis(axis, key, node, template) for axis, (key, node) in axes.items()),
        verbatim=boolean(fields["verbatim"][1], "`verbatim`") if "verbatim" in fields else True,
    )


def _require(node: yaml.Node, what: str, fields: Iterable[str], required: Iterable[str]) -> None:
    for key in required:
        if key not in fields:
            fail(node, f"{what} has no `{key}`")


def _template(node: yaml.Node, what: str) -> str:
    """A template in which {subject} is the only placeholder."""
    template = text(node, what)
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        fail(node, f"{what} is not a template: {error}: {template!r}")
    for _, placeholder, spec, conversion in parts:
        if placeholder != "subject" or spec or conversion:
            written = f"{placeholder}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
            fail(node, f"{what} has the placeholder {{{written}}}; {{subject}} is the only one: {template!r}")
    if not parts:
        fail(node, f"{what} does not say where the {{subject}} goes: {template!r}")
    return template


def _question(node: yaml.Node, what: str, choices: tuple[str, ...], attribute: str = "") -> Question:
    """A question, written as a text or as {text, choices}. Choices that are written must equal `choices`."""
    if not isinstance(node, yaml.MappingNode):
        return Question(text(node, what), choices, attribute)
    fields = entries(node, what, ("text", "choices"))
    _require(node, what, fields, ("text",))
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
        fail(key, f"an axis cannot be called '{name}': in the tables this name means {_RESERVED_AXES[name]}")
    what = f"axis '{name}'"
    fields = entries(node, what, _AXIS_KEYS)
    _require(key, what, fields, ("attributes", "counterfactuals"))
    attributes = words(fields["attributes"][1], f"`attributes` of {what}", "attribute")
    if len(attributes) < 2:
        fail(fields["attributes"][1], f"{what} needs two attributes or more, not {len(attributes)}")
    if "*" in attributes:
        fail(
            fields["attributes"][1],
            f"an attribute of {what} cannot be called '*': in the tables this name means {_RESERVED_AXES['*']}",
        )
    if "+" in name:
        fail(key, f"{what} has a + in its name, but + joins the names of several axes; give it another name")
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
    """The attribute of a composite axis that is the answer if every question is answered no."""
    if "none" not in fields:
        fail(key, f"{what} has yes/no `questions` but no `none`: which attribute holds if all are answered no?")
    none = text(fields["none"][1], f"`none` of {what}")
    if none not in attributes:
        hint = nearest(none, attributes)
        fail(fields["none"][1], f"`none` of {what} is '{none}', which is not an attribute of the axis{hint}")
    return none


def _yes_no_questions(node: yaml.Node, what: str, attributes: tuple[str, ...], none: str) -> tuple[Question, ...]:
    by_attribute = _by_attribute(node, "questions", "question", what, attributes)
    if none in by_attribute:
        fail(by_attribute[none][0], f"'{none}' of {what} holds if all are answered no; remove its question")
    asked = [attribute for attribute in attributes if attribute != none]
    for attribute in asked:
        if attribute not in by_attribute:
            fail(node, f"attribute '{attribute}' of {what} has no question in `questions`")
    return tuple(_question(by_attribute[a][1], f"question '{a}' of {what}", _YES_NO, a) for a in asked)


def _counterfactuals(
    node: yaml.Node, what: str, attributes: tuple[str, ...], initial: str
) -> tuple[Counterfactual, ...]:
    """One counterfactual for each attribute.

    No two of them have the same prompt or the same words, and none has the prompt of `initial`, the initial template.
    """
    by_attribute = _by_attribute(node, "counterfactuals", "counterfactual", what, attributes)
    templates, wordings = {initial: "the initial prompt"}, {("", ""): "the initial prompt"}
    result = {}
    for attribute, (key, value) in by_attribute.items():
        counterfactual = _counterfactual(value, f"counterfactual '{attribute}' of {what}", attribute)
        wording = counterfactual.adjective, counterfactual.composed or counterfactual.phrase
        if counterfactual.template in templates:
            same = templates[counterfactual.template]
            fail(key, f"counterfactual '{attribute}' of {what} has the same prompt as {same}")
        if wording in wordings and wording != ("", ""):
            fail(key, f"counterfactual '{attribute}' of {what} has the same words as {wordings[wording]}")
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
    """The entries of a mapping keyed by attribute. An unknown attribute is an error."""
    by_attribute = entries(node, f"`{plural}` of {what}")
    for attribute, (key, _) in by_attribute.items():
        if attribute not in attributes:
            hint = nearest(attribute, attributes)
            fail(key, f"{singular} '{attribute}' of {what}: the axis has no attribute '{attribute}'{hint}")
    return by_attribute


def _counterfactual(node: yaml.Node, what: str, attribute: str) -> Counterfactual:
    fields = entries(node, what, _COUNTERFACTUAL_KEYS)
    if not {"template", "adjective", "phrase"} & set(fields):
        fail(node, f"{what} needs a `template`, an `adjective` or a `phrase`")
    if "composed" in fields and "phrase" not in fields:
        fail(fields["composed"][0], f"`composed` of {what} takes the place of a `phrase`, but there is no `phrase`")
    wording = {key: text(fields[key][1], f"`{key}` of {what}") for key in fields if key != "template"}
    template = _template(fields["template"][1], f"`template` of {what}") if "template" in fields else ""
    return Counterfactual(
        attribute, template, wording.get("adjective", ""), wording.get("phrase", ""), wording.get("composed", "")
    )
