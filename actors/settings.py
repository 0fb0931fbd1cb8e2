"""What a user wrote as a checked dataclass, by pydantic; what is wrong is one message that says what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from seesaw.results.errors import ConfigError, nearest

__all__ = ["STRICT", "Fraction", "Integer", "Number", "Positive", "Text", "Whole", "read_settings"]

STRICT = ConfigDict(extra="forbid", strict=True)  #: a text is no number, and a number no text
Schema = TypeVar("Schema")


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("no_boolean", "Input should be a number")
    return value


_NUMBER = BeforeValidator(_no_boolean)  # YAML's true and false would be 1 and 0
#: A field's description is what a message says it must be: "KEY must be DESCRIPTION, got VALUE".
Positive = Annotated[int, _NUMBER, Field(ge=1, description="a whole number of at least 1")]
Whole = Annotated[int, _NUMBER, Field(ge=0, description="a whole number of at least 0")]
Number = Annotated[float, _NUMBER, Field(ge=0, allow_inf_nan=False, description="a number of at least 0")]
Integer = Annotated[int, _NUMBER, Field(description="a whole number")]
Fraction = Annotated[float, _NUMBER, Field(allow_inf_nan=False, description="a number")]
Text = Annotated[str, Field(description="text; a number needs quotes there")]


def read_settings(schema: type[Schema], values: Mapping[Any, Any], owner: str = "", where: str = "") -> Schema:
    """`values` as an instance of `schema`, a dataclass of pydantic's that forbids unknown keys.

    `owner` is what has the settings ("a VLM"), for messages; `where` begins each of them.

    Raises:
        ConfigError: a key that is unknown, with the nearest known one; else the first value that is wrong, with what it
            must be.
    """
    try:
        return schema(**{str(key): value for key, value in values.items()})
    except ValidationError as error:
        problems = error.errors()
        unknown = [problem for problem in problems if problem["type"] in _UNKNOWN]
        message = _Message(schema, values, [*unknown, *problems][0], owner)
        raise ConfigError(f"{where}{message.text()}") from None


#: for kinds of problems of fields without a description
_PHRASES = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
}
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")


class _Message:
    """What one problem of pydantic's says, in terms of the schema's keys and their descriptions."""

    def __init__(self, schema: type[Any], values: Mapping[Any, Any], problem: ErrorDetails, owner: str) -> None:
        self._problem, self._owner = problem, owner
        self._value: Any = values
        self._root = self._node = TypeAdapter(schema).json_schema()
        self._keys: list[str] = []
        for part in problem["loc"]:  # may go on with what pydantic calls the branches of a union
            known = self._known()
            if isinstance(part, str):
                below = known.get(part) or self._node.get("additionalProperties")
                if not isinstance(below, dict):
                    break
                self._keys.append(part)
                self._node = below
            self._value = None if problem["type"] == "missing" else self._value[part]

    def text(self) -> str:
        kind, key, owner = self._problem["type"], ".".join(self._keys), self._owner
        if kind in _UNKNOWN:
            name = str(self._problem["loc"][-1])
            key = ".".join([*self._keys, name])
            return f"{f'{owner} has no setting' if owner else 'unknown key'} '{key}'{nearest(name, self._known())}"
        if kind == "value_error":  # of a validator of ours, which says it all
            return str(self._problem["ctx"]["error"])
        branches = [self._node, *self._node.get("anyOf", ())]
        must = next((branch["description"] for branch in branches if "description" in branch), _PHRASES.get(kind))
        if kind in ("missing", "string_too_short"):
            needs = f"{'.'.join(self._keys[:-1])} needs a" if len(self._keys) > 1 else f"{owner} needs the setting"
            return f"{needs} '{self._keys[-1]}'{f': {must}' if must else ''}"
        if kind == "literal_error":
            choices = re.findall(r"'([^']*)'", self._problem["ctx"]["expected"])
            return f"{key} cannot be {self._value!r}{nearest(str(self._value), choices)}"
        return f"{key} must be {must or self._problem['msg'].removeprefix('Input should be ')}, got {self._value!r}"

    def _known(self) -> dict[str, Any]:
        """The keys below the present one, each with its JSON schema."""
        nodes = [self._node]
        for node in nodes:
            if "$ref" in node:
                nodes.append(self._root["$defs"][node["$ref"].rpartition("/")[2]])
            nodes += [*node.get("anyOf", ()), *([node["items"]] if "items" in node else ())]
        return next((node["properties"] for node in nodes if "properties" in node), {})
