"""The rules of Python's keyword arguments, for the constraint.

Values are written as JSON, which Python's readers of these models take too; texts, true, false and null of a
parameter also in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.dialects.grammar import lark_string
from server.dialects.order import Gaps, any_order_limit, order_rules
from server.dialects.raw_text import BARE_KEYS, free_key
from server.schema import compiling
from server.schema.parameters import Parameters, Value

_SPELLED = {"boolean": ("True", "False"), "null": ("None",)}
_IN_APOSTROPHES = "/'([^'\\\\\\x00-\\x1f]|\\\\['\"\\\\nrtbf])*'/"


class PythonicRules:
    """Writes the rules for the keyword arguments of one tool after another."""

    def __init__(self, tools: int) -> None:
        self._limit = any_order_limit(tools)

    def rules(self, name: str, parameters: Parameters) -> Iterator[str]:
        possible = [each for each in parameters.declared if each.value.types]
        for place, each in enumerate(possible):
            yield from self._parameter(f"{name}_{place}", lark_string(f"{each.key}="), each.value)
        free = ""
        if parameters.rest is not None:
            free = f"{name}_free"
            yield free_key(f"{free.upper()}_KEY", BARE_KEYS, [each.key for each in parameters.declared])
            yield from self._parameter(free, f'{free.upper()}_KEY "="', parameters.rest)
        required = [each.required for each in possible]
        yield from order_rules(name, required, free, Gaps(between=", "), self._limit)

    def _parameter(self, name: str, before: str, value: Value) -> Iterator[str]:
        yield f"{name}_json: %json {compiling.engine_text(dict(value.whole))}"
        forms = [f"{name}_json"]
        if value.plain:
            words = [word for kind, spelled in _SPELLED.items() if kind in value.types for word in spelled]
            forms += map(lark_string, words)
            forms += [_IN_APOSTROPHES] if "string" in value.types else []
        yield f"{name}: {before} ({' | '.join(forms)})"
