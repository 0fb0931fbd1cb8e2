"""Merges a dataset with the one that it extends, by the rules in the docstring of `experiments.dataset.load`.

The YAML trees are merged before they are read, so that an error message still names the file and line of the wrong
part. Functions raise DatasetError.
"""

from __future__ import annotations

import yaml

from seesaw.experiments.dataset.yaml import entries, fail, words

__all__ = ["merged"]

_Entries = dict[str, tuple[yaml.Node, yaml.Node]]


def merged(base: yaml.MappingNode, own: yaml.MappingNode) -> yaml.MappingNode:
    """`own` on top of `base`, which it extends. The result has neither `extends` nor `add_subjects`."""
    inherited, own_fields = entries(base, "the dataset"), entries(own, "the dataset")
    del own_fields["extends"]
    inherited.pop("name", None)  # with the inherited name, this dataset would claim to be the other one
    result = inherited | own_fields
    if "add_subjects" in own_fields:
        result["subjects"] = _added_subjects(inherited, own_fields)
        del result["add_subjects"]
    if "axes" in inherited:
        axes = entries(inherited["axes"][1], "`axes`")
        if "template" in own_fields:
            axes = {name: (key, _without_templates(name, axis)) for name, (key, axis) in axes.items()}
        if "axes" in own_fields:
            for name, (key, axis) in entries(own_fields["axes"][1], "`axes`").items():
                axes[name] = key, _merged_axis(name, axes[name][1], axis) if name in axes else axis
        result["axes"] = result["axes"][0], _mapping(axes, result["axes"][1])
    return _mapping(result, own)


def _added_subjects(inherited: _Entries, own: _Entries) -> tuple[yaml.Node, yaml.Node]:
    """The entry `subjects`: the inherited subjects, then those of `add_subjects`."""
    key, added = own["add_subjects"]
    if "subjects" in own:
        fail(key, "`subjects` replaces the inherited list and `add_subjects` adds to it; give one of them")
    words(added, "`add_subjects`", "subject")
    if "subjects" not in inherited:
        fail(key, "there are no inherited subjects to add to; give `subjects`")
    name, subjects = inherited["subjects"]
    words(subjects, "`subjects`", "subject")
    return name, yaml.SequenceNode("seq", [*subjects.value, *added.value], added.start_mark, added.end_mark)


def _merged_axis(name: str, base: yaml.Node, own: yaml.Node) -> yaml.MappingNode:
    inherited, own_fields = entries(base, f"axis '{name}'"), entries(own, f"axis '{name}'")
    replaced_by = {"question": ("questions", "none"), "questions": ("question",)}
    for key in own_fields:
        for replaced in replaced_by.get(key, ()):
            inherited.pop(replaced, None)
    if "attributes" in own_fields:
        _drop_removed_attributes(name, inherited, own_fields)
    result = inherited | own_fields
    for key in ("questions", "counterfactuals"):
        if key in inherited and key in own_fields:
            what = f"`{key}` of axis '{name}'"
            by_attribute = entries(inherited[key][1], what) | entries(own_fields[key][1], what)
            result[key] = own_fields[key][0], _mapping(by_attribute, own_fields[key][1])
    return _mapping(result, own)


def _drop_removed_attributes(name: str, inherited: _Entries, own: _Entries) -> None:
    """Remove the questions and counterfactuals of attributes that `own` no longer has from `inherited`.

    Raises DatasetError if the axis would keep a question that names other attributes.
    """
    what = f"`attributes` of axis '{name}'"
    attributes = words(own["attributes"][1], what, "attribute")
    if "question" in inherited and "question" not in own and set(attributes) != set(_attributes(inherited, what)):
        fail(own["attributes"][0], f"axis '{name}' has new attributes but its old question; give it a `question`")
    for key in ("questions", "counterfactuals"):
        if key in inherited:
            node = inherited[key][1]
            by_attribute = entries(node, f"`{key}` of axis '{name}'")
            kept = {attribute: pair for attribute, pair in by_attribute.items() if attribute in attributes}
            inherited[key] = inherited[key][0], _mapping(kept, node)


def _attributes(axis: _Entries, what: str) -> tuple[str, ...]:
    return words(axis["attributes"][1], what, "attribute") if "attributes" in axis else ()


def _without_templates(name: str, axis: yaml.Node) -> yaml.MappingNode:
    """The axis without its counterfactuals' templates, so that their prompts are composed from their words.

    Raises DatasetError for a counterfactual that has no words.
    """
    what = f"axis '{name}'"
    fields = entries(axis, what)
    if "counterfactuals" in fields:
        key, node = fields["counterfactuals"]
        without_templates: _Entries = {}
        for attribute, (word, counterfactual) in entries(node, f"`counterfactuals` of {what}").items():
            parts = entries(counterfactual, f"counterfactual '{attribute}' of {what}")
            if "template" in parts and len(parts) == 1:
                fail(
                    word,
                    f"counterfactual '{attribute}' of {what} has only a template, and the dataset that extends "
                    "this one has another `template`; give it an `adjective` or a `phrase`",
                )
            parts.pop("template", None)
            without_templates[attribute] = word, _mapping(parts, counterfactual)
        fields["counterfactuals"] = key, _mapping(without_templates, node)
    return _mapping(fields, axis)


def _mapping(pairs: _Entries, at: yaml.Node) -> yaml.MappingNode:
    return yaml.MappingNode("map", list(pairs.values()), at.start_mark, at.end_mark)
