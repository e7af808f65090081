"""The drafts of JSON Schema that are known here, and which keyword holds subschemas.

Data only. A schema is read in the draft it declares; one that declares none, or one that its draft's
metaschema refuses, in the first draft that accepts it (see ``check``).
"""

from __future__ import annotations

import enum


class Draft(enum.Enum):
    """A draft by its metaschema's address, without scheme and trailing ``#``."""

    DRAFT4 = "json-schema.org/draft-04/schema"
    DRAFT6 = "json-schema.org/draft-06/schema"
    DRAFT7 = "json-schema.org/draft-07/schema"
    DRAFT201909 = "json-schema.org/draft/2019-09/schema"
    DRAFT202012 = "json-schema.org/draft/2020-12/schema"

    @property
    def uri(self) -> str:
        """The value of ``$schema`` that declares the draft."""
        old = self in (Draft.DRAFT4, Draft.DRAFT6, Draft.DRAFT7)
        return f"http://{self.value}#" if old else f"https://{self.value}"

    @property
    def ref_stands_alone(self) -> bool:
        """Up to draft 7 the siblings of ``$ref`` are ignored."""
        return self in (Draft.DRAFT4, Draft.DRAFT6, Draft.DRAFT7)

    def knows(self, keyword: str) -> bool:
        """Whether the keyword means anything in this draft."""
        order = list(Draft)
        return keyword not in SINCE or order.index(self) >= order.index(SINCE[keyword])

    @classmethod
    def declared(cls, uri: object) -> Draft | None:
        """The draft a ``$schema`` value names; None for any other value."""
        if not isinstance(uri, str):
            return None
        address = uri.rstrip("#").removeprefix("http://").removeprefix("https://")
        return next((draft for draft in cls if draft.value == address), None)


ONE_SCHEMA = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is a schema (``items`` may be a list of them in older drafts)."""

LIST_OF_SCHEMAS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})

MAP_OF_SCHEMAS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose value maps names, never keywords, to schemas."""

SAME_INSTANCE = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
"""Keywords whose subschemas apply to the value itself, not to a part of it."""

DYNAMIC_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef"})

SINCE = {
    "const": Draft.DRAFT6,
    "contains": Draft.DRAFT6,
    "propertyNames": Draft.DRAFT6,
    "if": Draft.DRAFT7,
    "dependentRequired": Draft.DRAFT201909,
    "dependentSchemas": Draft.DRAFT201909,
    "unevaluatedItems": Draft.DRAFT201909,
    "unevaluatedProperties": Draft.DRAFT201909,
    "prefixItems": Draft.DRAFT202012,
}
"""The first draft in which a keyword means anything; it is an annotation in earlier ones. The validator
keeps to this too."""
