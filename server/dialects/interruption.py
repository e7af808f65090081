"""Whether a call may end a thought that nothing has closed, and what shows it.

Models forget to close a thought before a call, and they quote calls in thoughts. A marker that is a token is
not quoted by chance; where it is text, it is a call's only with the name of a tool of the request behind it.
"""

from __future__ import annotations

import enum

from server.dialects.bound import BoundDialect
from server.dialects.form import Literal, Marker, behind_name, span_form


class Interruption(enum.Enum):
    """What of a call shows that it ends a thought."""

    TOKEN = "a token in its opener"
    NAME = "the name of a tool after its opener"
    OPENER = "its opener, since the name can't be told from longer ones as text"


def interruption(bound: BoundDialect) -> Interruption | None:
    """None where calls open with nothing that is theirs alone."""
    opener = bound.dialect.markers.get("OPEN")
    if not opener:
        return None
    if bound.split(opener).rest:
        return Interruption.TOKEN
    form = span_form(bound.dialect)
    items = (*form.before, *form.call)
    named = items[: behind_name(items)]
    spelled = [item.text for item in named if isinstance(item, Literal | Marker)]
    if not named or any(bound.split(text).rest for text in spelled):
        return Interruption.OPENER
    return Interruption.NAME
