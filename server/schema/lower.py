"""From a checked schema to one that the constraint engine enforces.

The lowered schema is in the subset that llguidance's ``%json`` compiles without error. Where it admits more
than the client's, the keyword is *loosened*, the reason is kept, and ``verify`` decides on the finished
value. ``exact`` says that nothing was: every value that can be generated is valid.

A valid value is admitted as it is canonically written: keys in the order of ``properties``, then of
``required``, then any others; integers without fraction; other numbers with the digits that ``multipleOf``
and fractional bounds ask for; text with no needless escapes and no control characters but those that JSON
has a short escape for. Separators are the ones models write.

Order of keys: the engine writes declared keys in one fixed order. Any order would need n! alternatives (2**n
states), and the prompt shows the model the same order, so the order is the schema's.

Undeclared keys: JSON Schema lets an object have keys that ``properties`` does not name, unless told not to.
A tool that declares its arguments has no use for others, and small models invent them. So in a tool's
arguments an object with ``properties`` and no word on other keys gets no others, even where the tool
declares none (a free-form object, without ``properties``, stays free). The check of the finished value is
the client's schema as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from server.schema import combinations, compiling, containers, scalars
from server.schema.check import Checked
from server.schema.lowering import Loosened, Lowering, Rule, Site

RULES: Mapping[str, Rule] = {**combinations.RULES, **containers.RULES, **scalars.RULES}
"""What becomes of each keyword that says something of values."""
TOO_MUCH = "more than the constraint engine takes"
"""The reason of keywords that are given up wherever they stand."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema for the constraint engine. ``text`` is it as the engine is given it, ``literals`` every
    text in it that a model may be made to write: names, listed values, patterns."""

    schema: dict[str, object]
    exact: bool
    loosened: tuple[Loosened, ...]
    text: str = field(repr=False)
    literals: tuple[str, ...] = field(repr=False)


def lower(checked: Checked, *, as_object: bool = False) -> Lowered:
    """Rewrites a schema. With ``as_object`` every generable value is an object, as a tool's arguments
    are, and has no undeclared keys. Never refuses: the last resort is any value, or any object."""
    # Complements, and objects closed against each other, may be more than the engine can take.
    for closed, complements in dict.fromkeys(((as_object, True), (False, True), (False, False))):
        schema, loosened = _lowered(checked, as_object=as_object, closed=closed, complements=complements)
        if compiling.takes(schema):
            break
    else:
        schema, lost = _reduced(schema, as_object=as_object)
        loosened += [Loosened("", each, TOO_MUCH) for each in lost]
    text = compiling.engine_text(schema)
    return Lowered(schema, not loosened, tuple(dict.fromkeys(loosened)), text, tuple(_literals(schema)))


def _lowered(
    checked: Checked, *, as_object: bool, closed: bool, complements: bool
) -> tuple[dict[str, object], list[Loosened]]:
    lowering = Lowering(checked, RULES, complements=complements)
    root = lowering.schema(Site("", checked.schema, closed))
    whole: dict[str, object] = {"allOf": [root]} if isinstance(root, bool) else dict(root)
    if as_object:
        whole["type"] = "object"
    lowering.follow_references()
    if lowering.definitions:
        whole["$defs"] = lowering.definitions
    return whole, lowering.loosened


def _reduced(schema: dict[str, object], *, as_object: bool) -> tuple[dict[str, object], list[str]]:
    for reduced, lost in compiling.reductions(schema):
        if compiling.takes(reduced):
            return reduced, lost
    return {"type": "object"} if as_object else {}, [""]


def _literals(schema: object) -> Iterator[str]:
    """Names and texts at any depth, patterns without their escapes."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, list):
        for each in schema:
            yield from _literals(each)
    elif isinstance(schema, dict):
        for name, each in schema.items():
            yield name.replace("\\", "")
            yield from _literals(
                each.replace("\\", "") if name == "pattern" and isinstance(each, str) else each
            )
