"""What a request says about thinking."""

from __future__ import annotations

from collections.abc import Iterator

from server.api import limits
from server.api.fields import Field
from server.turn import REASONING_EFFORTS, TEMPLATE_VARIABLES, TemplateValue

_BUDGETS = ("thinking_budget_tokens", "thinking_token_budget", "reasoning_budget")


def reasoning_effort(root: Field) -> str | None:
    field = root.get("reasoning_effort")
    return field.word(REASONING_EFFORTS) if field else None


def reasoning_budget(root: Field) -> int | None:
    """The tokens that thoughts may have, by any of its names; -1 is any number."""
    given = [each.integer(-1, limits.TOKENS) for each in map(root.get, _BUDGETS) if each]
    return given[0] if given else None


def template_variables(root: Field) -> Iterator[tuple[str, TemplateValue]]:
    """``chat_template_kwargs``, and ``enable_thinking`` where some clients put it."""
    switch = root.get("enable_thinking")
    if switch is not None:
        yield "enable_thinking", switch.flag()
    given = root.get("chat_template_kwargs")
    for name, value in given.object().items() if given else ():
        field = Field(value, f"chat_template_kwargs.{name}")
        if name not in TEMPLATE_VARIABLES:
            known = ", ".join(TEMPLATE_VARIABLES)
            raise field.wrong(f"is no variable that is passed to a chat template; those are {known}")
        if not isinstance(value, bool | int | str):
            raise field.mistyped("true, false, an integer or a string")
        if isinstance(value, str):
            field.short_text(limits.TEMPLATE_VALUE)
        elif not isinstance(value, bool):
            field.integer(-1, limits.TOKENS)
        yield name, value
