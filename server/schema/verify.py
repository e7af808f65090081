"""The independent check of a finished value against the schema as the client wrote it.

Not the constraint: this reads the client's schema, not the lowered one, and a different library decides.
Formats the validator knows are asserted in every draft, since clients who write ``format: date`` want a
date; all other formats are annotations. Of a key written twice the last value counts, as in other readers.
Numbers are exact: integers of any size, fractions as decimals. Nothing is ever fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import jsonschema_rs

from server.schema.drafts import Draft
from server.schema.references import Schema, escaped

MESSAGE_LIMIT = 200

_VALIDATORS: dict[Draft, type[jsonschema_rs.Validator]] = {
    Draft.DRAFT4: jsonschema_rs.Draft4Validator,
    Draft.DRAFT6: jsonschema_rs.Draft6Validator,
    Draft.DRAFT7: jsonschema_rs.Draft7Validator,
    Draft.DRAFT201909: jsonschema_rs.Draft201909Validator,
    Draft.DRAFT202012: jsonschema_rs.Draft202012Validator,
}

# Exponents beyond this are taken as this: bounds and types decide the same, and no value is expanded.
_LARGEST_EXPONENT = 400

_FORMATS = (
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
)

# No text of any known format: it has a control character, a space and an unbalanced bracket.
_FITS_NO_FORMAT = "\x00 [{(\\"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a value is invalid: the keyword that failed, where in the value, and where in the schema
    (both as JSON pointers). ``keyword`` is ``json`` where the text is no JSON at all."""

    keyword: str
    instance: str
    schema: str
    message: str


def compiled(schema: Schema, draft: Draft) -> jsonschema_rs.Validator:
    """A validator for a schema. Raises ``jsonschema_rs.ValidationError`` for a pattern that is not a
    regular expression, ``jsonschema_rs.ReferencingError`` for an unknown reference."""
    if isinstance(schema, dict) and "$schema" in schema:
        schema = {**schema, "$schema": draft.uri}
    formats = _newer_formats(draft)
    return _VALIDATORS[draft](schema, formats=formats, validate_formats=True, offline=True)


@lru_cache(maxsize=512)
def asserts_format(name: str) -> bool:
    """Whether strings are held to this format."""
    return not _newest_format(name).is_valid(_FITS_NO_FORMAT)


@lru_cache(maxsize=512)
def _newest_format(name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True, offline=True)


@lru_cache(maxsize=8)
def _newer_formats(draft: Draft) -> dict[str, Callable[..., bool]]:
    """The formats that came after a draft: a schema that uses them all the same means them."""
    old = _VALIDATORS[draft]
    return {
        name: _newest_format(name).is_valid
        for name in _FORMATS
        if old({"format": name}, validate_formats=True).is_valid(_FITS_NO_FORMAT)
    }


class Verifier:
    """Checks values against one schema: with its ``compiled`` validator, nested no deeper than ``nesting``.
    Safe from any thread."""

    __slots__ = ("_nesting", "_validator")

    def __init__(self, validator: jsonschema_rs.Validator, nesting: int) -> None:
        self._validator = validator
        self._nesting = nesting

    def failure(self, json_text: str) -> Failure | None:
        """The first way in which the text fails the schema; None if it is valid. Never raises."""
        try:
            value = decode(json_text)
        except (ValueError, RecursionError) as error:
            return Failure("json", "", "", f"not JSON: {error}"[:MESSAGE_LIMIT])
        if nests_deeper(value, self._nesting):
            return Failure("json", "", "", f"nested deeper than {self._nesting}")
        try:
            failed = next(iter(self._validator.iter_errors(value)), None)
        except ValueError as unsuitable:  # a lone surrogate, or nesting beyond the validator's limit
            return Failure("json", "", "", f"not checkable: {unsuitable}"[:MESSAGE_LIMIT])
        return None if failed is None else _failure(failed)


def decode(json_text: str) -> object:
    """The value of a JSON text, with exact numbers. Raises ``ValueError`` or ``RecursionError``."""
    return json.loads(json_text, parse_float=exact, parse_constant=_no_constant)


def nests_deeper(value: object, limit: int) -> bool:
    """Whether arrays and objects are more than ``limit`` levels deep."""
    level = [value]
    for _ in range(limit):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
        level = below
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def pointer(path: list[str | int]) -> str:
    """A path as a JSON pointer."""
    return "".join(f"/{escaped(str(step))}" for step in path)


def _failure(error: jsonschema_rs.ValidationError) -> Failure:
    return Failure(
        str(error.schema_path[-1]) if error.schema_path else error.kind.name,
        pointer(error.instance_path),
        pointer(error.schema_path),
        error.message[:MESSAGE_LIMIT],
    )


def exact(digits: str) -> Decimal:
    """The number that these digits write, exponents cut off far beyond what any bound asks."""
    mantissa, _, exponent = digits.lower().partition("e")
    number = Decimal(mantissa)
    power = number.adjusted() + int(exponent or 0)
    if number and abs(power) > _LARGEST_EXPONENT:
        limit = _LARGEST_EXPONENT if power > 0 else -_LARGEST_EXPONENT
        return number.scaleb(limit - number.adjusted())
    return Decimal(digits) if number else Decimal(0)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
