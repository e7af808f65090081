"""The table of keywords in ``docs/schemas.md``. ``python tests/schema_page.py`` writes it anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from server.schema.report import report

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schemas.md"
START, END = "<!-- keywords -->\n", "<!-- end -->\n"
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}

CASES: list[tuple[str, str, Any]] = [
    ("type", "one or several", {"type": ["string", "null"]}),
    ("enum", "", {"enum": ["a", 1, None, [1]]}),
    ("enum", "an empty list", {"enum": []}),
    ("const", "", {"const": {"a": 1}}),
    ("const", "an integer beyond 63 bits", {"const": 2**70}),
    ("minLength", "", {"type": "string", "minLength": 2}),
    ("maxLength", "up to 2,000", {"type": "string", "maxLength": 2000}),
    ("maxLength", "beyond", {"type": "string", "maxLength": 100_000}),
    ("pattern", "searched for anywhere, as JSON Schema has it", {"type": "string", "pattern": "[a-z]+"}),
    ("pattern", "looking around, back references", {"type": "string", "pattern": "^(?!a)b"}),
    ("pattern", "no regular expression", {"type": "string", "pattern": "("}),
    ("format", "`date`, `time`, `date-time`", {"type": "string", "format": "date"}),
    ("format", "`uuid`", {"type": "string", "format": "uuid"}),
    ("format", "`ipv4`", {"type": "string", "format": "ipv4"}),
    ("format", "`email`", {"type": "string", "format": "email"}),
    ("format", "`hostname`", {"type": "string", "format": "hostname"}),
    ("format", "`uri`", {"type": "string", "format": "uri"}),
    ("format", "one that nobody knows", {"type": "string", "format": "colour"}),
    ("minimum", "of integers and numbers", {"type": "number", "minimum": -1.5}),
    ("exclusiveMaximum", "", {"type": "integer", "exclusiveMaximum": 5}),
    ("multipleOf", "", {"type": "integer", "multipleOf": 5}),
    ("multipleOf", "not of ten's parts", {"type": "number", "multipleOf": 0.3}),
    ("items", "", {"type": "array", "items": {"type": "string"}}),
    ("prefixItems", "", {"type": "array", "prefixItems": [{"type": "string"}], "items": False}),
    ("minItems", "", {"type": "array", "minItems": 1, "maxItems": 3}),
    ("contains", "", {"type": "array", "contains": {"const": 1}}),
    ("uniqueItems", "", {"type": "array", "uniqueItems": True}),
    ("unevaluatedItems", "", {"type": "array", "prefixItems": [True], "unevaluatedItems": False}),
    ("properties", "", {"properties": {"a": {"type": "string"}}}),
    ("required", "declared or not", {"properties": {"a": {}}, "required": ["a", "b"]}),
    ("additionalProperties", "", {"additionalProperties": {"type": "integer"}}),
    (
        "patternProperties",
        "",
        {"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
    ),
    ("patternProperties", "that may match one key", {"patternProperties": {"a": {}, "b": {"type": "null"}}}),
    ("propertyNames", "", {"propertyNames": {"pattern": "^[a-z]+$"}}),
    ("minProperties", "up to 1", {"minProperties": 1}),
    ("minProperties", "more", {"minProperties": 2}),
    ("maxProperties", "", {"properties": {"a": {}, "b": {}}, "maxProperties": 1}),
    ("dependentRequired", "", {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}),
    ("dependentSchemas", "", {"properties": {"a": {}}, "dependentSchemas": {"a": {"required": ["b"]}}}),
    ("dependencies", "draft 7", {**DRAFT7, "dependencies": {"a": ["b"]}}),
    ("unevaluatedProperties", "", {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}),
    ("$ref", "anywhere in the document", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object"}}}),
    ("$ref", "that goes on", {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}),
    ("$ref", "that goes nowhere", {"$ref": "#"}),
    ("$ref", "to another document", {"$ref": "https://example.com/schema"}),
    ("allOf", "", {"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]}),
    ("anyOf", "", {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    (
        "oneOf",
        "that no value satisfies twice",
        {"properties": {"a": {"oneOf": [{"const": 1}, {"type": "string"}]}}},
    ),
    ("oneOf", "that some may", {"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 3}]}}}),
    ("not", "of types, lists, bounds", {"properties": {"a": {"not": {"enum": [1, "x"]}}}}),
    ("not", "of what has no complement", {"properties": {"a": {"type": "string", "not": {"pattern": "a"}}}}),
    ("if", "", {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}),
    (
        "if",
        "of what has no complement",
        {"if": {"properties": {"a": {"pattern": "x"}}}, "then": {"required": ["b"]}},
    ),
    ("nullable", "OpenAPI's: null is added to `type`", {"type": "string", "nullable": True}),
    ("contentEncoding", "", {"type": "string", "contentEncoding": "base64"}),
    ("title", "and `description`, `default`, `examples` and names that nobody knows", {"title": "A"}),
]
"""A keyword, which case of it, and a schema that has it."""


def rows() -> list[str]:
    lines = ["| keyword | case | example | what becomes of it |", "| --- | --- | --- | --- |"]
    for keyword, case, schema in CASES:
        shown = json.dumps({key: value for key, value in schema.items() if key != "$schema"})
        shown = shown.replace("|", "\\|").replace(str(2**70), "2e70")
        lines.append(f"| `{keyword}` | {case} | `{shown}` | {_outcome(keyword, schema)} |")
    return lines


def _outcome(keyword: str, schema: Any) -> str:
    of_value = bool(set(schema) & {"type", "enum", "const", "nullable", "title"})
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]} if of_value else schema
    (found,) = report([{"name": "t", "parameters": whole}])
    if found.refusal is not None:
        return f"refused: {found.refusal.reason}".replace("|", "\\|")
    held = [each for each in found.keywords if each.keyword == keyword]
    worst = next((each for each in held if each.held == "verified"), None)
    if worst is not None:
        return f"verified: {worst.reason}"
    return "enforced" if any(each.held == "enforced" for each in held) else "an annotation"


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return before + START + "\n" + "\n".join(rows()) + "\n\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
