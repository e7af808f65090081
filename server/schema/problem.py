"""Why a schema is refused, and where."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import quoted


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a schema is refused. ``code`` is the API's error code, ``pointer`` a JSON pointer to the
    schema that holds ``keyword`` (empty where no keyword is at fault)."""

    code: str
    pointer: str
    keyword: str
    reason: str

    @property
    def instead(self) -> str:
        """What would be accepted, empty where that can't be said."""
        return _INSTEAD.get(self.code) or _VALUES.get(self.keyword, "")

    def __str__(self) -> str:
        place = quoted(self.pointer) if self.pointer else "the root"
        instead = f" (accepted: {self.instead})" if self.instead else ""
        return f"{self.keyword + ' ' if self.keyword else ''}at {place}: {self.reason}{instead}"


_INSTEAD = {
    "unsupported_ref": "a schema under $defs of the same document",
    "schema_unsatisfiable": "a schema that some value satisfies",
}
"""By code, before what the keyword at fault can have."""
_COUNT = "a whole number from 0 on"
_LIST = "a list of schemas, at least one"
_SCHEMA = "a schema: an object, true or false"
_VALUES = {
    "$ref": "a pointer to a schema of the same document, as #/$defs/NAME",
    "type": "array, boolean, integer, null, number, object, string, or a list of these",
    "enum": "a list of values, at least one",
    "required": "a list of names",
    "properties": "an object of schemas by name",
    "patternProperties": "an object of schemas by regular expression",
    "pattern": "a regular expression of ECMA 262",
    "multipleOf": "a number above 0",
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "a number"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _LIST),
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), _SCHEMA),
    **dict.fromkeys(("items", "additionalProperties"), _SCHEMA),
    "uniqueItems": "true or false",
    "format": "the name of a format",
    "$defs": "an object of schemas by name",
}


class Refused(Exception):
    """A schema can't be held to."""

    def __init__(self, pointer: str, keyword: str, reason: str, code: str = "invalid_schema") -> None:
        super().__init__(reason)
        self.problem = Problem(code, pointer, keyword, reason)
