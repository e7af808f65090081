"""What becomes of keywords about arrays and objects."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from server.schema import compiling
from server.schema.drafts import Draft
from server.schema.lowering import APPLICATORS, Lowering, Rule, Site
from server.schema.patterns import any_text, literal
from server.schema.references import escaped
from server.schema.scalars import LENGTH_LIMIT, least, most, pattern_for_engine, whole

_ALL_ITEMS = "needs all items at once"
_OTHER_KEYWORDS = "depends on what other keywords saw"
_NO_COUNTING = "the engine does not count optional keys"
_CONDITION_LIMIT = 5
_PATTERN_LIMIT = 32

# Arrays.


def _items(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if isinstance(value, list):
        _prefix(lowering, site, "items", value)
        rest = site.get("additionalItems")
        if isinstance(rest, dict | bool):
            site.out["items"] = lowering.child(site, "/additionalItems", rest, closed=True)
    else:
        site.out["items"] = lowering.child(site, "/items", value, closed=True)


def _prefix(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, list)
    site.out["prefixItems"] = [
        lowering.child(site, f"/{keyword}/{place}", each, closed=True) for place, each in enumerate(value)
    ]


def _unique(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    most_items = site.get("maxItems")
    if value is True and not (isinstance(most_items, int | float) and most_items <= 1):
        lowering.loosen(site.at, keyword, _ALL_ITEMS)


def _contains(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    counted = lowering.draft in (Draft.DRAFT201909, Draft.DRAFT202012)
    least_items = whole(site.get("minContains")) if counted and site.has("minContains") else 1
    if least_items:
        site.out["minItems"] = max(least_items, whole(site.out.get("minItems")))
    most_items = counted and site.has("maxContains")
    if (value is not True and (least_items or most_items)) or (value is True and most_items):
        lowering.loosen(site.at, keyword, _ALL_ITEMS)


def _unevaluated_items(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if site.has("items", "additionalItems") and not isinstance(site.get("items"), list):
        return
    if value is True:
        return
    if site.has(*APPLICATORS, "contains") or site.written:
        lowering.loosen(site.at, keyword, _OTHER_KEYWORDS)
    elif not site.has("additionalItems"):
        site.out["items"] = lowering.child(site, f"/{keyword}", value)


# Objects.


def _properties(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, dict)
    site.out["properties"] = {
        name: lowering.child(site, f"/properties/{escaped(name)}", each, closed=True)
        for name, each in value.items()
    }


def _required(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if isinstance(value, list):
        site.out["required"] = list(dict.fromkeys(value))


def _additional(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if not _opened(lowering, site) and (not site.has("propertyNames") or site.has("patternProperties")):
        site.out["additionalProperties"] = lowering.child(site, f"/{keyword}", value, closed=True)


def _opened(lowering: Lowering, site: Site) -> bool:
    """Whether the patterns of ``patternProperties`` can't be told apart, so that any key may come."""
    named = site.get("patternProperties")
    if not isinstance(named, dict):
        return False
    written = tuple(pattern_for_engine(lowering, pattern) for pattern in named)
    return None in written or len(written) > _PATTERN_LIMIT or not _separable(written)


@lru_cache(maxsize=1024)
def _separable(patterns: tuple[str | None, ...]) -> bool:
    if len(set(patterns)) < len(patterns):
        return False
    together: dict[str, object] = {
        "type": "object",
        "patternProperties": {str(each): {} for each in patterns},
    }
    return len(patterns) < 2 or compiling.takes(together)


def _pattern_properties(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, dict)
    if not _opened(lowering, site):
        site.out["patternProperties"] = {
            str(pattern_for_engine(lowering, pattern)): lowering.child(
                site, f"/{keyword}/{escaped(pattern)}", each, closed=True
            )
            for pattern, each in value.items()
        }
        return
    lowering.loosen(site.at, keyword, "patterns that may match the same key, or that the engine lacks")
    if site.get("additionalProperties") not in (None, True):
        lowering.loosen(site.at, "additionalProperties", "goes by patternProperties")


