"""How a dataset that extends another merges with it; the rules are told in `experiments.dataset.load`.

Merging happens on the YAML trees, before they are read, so that a refusal still names the file and line of the part.
"""

from __future__ import annotations

import yaml

from seesaw.experiments.dataset.yaml import entries, fail, words

__all__ = ["merged"]

_Entries = dict[str, tuple[yaml.Node, yaml.Node]]


def merged(base: yaml.MappingNode, own: yaml.MappingNode) -> yaml.MappingNode:
    """The tree of `own` on top of `base`; `extends` and `add_subjects` are used up. Raises DatasetError."""
    under, over = entries(base, "the dataset"), entries(own, "the dataset")
    del over["extends"]
    under.pop("name", None)  # the inherited name would claim that this is the other dataset
    result = under | over
    if "add_subjects" in over:
        result["subjects"] = _added_subjects(under, over)
        del result["add_subjects"]
    if "axes" in under:
        axes = entries(under["axes"][1], "`axes`")
        if "template" in over:
            axes = {name: (key, _without_templates(name, axis)) for name, (key, axis) in axes.items()}
        if "axes" in over:
            for name, (key, axis) in entries(over["axes"][1], "`axes`").items():
                axes[name] = key, _merged_axis(name, axes[name][1], axis) if name in axes else axis
        result["axes"] = result["axes"][0], _mapping(axes, result["axes"][1])
    return _mapping(result, own)


def _added_subjects(under: _Entries, over: _Entries) -> tuple[yaml.Node, yaml.Node]:
    key, added = over["add_subjects"]
    if "subjects" in over:
        fail(key, "`subjects` replaces the inherited list and `add_subjects` adds to it; give one of them")
    words(added, "`add_subjects`", "subject")
    if "subjects" not in under:
        fail(key, "there are no inherited subjects to add to; give `subjects`")
    name, inherited = under["subjects"]
    words(inherited, "`subjects`", "subject")
    return name, yaml.SequenceNode("seq", [*inherited.value, *added.value], added.start_mark, added.end_mark)


def _merged_axis(name: str, base: yaml.Node, own: yaml.Node) -> yaml.MappingNode:
    under, over = entries(base, f"axis '{name}'"), entries(own, f"axis '{name}'")
    dropped = {"question": ("questions", "none"), "questions": ("question",)}
    for key in over:
        for other in dropped.get(key, ()):
            under.pop(other, None)
    if "attributes" in over:
        _follow_attributes(name, under, over)
    result = under | over
    for key in ("questions", "counterfactuals"):
        if key in under and key in over:
            what = f"`{key}` of axis '{name}'"
            both = entries(under[key][1], what) | entries(over[key][1], what)
            result[key] = over[key][0], _mapping(both, over[key][1])
    return _mapping(result, own)


def _follow_attributes(name: str, under: _Entries, over: _Entries) -> None:
    """Drop from `under` what belonged to attributes that are gone, and refuse a question that names other ones."""
    what = f"`attributes` of axis '{name}'"
    new = words(over["attributes"][1], what, "attribute")
    if "question" in under and "question" not in over and set(new) != set(_attributes(under, what)):
        fail(over["attributes"][0], f"axis '{name}' has new attributes but its old question; give it a `question`")
    for key in ("questions", "counterfactuals"):
        if key in under:
            node = under[key][1]
            kept = {a: pair for a, pair in entries(node, f"`{key}` of axis '{name}'").items() if a in new}
            under[key] = under[key][0], _mapping(kept, node)


def _attributes(axis: _Entries, what: str) -> tuple[str, ...]:
    return words(axis["attributes"][1], what, "attribute") if "attributes" in axis else ()


def _without_templates(name: str, axis: yaml.Node) -> yaml.MappingNode:
    """The axis with its counterfactuals' templates dropped, where their words can make the prompt."""
    what = f"axis '{name}'"
    fields = entries(axis, what)
    if "counterfactuals" in fields:
        key, node = fields["counterfactuals"]
        bare: _Entries = {}
        for attribute, (word, counterfactual) in entries(node, f"`counterfactuals` of {what}").items():
            parts = entries(counterfactual, f"counterfactual '{attribute}' of {what}")
            if "template" in parts and len(parts) == 1:
                fail(
                    word,
                    f"counterfactual '{attribute}' of {what} has only a template, and the dataset that extends "
                    "this one has another `template`; give it an `adjective` or a `phrase`",
                )
            parts.pop("template", None)
            bare[attribute] = word, _mapping(parts, counterfactual)
        fields["counterfactuals"] = key, _mapping(bare, node)
    return _mapping(fields, axis)


def _mapping(pairs: _Entries, at: yaml.Node) -> yaml.MappingNode:
    return yaml.MappingNode("map", list(pairs.values()), at.start_mark, at.end_mark)
