"""String formats while generating: which ones the constraint engine holds to, and patterns for others.

A format is exact here if every text the constraint lets through is one the validator takes; tests sample
that. Leap seconds, quoted e-mail addresses and internationalised host names are valid and not generated.
"""

from __future__ import annotations

NATIVE = frozenset({"duration", "ipv4", "ipv6", "uri", "uuid"})
"""Formats that llguidance itself generates, and no text beyond them."""

_YEAR_OF_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_YEAR_OF_LEAP}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_SHORT_LABELS = "^(?:[^@]*@)?[^.]{1,63}(?:\\.[^.]{1,63})*$"

# llguidance's own date and time take 30 February and any leap second, its e-mail any length, its host
# names any length and what only looks like punycode.
PATTERNS: dict[str, tuple[str, ...]] = {
    "date": (f"^{_DATE}$",),
    "time": (f"^{_TIME}$",),
    "date-time": (f"^{_DATE}T{_TIME}$",),
    "email": (
        f"^{_ATOM}(?:\\.{_ATOM})*@{_LABEL}(?:\\.{_LABEL})+$",
        "^[^@]{1,64}@[^@]{1,180}$",
        _SHORT_LABELS,
    ),
    "hostname": (f"^{_LABEL}(?:\\.{_LABEL})*$", "^.{1,253}$", _SHORT_LABELS),
}
"""Formats by patterns that all have to match."""