def _property_names(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """Names by a pattern or a list become ``patternProperties`` or ``properties``."""
    rest = site.get("additionalProperties")
    rest = rest if isinstance(rest, dict | bool) else True
    declared = site.get("properties")
    names = (any_text(0, ""),) if value is True or value == {} else _names(lowering, value)
    patterned = site.has("patternProperties")
    if names is None or patterned or (declared and rest is not True):
        if not patterned:
            site.out["additionalProperties"] = lowering.child(site, "/additionalProperties", rest)
        lowering.loosen(site.at, keyword, "no pattern or list of names")
        return
    lowered_rest = lowering.child(site, "/additionalProperties", rest)
    site.also({"patternProperties": dict.fromkeys(names, lowered_rest), "additionalProperties": False})


def _names(lowering: Lowering, schema: object) -> tuple[str, ...] | None:
    """One pattern, for the engine, for the names that a schema of names admits; none for no names."""
    if schema is False:
        return ()
    if not isinstance(schema, dict) or schema.get("type", "string") != "string":
        return None
    said = set(schema) - {"type", "description"}
    values = [schema.get("const")] if said == {"const"} else schema.get("enum") if said == {"enum"} else None
    if isinstance(values, list):
        return _one_pattern(each for each in values if isinstance(each, str))
    if said == {"pattern"}:
        pattern = pattern_for_engine(lowering, str(schema["pattern"]))
        return None if pattern is None else (pattern,)
    if said <= {"minLength", "maxLength"}:
        highest = schema.get("maxLength")
        if highest is None or highest <= LENGTH_LIMIT:
            return (any_text(whole(schema.get("minLength")), "" if highest is None else int(highest)),)
    return None


def _one_pattern(names: Iterable[str]) -> tuple[str, ...]:
    choices = "|".join(literal(name) for name in names)
    return (f"^(?:{choices})$",) if choices else ()


def _least_properties(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, int | float)
    required = site.get("required")
    if value <= (len(set(required)) if isinstance(required, list) else 0):
        return
    site.out["minProperties"] = 1
    if value > 1:
        lowering.loosen(site.at, keyword, _NO_COUNTING)


def _most_properties(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, int | float)
    declared, required = site.get("properties"), site.get("required")
    names = set(declared) if isinstance(declared, dict) else set()
    needed = set(required) if isinstance(required, list) else set()
    closed = site.get("additionalProperties") is False and not site.has("patternProperties")
    if closed and len(names) <= value:
        return
    if names <= needed and value <= LENGTH_LIMIT:
        site.out["maxProperties"] = int(value)
    else:
        lowering.loosen(site.at, keyword, _NO_COUNTING)


def _unevaluated_properties(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if value is True or site.has("additionalProperties"):
        return
    if site.has(*APPLICATORS) or site.written or _opened(lowering, site):
        lowering.loosen(site.at, keyword, _OTHER_KEYWORDS)
    else:
        site.out["additionalProperties"] = lowering.child(site, f"/{keyword}", value)


def _dependents(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``dependentRequired``, ``dependentSchemas``, and ``dependencies``, which may be either."""
    assert isinstance(value, dict)
    if len(value) > _CONDITION_LIMIT:
        lowering.loosen(site.at, keyword, f"more than {_CONDITION_LIMIT} conditions")
    for name, needed in list(value.items())[:_CONDITION_LIMIT]:
        if isinstance(needed, list):
            if not needed:
                continue
            present: dict[str, object] = {"required": list(dict.fromkeys([name, *needed]))}
        else:
            lowered = lowering.child(site, f"/{keyword}/{escaped(name)}", needed)
            present = {"required": [name], "allOf": [lowered]}
        site.also({"anyOf": [present, {"properties": {name: False}}]})


RULES: dict[str, Rule] = {
    "additionalProperties": _additional,
    "contains": _contains,
    "dependencies": _dependents,
    "dependentRequired": _dependents,
    "dependentSchemas": _dependents,
    "items": _items,
    "maxItems": most,
    "maxProperties": _most_properties,
    "minItems": least,
    "minProperties": _least_properties,
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique,
}
