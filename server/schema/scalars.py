"""What becomes of keywords about any value, numbers and strings."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache

from server.schema import compiling
from server.schema.drafts import Draft
from server.schema.formats import NATIVE, PATTERNS
from server.schema.lowering import Lowering, Rule, Site, fractions
from server.schema.patterns import translated, unsaid
from server.schema.references import Schema
from server.schema.verify import asserts_format

LENGTH_LIMIT = 2_000
"""Upper bounds on lengths and counts above this are loosened."""

_DOUBLE_EXACT = 2**53
_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_SMALLEST = 1e-9
_MULTIPLE_DIGITS = 5
_NO_FORM = "a bound the engine has no exact form for"
_STRUCTURED_LIMIT = 32_000


def whole(value: object) -> int:
    """A count, or 0 where there is none."""
    return int(value) if isinstance(value, int | float) else 0


def pattern_for_engine(lowering: Lowering, pattern: str) -> str | None:
    """The pattern in the engine's language; None where it has none or does not compile it, or where
    enough patterns have been tried."""
    return _tried_pattern(pattern) if lowering.may_try(pattern) else None


@lru_cache(maxsize=4096)
def _tried_pattern(pattern: str) -> str | None:
    written = translated(pattern)
    if written is not None and compiling.takes({"type": "string", "pattern": written}):
        return written
    return None


@lru_cache(maxsize=1024)
def _takes_divisor(value: float) -> bool:
    digits = str(value).replace(".", "").strip("0")
    return "e" not in digits and len(digits) <= _MULTIPLE_DIGITS and compiling.takes({"multipleOf": value})


def most(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``maxLength`` and ``maxItems``."""
    assert isinstance(value, int | float)
    if value <= LENGTH_LIMIT:
        site.out[keyword] = int(value)
    else:
        lowering.loosen(site.at, keyword, f"more than {LENGTH_LIMIT}")


def least(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``minLength`` and ``minItems``, which ``contains`` may have raised."""
    site.out[keyword] = max(whole(value), whole(site.out.get(keyword)))


def _type(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    site.out[keyword] = value


def _listed(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``const`` and ``enum``."""
    if not _sayable(value):
        lowering.loosen(
            site.at, keyword, "an integer beyond 63 bits, a number that is no double, or a control character"
        )
    elif _structured(value) and len(json.dumps(value)) > _STRUCTURED_LIMIT:
        lowering.loosen(site.at, keyword, f"arrays and objects of more than {_STRUCTURED_LIMIT} characters")
    else:
        site.out[keyword] = value


def _structured(value: object) -> bool:
    """Whether more than plain values are listed (a few plain ones in an array do not count)."""
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(each, dict | list) for each in value)
    )


def _sayable(value: object) -> bool:
    if isinstance(value, str):
        return not unsaid(value)
    if isinstance(value, Decimal):
        return False
    if isinstance(value, int):
        return _INT64_LEAST <= value <= _INT64_MOST  # the engine rounds larger ones
    if isinstance(value, list):
        return all(_sayable(each) for each in value)
    return not isinstance(value, dict) or all(_sayable(each) for pair in value.items() for each in pair)


def _bound(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """The engine keeps bounds as doubles, and those of integers as 64 bits."""
    if isinstance(value, bool):
        return  # draft 4: the bound is in the other keyword
    if isinstance(value, Decimal):
        lowering.loosen(site.at, keyword, _NO_FORM)
        return
    assert isinstance(value, int | float)
    exclusive = f"exclusive{keyword[0].upper()}{keyword[1:]}"
    written = exclusive if site.get(exclusive) is True else keyword
    small = abs(value) <= _DOUBLE_EXACT and (value == 0 or abs(value) >= _SMALLEST)
    largest = site.get("type") == "integer" and (written, value) == ("maximum", _INT64_MOST)
    if not (small or largest):
        lowering.loosen(site.at, keyword, _NO_FORM)
    elif written.startswith("exclusive") and _next_to_fraction(lowering, site, value):
        # Between 1 (excluded) and 1.5 the engine writes 1 all the same.
        lowering.loosen(site.at, keyword, "an excluded whole number next to a fraction")
        site.also({written.removeprefix("exclusive").lower(): value})
    else:
        site.out[written] = value


def _next_to_fraction(lowering: Lowering, site: Site, value: float) -> bool:
    if site.get("type") == "integer" or not float(value).is_integer():
        return False
    others = lowering.fractions if lowering.merges else fractions([site.node])
    return any(abs(value - each) < 1 for each in others)


def _multiple(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if isinstance(value, int | float) and lowering.may_try(f"multipleOf {value}") and _takes_divisor(value):
        site.out["multipleOf"] = value
    else:
        lowering.loosen(site.at, keyword, "a divisor the engine does not take")


def _pattern(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, str)
    written = pattern_for_engine(lowering, value)
    if written is None:
        lowering.loosen(site.at, keyword, "the engine's regular expressions do not have this")
    else:
        site.out["pattern"] = written


def _format(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, str)
    if not asserts_format(value):
        return
    if value in NATIVE:
        site.out["format"] = value
    elif value in PATTERNS:
        patterns: list[Schema] = [{"pattern": _tried_pattern(each)} for each in PATTERNS[value]]
        site.also(*patterns)
    else:
        lowering.loosen(site.at, keyword, "a format only the validator knows")


def _content(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``contentEncoding`` and ``contentMediaType``: assertions in drafts 6 and 7 only."""
    if lowering.draft in (Draft.DRAFT6, Draft.DRAFT7):
        lowering.loosen(site.at, keyword, "only the validator decodes texts")


RULES: dict[str, Rule] = {
    "const": _listed,
    "contentEncoding": _content,
    "contentMediaType": _content,
    "enum": _listed,
    "format": _format,
    "multipleOf": _multiple,
    "pattern": _pattern,
    "type": _type,
    "maxLength": most,
    "minLength": least,
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _bound),
}
