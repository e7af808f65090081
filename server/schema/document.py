"""From the text of a schema to a document that is one, in the draft it is to be read in.

Looks at form only: JSON, depth, and the draft's metaschema. Forms that older drafts and OpenAPI have for
the same thing are written in today's.
"""

from __future__ import annotations

import json
from decimal import Decimal

import jsonschema_rs

from server.errors import quoted
from server.schema.drafts import Draft
from server.schema.problem import Refused
from server.schema.references import Schema, children
from server.schema.verify import exact, pointer

TEXT_LIMIT = 1024 * 1024
DEPTH_LIMIT = 64


def read(text: str) -> tuple[Schema, Draft]:
    """The document and its draft. Raises ``Refused``."""
    document = _decoded(text)
    _modernise(document)
    return document, _draft(document)


def _decoded(text: str) -> Schema:
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_LIMIT:
        raise Refused("", "", f"the schema is over {TEXT_LIMIT} bytes", "schema_too_large")
    try:
        document = json.loads(text, parse_float=_finite, parse_constant=_no_constant)
    except RecursionError:
        raise Refused("", "", f"nested deeper than {DEPTH_LIMIT}", "schema_too_large") from None
    except ValueError as error:
        raise Refused("", "", f"not JSON: {error}") from None
    if not isinstance(document, dict | bool):
        raise Refused("", "", "a schema is an object or a boolean")
    _plain(document)
    return document


def _finite(digits: str) -> float | int | Decimal:
    """A double where it is the number that is written, else the number itself."""
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is out of range")
    written = exact(digits)
    if written == Decimal(repr(number)):
        return number
    return int(written) if written == written.to_integral_value() else written


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _plain(document: object) -> None:
    """Refuses what is too deep, and text that no JSON answer could repeat."""
    level: list[object] = [document]
    depth = 0
    while level:
        depth += 1
        below: list[object] = []
        for value in level:
            if isinstance(value, str):
                _unicode(value)
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, dict):
                for name in value:
                    _unicode(name)
                below.extend(value.values())
        if depth > DEPTH_LIMIT and any(isinstance(value, dict | list) for value in level):
            raise Refused("", "", f"nested deeper than {DEPTH_LIMIT}", "schema_too_large")
        level = below


def _unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("", "", "a text holds half of a surrogate pair") from None


def _modernise(document: Schema) -> None:
    """OpenAPI's ``nullable`` and draft 4's boolean exclusive bounds, written in today's form in place
    so that every pointer stays what it was."""
    declared = Draft.declared(document.get("$schema")) if isinstance(document, dict) else None
    waiting: list[Schema] = [document]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        _allow_null(schema)
        if declared is not Draft.DRAFT4:
            _exclusive(schema, "exclusiveMinimum", "minimum")
            _exclusive(schema, "exclusiveMaximum", "maximum")
        waiting.extend(below for _, _, below in children(schema))


def _allow_null(schema: dict[str, object]) -> None:
    types = schema.get("type")
    if schema.get("nullable") is not True or not types:
        return
    listed = types if isinstance(types, list) else [types]
    if "null" not in listed:
        schema["type"] = [*listed, "null"]
    values = schema.get("enum")
    if isinstance(values, list) and None not in values:
        schema["enum"] = [*values, None]


def _exclusive(schema: dict[str, object], keyword: str, inclusive: str) -> None:
    if schema.get(keyword) is True and inclusive in schema:
        schema[keyword] = schema.pop(inclusive)
    elif isinstance(schema.get(keyword), bool):
        del schema[keyword]


def _draft(document: Schema) -> Draft:
    """The draft to read the schema in: the declared one, else the newest that accepts it. An
    undeclared schema with ``dependencies`` is read as draft 7, the last in which they mean anything."""
    declared = Draft.declared(document.get("$schema")) if isinstance(document, dict) else None
    newest = [Draft.DRAFT202012, Draft.DRAFT201909, Draft.DRAFT7, Draft.DRAFT4]
    if declared is None and _uses(document, "dependencies"):
        newest.insert(0, Draft.DRAFT7)
    candidates = ([declared] if declared else []) + newest
    refusals: list[Refused] = []
    for draft in candidates:
        refusal = malformed(document, draft)
        if refusal is None:
            return draft
        refusals.append(refusal)
    raise refusals[0]


def _uses(schema: Schema, keyword: str) -> bool:
    if not isinstance(schema, dict):
        return False
    return keyword in schema or any(_uses(below, keyword) for _, _, below in children(schema))


def malformed(document: Schema, draft: Draft) -> Refused | None:
    if isinstance(document, bool):
        return None
    try:
        jsonschema_rs.meta.validate({**document, "$schema": draft.uri})
    except jsonschema_rs.ValidationError as error:
        at = error.instance_path
        return Refused(pointer(at[:-1]), str(at[-1]) if at else "", unfit(error))
    return None


def unfit(error: jsonschema_rs.ValidationError) -> str:
    shown = quoted(json.dumps(error.instance, default=str))
    if error.kind.name == "format":
        return f"{shown} is not a regular expression of ECMA 262"
    return f"{shown} is not a value this keyword can have"
