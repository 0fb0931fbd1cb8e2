"""YAML as a tree of nodes that know their lines, so that an error in a dataset is reported with file and line.

Every scalar stays the text that was written: `yes`, `no`, `12` and `null` are text here, never booleans, numbers or
None. Functions raise DatasetError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import yaml

from seesaw.results.errors import DatasetError, nearest

__all__ = ["boolean", "entries", "fail", "read_tree", "sequence", "text", "tree_of", "words"]

_INLINE = yaml.Mark("inline dataset", 0, -1, -1, None, 0)
_TEXT, _OTHER = "tag:yaml.org,2002:str", "tag:yaml.org,2002:other"


def fail(node: yaml.Node, message: str) -> NoReturn:
    """Raise DatasetError, which names the file and line of `node` (an inline dataset has neither)."""
    mark = node.start_mark
    place = mark.name if mark.line < 0 else f"{mark.name}:{mark.line + 1}"
    raise DatasetError(f"{place}: {message}")


def read_tree(path: Path) -> yaml.MappingNode:
    """The tree of one YAML file. Raises DatasetError if the file cannot be read as one mapping in UTF-8."""
    if path.is_dir():
        raise DatasetError(f"{path}: is a directory; a dataset is one YAML file")
    try:
        source = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is not UTF-8 text (byte {error.start}); save the dataset as UTF-8") from error
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    if yaml.reader.Reader.NON_PRINTABLE.search(source):
        raise DatasetError(f"{path}: holds binary data; a dataset is YAML text")
    loader = yaml.BaseLoader(source)
    loader.name = str(path)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DatasetError(f"{path}{line}: is not valid YAML: {error.problem}") from error
    except RecursionError as error:
        raise DatasetError(f"{path}: is nested too deeply for a dataset") from error
    finally:
        loader.dispose()
    if node is None:
        raise DatasetError(f"{path}: is empty; a dataset needs `template`, `subjects` and `axes`")
    if not isinstance(node, yaml.MappingNode):
        fail(node, "a dataset is a mapping with `template`, `subjects` and `axes`")
    return node


def tree_of(value: Mapping[str, object]) -> yaml.MappingNode:
    """The tree of a mapping that was written inline in a config; its nodes have no lines."""
    node = _node_of(value)
    assert isinstance(node, yaml.MappingNode)
    return node


def _node_of(value: object) -> yaml.Node:
    if isinstance(value, Mapping):
        pairs = [(_node_of(key), _node_of(item)) for key, item in value.items()]
        return yaml.MappingNode("map", pairs, _INLINE, _INLINE)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return yaml.SequenceNode("seq", [_node_of(item) for item in value], _INLINE, _INLINE)
    if isinstance(value, str):
        return yaml.ScalarNode(_TEXT, value, _INLINE, _INLINE)
    if value is None:
        return yaml.ScalarNode(_TEXT, "", _INLINE, _INLINE)
    return yaml.ScalarNode(_OTHER, str(value), _INLINE, _INLINE)


def text(node: yaml.Node, what: str) -> str:
    """The text of a scalar; `what` names the scalar in error messages."""
    if not isinstance(node, yaml.ScalarNode):
        fail(node, f"{what} must be text, not a {_kind(node)}")
    if node.tag == _OTHER:
        fail(node, f"{what} must be text, but YAML read it as {node.value}; put it in quotes")
    if not node.value:
        fail(node, f"{what} is empty")
    if node.value != node.value.strip():
        fail(node, f"{what} starts or ends with white space: {node.value!r}")
    return str(node.value)


def boolean(node: yaml.Node, what: str) -> bool:
    """Whether a scalar is true or false, in any of YAML's words for the two."""
    word = node.value.lower() if isinstance(node, yaml.ScalarNode) else ""
    if word not in {"true", "yes", "on", "false", "no", "off"}:
        fail(node, f"{what} must be true or false")
    return word in {"true", "yes", "on"}


def sequence(node: yaml.Node, what: str) -> list[yaml.Node]:
    """The items of a list."""
    if not isinstance(node, yaml.SequenceNode):
        fail(node, f"{what} must be a list, not {'text' if isinstance(node, yaml.ScalarNode) else 'a mapping'}")
    return list(node.value)


def words(node: yaml.Node, what: str, item_name: str) -> tuple[str, ...]:
    """The words of a list. A word that is listed twice is an error; `item_name` is what one word is called there."""
    items: dict[str, yaml.Node] = {}
    for item in sequence(node, what):
        word = text(item, item_name)
        if word in items:
            fail(item, f"{item_name} '{word}' is listed twice{_first_place(items[word], item)}")
        items[word] = item
    return tuple(items)


def entries(node: yaml.Node, what: str, allowed: Iterable[str] | None = None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The key and value nodes of a mapping, by key.

    A key that occurs twice is an error. If `allowed` is given, so is a key that is not in it.
    """
    if not isinstance(node, yaml.MappingNode):
        fail(node, f"{what} must be a mapping, not {'text' if isinstance(node, yaml.ScalarNode) else 'a list'}")
    by_key: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        word = text(key, f"a key of {what}")
        if word in by_key:
            fail(key, f"{what} has '{word}' twice{_first_place(by_key[word][0], key)}")
        if allowed is not None and word not in allowed:
            fail(key, f"{what} has no key '{word}'{nearest(word, allowed)}")
        by_key[word] = key, value
    return by_key


def _kind(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "mapping"


def _first_place(first: yaml.Node, second: yaml.Node) -> str:
    """Where a word that occurs twice was first, for an error at `second`."""
    mark = first.start_mark
    if mark.line < 0:
        return ""
    other_file = f" of {mark.name}" if mark.name != second.start_mark.name else ""
    return f" (first in line {mark.line + 1}{other_file})"
