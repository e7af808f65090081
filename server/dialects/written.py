"""Arguments as models write them in notations other than JSON, for calls in a history."""

from __future__ import annotations

import json

import msgspec

ITEM = "item"
"""The name of the elements of an array."""
_TYPES = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
"""Types of JSON values by how their text begins; all others are numbers."""


def type_of(json_text: str) -> str:
    """The type of a value by its JSON, which begins without whitespace."""
    return _TYPES.get(json_text[:1], "number")


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()


def gemma_text(quote: str, arguments: str) -> str:
    """A JSON object in Gemma's notation, without white space; ``quote`` is the marker around texts."""
    return _gemma(quote, json.loads(arguments, parse_float=_Digits, parse_int=_Digits))


def _gemma(quote: str, value: object) -> str:
    match value:
        case _Digits():
            return str(value)
        case str():
            return f"{quote}{value}{quote}"
        case list():
            return f"[{','.join(_gemma(quote, each) for each in value)}]"
        case dict():
            return "{" + ",".join(f"{key}:{_gemma(quote, each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def nested_text(tag: str, arguments: str) -> str:
    """A JSON object as nested elements, up to and with what begins the tag that closes it; ``tag`` begins
    every tag. An empty array, an empty object and an empty text are written alike."""
    return _nested(tag, json.loads(arguments, parse_float=_Digits, parse_int=_Digits))


def _nested(tag: str, value: object) -> str:
    match value:
        case str():
            return value + tag
        case dict():
            return "".join(_element(tag, key, each) for key, each in value.items()) + tag
        case list():
            return "".join(_element(tag, ITEM, each) for each in value) + tag
    return json.dumps(value) + tag


def _element(tag: str, key: str, value: object) -> str:
    return f"{tag}{key}>{_nested(tag, value)}/{key}>"


def pythonic_text(arguments: str) -> str:
    """A JSON object as keyword arguments, their values as they are."""
    values = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    return ", ".join(f"{key}={bytes(value).decode()}" for key, value in values.items())
