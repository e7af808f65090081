"""Bytes of a request body to decoded JSON, strictly; what the JSON means is decided elsewhere.

Refused are: another content type (a page of another origin can post only the simple ones without asking),
compression, more bytes than allowed (noticed while they arrive), bytes that are not UTF-8, what only
Python takes for JSON (NaN, Infinity), numbers that no double holds, a key twice in one object, lone
surrogates, and deep nesting.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from server.api import limits
from server.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMediaType


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer."""


async def read(request: Request, most: int, timeout: float) -> bytes:
    """The raw body of a JSON request, of at most ``most`` bytes, received within ``timeout`` seconds."""
    _check_headers(request, most)
    try:
        async with asyncio.timeout(timeout):
            return await _receive(request.receive, most)
    except TimeoutError:
        raise RequestTimeout(f"the request body did not arrive within {timeout:g} s") from None


def _check_headers(request: Request, most: int) -> None:
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    charset = [each.strip() for each in parameters if each.strip()]
    if kind.strip() != "application/json" or any(each not in _CHARSETS for each in charset):
        raise UnsupportedMediaType("the content type must be application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("compressed bodies are not accepted")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise _too_large(most)


async def _receive(receive: Receive, most: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the request body is larger than {most} bytes")


def parse(body: bytes) -> Any:
    """The JSON value. Raises ``InvalidRequest``; never anything else, whatever the bytes."""
    if nested_deeper(body, limits.JSON_DEPTH):
        raise _invalid(f"nesting deeper than {limits.JSON_DEPTH} levels")
    try:
        text = body.decode("utf-8")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _invalid(
            f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
        ) from error
    except ValueError as error:  # the interpreter's own limit on the digits of an integer
        raise _invalid("a number has too many digits") from error
    except RecursionError as error:
        raise _invalid("nesting is too deep") from error
    if _SURROGATE.search(body):
        _refuse_lone_surrogates(value)
    return value


def nested_deeper(body: bytes, depth: int) -> bool:
    """Whether JSON text nests deeper than ``depth``, in linear time: strings are cut out, then the
    brackets counted, each as one more or one less. What is not JSON may count as anything that a decoder
    does not get to."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    bare = _STRING.sub(b"", body.replace(b"\\\\", b"").replace(b'\\"', b""))
    steps = bare.translate(_STEPS, delete=_NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > depth


_CHARSETS = ("charset=utf-8", 'charset="utf-8"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STRING = re.compile(rb'"[^"]*"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {reason}", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _invalid("an object has the same key twice")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("a number is too large")
    return value


def _no_constant(name: str) -> float:
    raise _invalid(f"{name} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)


def _refuse_lone_surrogates(value: Any) -> None:
    for path, text in _strings(value, ""):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            message = f"{path or 'the body'} holds half of a surrogate pair, which is no character"
            raise InvalidRequest(message, code="invalid_unicode", param=path or None) from None


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string of a value with its path; a key counts as standing at its object. Keys that are no
    plain names are left out of paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _strings(each, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield path, key
            named = key if key.isidentifier() and len(key) <= limits.TOOL_NAME else ""
            yield from _strings(each, f"{path}.{named}" if path and named else path or named)
