"""Where the subschemas of a document are, and what its references point at.

Resolves inside the document only: pointers, anchors, and identifiers of embedded schemas. Nothing is
ever fetched; any address outside the document is refused, those of published metaschemas included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urldefrag, urljoin

from server.schema.drafts import DYNAMIC_REFERENCES, LIST_OF_SCHEMAS, MAP_OF_SCHEMAS, ONE_SCHEMA, Draft

Schema = dict[str, object] | bool
"""A schema as decoded JSON."""


class Remote(Exception):
    """The reference leaves the document."""


class Dangling(Exception):
    """The reference points at nothing, or at something that is not a schema."""


def escaped(token: str) -> str:
    """A name as one step of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def place_of(text: str, value: object, pointer: str = "") -> str | None:
    """The JSON pointer of the first string, or named value, that holds ``text``."""
    if isinstance(value, str):
        return pointer if text in value else None
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        place = f"{pointer}/{escaped(str(key))}"
        found = place if text in str(key) else place_of(text, each, place)
        if found is not None:
            return found
    return None


def children(schema: dict[str, object]) -> Iterator[tuple[str, str, Schema]]:
    """The direct subschemas as (keyword, pointer from here, subschema); whatever is in a schema's
    place but is none (a list of names under ``dependencies``) is left out."""
    for keyword, value in schema.items():
        if keyword in MAP_OF_SCHEMAS and isinstance(value, dict):
            for name, each in value.items():
                if isinstance(each, dict | bool):
                    yield keyword, f"/{keyword}/{escaped(name)}", each
        elif keyword in LIST_OF_SCHEMAS and isinstance(value, list):
            for place, each in enumerate(value):
                if isinstance(each, dict | bool):
                    yield keyword, f"/{keyword}/{place}", each
        elif keyword in ONE_SCHEMA and isinstance(value, dict | bool):
            yield keyword, f"/{keyword}", value


@dataclass(slots=True)
class Index:
    """Every subschema of a document by its JSON pointer. ``targets`` maps (pointer of the referring
    schema, keyword) to the pointer referred to."""

    root: Schema
    draft: Draft
    schemas: dict[str, Schema] = field(default_factory=dict)
    targets: dict[tuple[str, str], str] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    """Targets that are no place for a schema by the metaschema (``#/components/x``)."""
    _bases: dict[str, str] = field(default_factory=dict)
    _resources: dict[str, str] = field(default_factory=dict)
    _anchors: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._resources[""] = ""
        self._add("", self.root, "")

    def resolve(self) -> Iterator[tuple[str, str, str]]:
        """Resolves every reference, and yields those that cannot be as (pointer, keyword, reason).
        Raises nothing; ``Remote`` ones have the reason ``remote``."""
        seen: set[str] = set()
        while len(seen) < len(self.schemas):
            for pointer in [each for each in self.schemas if each not in seen]:
                seen.add(pointer)
                for keyword, value in _references(self.schemas[pointer]):
                    try:
                        self.targets[pointer, keyword] = self._target(pointer, value)
                    except Remote:
                        yield pointer, keyword, "remote"
                    except Dangling:
                        yield pointer, keyword, "dangling"

    def _add(self, pointer: str, schema: Schema, base: str) -> None:
        if isinstance(schema, dict):
            base = self._identify(pointer, schema, base)
        self.schemas[pointer] = schema
        self._bases[pointer] = base
        if isinstance(schema, dict):
            for _, below, each in children(schema):
                self._add(pointer + below, each, base)

    def _identify(self, pointer: str, schema: dict[str, object], base: str) -> str:
        if self.draft.ref_stands_alone and "$ref" in schema:
            return base
        given = schema.get("id" if self.draft is Draft.DRAFT4 else "$id")
        if isinstance(given, str):
            address, fragment = urldefrag(_joined(base, given))
            if fragment and self.draft.ref_stands_alone:
                self._anchors[base, fragment] = pointer
            else:
                base = address
                self._resources.setdefault(base, pointer)
                if not pointer:
                    self._resources[""] = ""
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault((base, name), pointer)
        return base

    def _target(self, pointer: str, reference: str) -> str:
        address, fragment = urldefrag(_joined(self._bases[pointer], reference))
        fragment = unquote(fragment)
        if address not in self._resources:
            raise Remote
        if fragment and not fragment.startswith("/"):
            anchored = self._anchors.get((address, fragment))
            if anchored is None:
                raise Dangling
            return anchored
        return self._located(self._resources[address], fragment)

    def _located(self, start: str, fragment: str) -> str:
        place: object = self.schemas[start]
        for token in fragment.split("/")[1:]:
            place = _step(place, token.replace("~1", "/").replace("~0", "~"))
        if not isinstance(place, dict | bool):
            raise Dangling
        # A step may be escaped in more than one way; the own form is the key.
        found = start + "".join(
            "/" + escaped(token.replace("~1", "/").replace("~0", "~")) for token in fragment.split("/")[1:]
        )
        if found not in self.schemas:
            self.outside.append(found)
            self._add(found, place, self._bases[start])
        return found


def _references(schema: Schema) -> Iterator[tuple[str, str]]:
    if isinstance(schema, dict):
        for keyword in ("$ref", *DYNAMIC_REFERENCES):
            value = schema.get(keyword)
            if isinstance(value, str):
                yield keyword, value


def _joined(base: str, reference: str) -> str:
    try:
        # urljoin leaves addresses of schemes it does not know (urn:) as they are, fragments too.
        if reference.startswith("#"):
            return urldefrag(base)[0] + reference
        return urljoin(base, reference)
    except ValueError as error:
        raise Remote from error


def _step(place: object, token: str) -> object:
    if isinstance(place, dict) and token in place:
        return place[token]
    if isinstance(place, list) and token.isascii() and token.isdigit() and int(token) < len(place):
        return place[int(token)]
    raise Dangling
