"""How far the notation of a dialect reaches: which keys it can write, and what of a schema it holds to."""

from __future__ import annotations

from server.dialects.form import Notation
from server.dialects.gemma import gemma_extent
from server.dialects.lowering import Extent
from server.dialects.nested import nested_extent
from server.dialects.raw_text import BARE_KEYS, ELEMENT_KEYS, NESTED_KEYS, Keys
from server.schema.parameters import Parameters

_KEYS = {
    Notation.ELEMENTS: ELEMENT_KEYS,
    Notation.NESTED: NESTED_KEYS,
    Notation.GEMMA: BARE_KEYS,
    Notation.PYTHONIC: BARE_KEYS,
}


def keys_of(notation: Notation) -> Keys:
    """The keys that a notation other than JSON can write."""
    return _KEYS[notation]


def extent_of(notation: Notation, parameters: Parameters) -> Extent:
    """The extent of a notation other than JSON for the parameters of a tool, whose own keys always come."""
    declared = tuple(each.key for each in parameters.declared if not keys_of(notation).writable(each.key))
    match notation:
        case Notation.GEMMA:
            extent = gemma_extent(parameters)
        case Notation.NESTED:
            extent = nested_extent(parameters)
        case _:
            extent = Extent(parameters.exact, (), 1)
    return extent._replace(unwritable=declared + extent.unwritable)
