"""What a client says about thinking, as the variables that chat templates know for it.

Templates have a name of their own for each switch. A request's one switch sets every name its template
mentions; a name that the client gives itself is passed on as it is.
"""

from __future__ import annotations

from server.turn import TemplateValue, Turn

_SWITCHES: dict[str, tuple[TemplateValue, TemplateValue]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_mode": ("enabled", "disabled"),
    "thinking_option": ("on", "off"),
}
"""Names of the switch, and what they are when it is on and off."""
_KEPT = {
    "preserve_thinking": True,
    "keep_past_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
"""Names of the switch for thoughts of earlier turns, and what they are where those are kept."""
_LEAST = ("no_think", "none", "minimal")
"""Words for no effort at all, the first that a template knows; else it is low."""
_STRONGEST = ("xhigh", "max")
"""Words beyond high, where a template knows them."""

_GRADES = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}
"""Efforts as the three that a template with ``thinking_effort`` has."""


def template_variables(turn: Turn, known: frozenset[str]) -> dict[str, TemplateValue]:
    """The variables for a template that has the ``known`` words, the client's own and those that follow from
    what it asks."""
    own: dict[str, TemplateValue] = dict(turn.template_variables)
    found: dict[str, TemplateValue] = {}
    switched = _switched(turn, own)
    if switched is not None:
        found |= {name: values[not switched] for name, values in _SWITCHES.items() if name in known}
        if not switched and "thinking_budget" in known:
            found["thinking_budget"] = 0
    elif turn.reasoning_budget is not None and "thinking_budget" in known:
        found["thinking_budget"] = turn.reasoning_budget
    if isinstance(kept := own.get("preserve_thinking"), bool):
        found |= {name: kept is value for name, value in _KEPT.items() if name in known}
    effort = turn.reasoning_effort or {False: "none", True: "high", None: None}[switched]
    if effort is not None and "reasoning_effort" in known:
        found["reasoning_effort"] = _effort(effort, known)
    if effort in _GRADES and "thinking_effort" in known:
        found["thinking_effort"] = _GRADES[effort]
    return found | own


def thinking_is_off(turn: Turn) -> bool:
    """Whether the client wants no thoughts."""
    return _switched(turn, dict(turn.template_variables)) is False


def _switched(turn: Turn, own: dict[str, TemplateValue]) -> bool | None:
    """Whether thinking is on or off, None where the client leaves that to the template."""
    for name in ("enable_thinking", "thinking"):
        if isinstance(own.get(name), bool):
            return bool(own[name])
    if turn.reasoning_effort in (None, "minimal"):
        return False if turn.reasoning_budget == 0 else None
    return turn.reasoning_effort != "none"


def _effort(effort: str, known: frozenset[str]) -> str:
    """An effort in the words that a template knows."""
    if effort in ("none", "minimal"):
        return next((word for word in _LEAST if word in known), "low")
    if effort in _STRONGEST and effort not in known:
        return "high"
    return "low" if effort == "medium" and "no_think" in known else effort
