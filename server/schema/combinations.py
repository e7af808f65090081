"""What becomes of keywords that combine schemas: references, ``allOf``, ``oneOf``, ``not``, ``if``."""

from __future__ import annotations

from server.schema import algebra
from server.schema.lowering import Lowering, Rule, Site
from server.schema.patterns import other_than
from server.schema.references import Schema

_BRANCH_LIMIT = 32
_COMPLEMENT_LIMIT = 8
_EXCLUDED_TEXT_LIMIT = 2_000


def _reference(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    if not site.written:
        target = lowering.index.targets[site.at, keyword]
        site.also(lowering.reference(target, closed=site.closed and site.only(keyword)))


def _dynamic(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    lowering.loosen(site.at, keyword, "its target depends on the path that led here")


def _all(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    assert isinstance(value, list)
    site.also(*_branches(lowering, site, keyword, value, closed=len(value) == 1))


def _any(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    branches = _branches(lowering, site, keyword, value, closed=True)
    if not any(branch is True or branch == {} for branch in branches):
        _either(site, branches)


def _either(site: Site, branches: list[Schema]) -> None:
    if "anyOf" in site.out:
        site.also({"anyOf": branches})
    else:
        site.out["anyOf"] = branches


def _branches(lowering: Lowering, site: Site, keyword: str, value: object, *, closed: bool) -> list[Schema]:
    assert isinstance(value, list)
    closed = closed and site.only(keyword)
    return [
        lowering.child(site, f"/{keyword}/{place}", each, closed=closed) for place, each in enumerate(value)
    ]


def _one(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``oneOf``: branches that may overlap each get "and not the others"."""
    assert isinstance(value, list)
    overlapping = _overlapping(lowering, site, value)
    branches = _branches(lowering, site, keyword, value, closed=not any(overlapping))
    exact = True
    for place, others in enumerate(overlapping):
        for other in others:
            refused = None
            if len(value) <= _COMPLEMENT_LIMIT:
                refused = lowering.complement(site, f"/{keyword}/{other}")
            if refused is None:
                exact = False
            else:
                branches[place] = {"allOf": [branches[place], refused]}
    if not exact:
        lowering.loosen(site.at, keyword, "branches that may overlap")
    _either(site, branches)


def _overlapping(lowering: Lowering, site: Site, value: list[object]) -> list[list[int]]:
    """For each branch the other ones that some value may satisfy with it."""
    places = range(len(value))
    if site.written:
        return [[other for other in places if other != place] for place in places]
    ats = [f"{site.at}/oneOf/{place}" for place in places]
    apart: set[tuple[int, int]] = set()
    tags = [_tags(lowering, at, objects_only=site.objects_only()) for at in ats]
    for left in places:
        for right in range(left + 1, len(value)):
            if _told_apart(tags[left], tags[right]) or (
                len(value) <= _BRANCH_LIMIT
                and algebra.disjoint(lowering.index, site.at, ats[left], ats[right])
            ):
                apart |= {(left, right), (right, left)}
    return [[other for other in places if other != place and (place, other) not in apart] for place in places]


def _tags(lowering: Lowering, at: str, *, objects_only: bool) -> dict[str, frozenset[str]]:
    """The values that required properties of a branch may have, where they are listed. Only for
    branches that admit objects alone."""
    schema = lowering.index.schemas[at]
    for _ in range(_BRANCH_LIMIT):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        at = lowering.index.targets[at, "$ref"]
        schema = lowering.index.schemas[at]
    if not isinstance(schema, dict) or not (objects_only or schema.get("type") == "object"):
        return {}
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    tags: dict[str, frozenset[str]] = {}
    for name in required:
        listed = _listed(properties.get(name))
        if listed is not None:
            tags[name] = frozenset(algebra.scalar_key(each) for each in listed)
    return tags


def _listed(schema: object) -> list[object] | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _told_apart(left: dict[str, frozenset[str]], right: dict[str, frozenset[str]]) -> bool:
    return any(name in right and not (values & right[name]) for name, values in left.items())


def _not(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    texts = _excluded_texts(value)
    if texts is not None:
        site.also({"pattern": other_than(texts)})
        return
    refused = lowering.complement(site, "/not")
    if refused is None:
        lowering.loosen(site.at, keyword, "a complement the engine has no form for")
    else:
        site.also(refused)


def _excluded_texts(schema: object) -> list[str] | None:
    if not isinstance(schema, dict) or not set(schema) <= {"const", "enum"} or len(schema) != 1:
        return None
    listed = _listed(schema)
    if listed is None:
        return None
    texts = [each for each in listed if isinstance(each, str)]
    short = sum(len(each) for each in texts) <= _EXCLUDED_TEXT_LIMIT
    return texts if len(texts) == len(listed) and short else None


def _if(lowering: Lowering, site: Site, keyword: str, value: object) -> None:
    """``if`` and ``then``, or not ``if`` and ``else``."""
    if not site.has("then", "else"):
        return
    refused = lowering.complement(site, "/if")
    if refused is None:
        lowering.loosen(site.at, keyword, "a condition whose complement the engine has no form for")
        return
    yes: list[Schema] = [lowering.child(site, "/if", value)]
    no: list[Schema] = [refused]
    for branch, word in ((yes, "then"), (no, "else")):
        then = site.get(word)
        if isinstance(then, dict | bool):
            branch.append(lowering.child(site, f"/{word}", then))
    site.also({"anyOf": [{"allOf": yes}, {"allOf": no}]})


RULES: dict[str, Rule] = {
    "$dynamicRef": _dynamic,
    "$recursiveRef": _dynamic,
    "$ref": _reference,
    "allOf": _all,
    "anyOf": _any,
    "if": _if,
    "not": _not,
    "oneOf": _one,
}
