"""Finds out at load what a template needs, by rendering small conversations and looking for their words.

A need is found when the template refuses a conversation or drops a part of it. Nothing here knows any
template by name. Each question is asked with what the earlier answers call for already done, so the order
of the questions matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from server.dialects.dialect import Dialect
from server.errors import TemplateFailed
from server.prompt.history import conversation
from server.prompt.mending import Arguments, Needs, System, mended
from server.prompt.template import ChatTemplate
from server.prompt.tools import shown_tools
from server.turn import Message, Tool, ToolCall

# Words that no template has, made of letters only so that every form of quoting leaves them alone.
_SYSTEM, _LATER, _USER, _SECOND, _ANSWER, _FURTHER = (
    f"{each}PROBE" for each in ("SYSTEM", "LATER", "USER", "SECOND", "ANSWER", "FURTHER")
)
_TOOL, _OTHER, _RESULT, _KEY, _VALUE, _VALUE_TOO, _THOUGHT = (
    f"{each}_probe" for each in ("tool", "other", "result", "key", "value", "valuetoo", "thought")
)
_BRIDGES = ("", "Understood.")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


class Unusable(Exception):
    """The template refuses even one user message; the message is the template's own."""


def probe(template: ChatTemplate, dialect: Dialect) -> Needs:
    """What the template needs. Raises ``Unusable``."""
    asked = _Probe(template, dialect)
    try:
        template.render(mended(conversation([_user()], str), Needs(), dialect), add_generation_prompt=True)
    except TemplateFailed as error:
        raise Unusable(error.message) from None
    needs = Needs()
    for question in (_tools, _turns, _system, _calls, _results, _text_beside, _many_calls, _thoughts):
        needs = question(asked, needs)
    return needs


class _Probe:
    def __init__(self, template: ChatTemplate, dialect: Dialect) -> None:
        self._template = template
        self._dialect = dialect

    @property
    def source(self) -> str:
        return self._template.source

    @property
    def knows_tools(self) -> bool:
        return self._dialect.tools_in_template

    def text(self, messages: Sequence[Message], needs: Needs, *, null_type: bool = False) -> str:
        """The rendering, needs seen to, with one tool offered."""
        rendered = mended(conversation(messages, str), needs, self._dialect)
        kind = '["string", "null"]' if null_type and not needs.no_null_types else '"string"'
        schema = f'{{"type": "object", "properties": {{"{_KEY}": {{"type": {kind}}}}}}}'
        tools = [] if needs.describe_tools else shown_tools([Tool(_TOOL, "a tool", schema)], str)
        asks = messages[-1].role != "assistant"
        return self._template.render(rendered, tools, add_generation_prompt=asks)

    def shows(self, words: Sequence[str], messages: Sequence[Message], needs: Needs, **more: Any) -> bool:
        """Whether the template takes the messages and all words stand in its text, in this order."""
        try:
            text = self.text(messages, needs, **more)
        except TemplateFailed:
            return False
        at = 0
        for word in words:
            at = text.find(word, at) + 1
            if not at:
                return False
        return True

    def first(self, words: Sequence[str], messages: Sequence[Message], *options: Needs) -> Needs | None:
        """The first of the options with which the words are shown."""
        return next((each for each in options if self.shows(words, messages, each)), None)


def _user(text: str = _USER) -> Message:
    return Message("user", text)


def _call(id: str, name: str = _TOOL, value: str = _VALUE) -> ToolCall:
    return ToolCall(id, name, f'{{"{_KEY}": "{value}"}}')


def _tools(asked: _Probe, needs: Needs) -> Needs:
    """Whether tools are shown, and those with a null type."""
    described = needs.but(describe_tools=True, write_calls=not asked.knows_tools)
    if not asked.knows_tools or not asked.shows([_TOOL], [_user()], needs):
        return described
    return needs.but(no_null_types=not asked.shows([_TOOL], [_user()], needs, null_type=True))


def _turns(asked: _Probe, needs: Needs) -> Needs:
    """Users in a row, answers in a row, an answer first, an empty answer."""
    answer, further = Message("assistant", _ANSWER), Message("assistant", _FURTHER)
    users = asked.shows([_USER, _SECOND], [_user(), _user(_SECOND)], needs)
    answers = asked.shows([_USER, _ANSWER, _FURTHER], [_user(), answer, further, _user(_SECOND)], needs)
    opened = asked.shows([_ANSWER, _USER], [answer, _user()], needs)
    empty = [_user(), Message("assistant", ""), _user(_SECOND)]
    return needs.but(
        alternate=not (users and answers and opened),
        no_empty_answers=not asked.shows([_USER, _SECOND], empty, needs),
    )


def _system(asked: _Probe, needs: Needs) -> Needs:
    """Where a system text may stand, and whether there is a developer."""
    first = [Message("system", _SYSTEM), _user()]
    later = [_user(), Message("assistant", _ANSWER), Message("system", _LATER), _user(_SECOND)]
    if not asked.shows([_SYSTEM, _USER], first, needs):
        return needs.but(system=System.NOWHERE)
    anywhere = asked.shows([_USER, _ANSWER, _LATER, _SECOND], later, needs) and asked.shows(
        [_SYSTEM, _LATER, _USER], [first[0], Message("system", _LATER), _user()], needs
    )
    native = needs.but(developer=True)
    developer = "developer" in asked.source and asked.shows(
        [_SYSTEM, _USER], [Message("developer", _SYSTEM), _user()], native
    )
    return needs.but(system=System.ANYWHERE if anywhere else System.FIRST, developer=developer)


def _calls(asked: _Probe, needs: Needs) -> Needs:
    """In which form one call is shown, if at all."""
    if needs.write_calls:
        return needs
    messages = [_user(), Message("assistant", tool_calls=(_call("call-1"),))]
    forms = itertools.product((False, True), (False, True), (Arguments.OBJECT, Arguments.TEXT))
    for short, null, form in forms:
        option = needs.but(short_ids=short, null_content=null, arguments=form)
        escaped = f'\\"{_KEY}\\"'
        if asked.shows([_TOOL, _KEY, _VALUE], messages, option) and escaped not in asked.text(
            messages, option
        ):
            return _with_values_written(asked, option)
    return needs.but(write_calls=True)


def _with_values_written(asked: _Probe, needs: Needs) -> Needs:
    """Whether values that are no text are shown in Python's spelling and have to be written for the
    template: where text stands as it is, and true differs from the text "true" in capitals only."""
    if needs.arguments is not Arguments.OBJECT:
        return needs
    calls = [ToolCall("call-1", _TOOL, f'{{"{_KEY}": {value}}}') for value in ("true", '"true"')]
    bare, text = (asked.text([_user(), Message("assistant", tool_calls=(call,))], needs) for call in calls)
    pythonic = bare != text and bare.lower() == text.lower()
    return needs.but(arguments=Arguments.WRITTEN_VALUES) if pythonic else needs


def _results(asked: _Probe, needs: Needs) -> Needs:
    """Whether a result is shown, and a user after it."""
    messages = [
        _user(),
        Message("assistant", tool_calls=(_call("call-1"),)),
        Message("tool", _RESULT, tool_call_id="call-1"),
    ]
    shown = [_USER, _TOOL, _VALUE, _RESULT]
    found = asked.first(shown, messages, needs, needs.but(short_ids=True)) if asked.knows_tools else None
    if found is None:
        needs = needs.but(results_as_user=True)
        if not asked.shows(shown, messages, needs):
            needs = needs.but(write_calls=True)
    else:
        needs = found
    messages += [_user(_SECOND)]
    bridges = [needs.but(bridge=text) for text in _BRIDGES]
    return asked.first([*shown, _SECOND], messages, needs, *bridges) or needs


def _text_beside(asked: _Probe, needs: Needs) -> Needs:
    """Whether text and a call of one message are both shown, with the result and what follows; the text may
    be missing if there is no other way."""
    messages = [
        _user(),
        Message("assistant", _ANSWER, tool_calls=(_call("call-1"),)),
        Message("tool", _RESULT, tool_call_id="call-1"),
        Message("assistant", _FURTHER),
        _user(_SECOND),
    ]
    written = needs.but(write_beside_text=True)
    rest = [_TOOL, _VALUE, _RESULT, _FURTHER, _SECOND]
    everything = asked.first([_ANSWER, *rest], messages, needs, written)
    return everything or asked.first(rest, messages, needs, written) or needs


def _many_calls(asked: _Probe, needs: Needs) -> Needs:
    """Whether two calls of one message are shown, each with its result."""
    calls = (_call("call-1"), _call("call-2", _OTHER, _VALUE_TOO))
    messages = [
        _user(),
        Message("assistant", tool_calls=calls),
        Message("tool", _RESULT, tool_call_id="call-1"),
        Message("tool", _FURTHER, tool_call_id="call-2"),
    ]
    if asked.shows([_TOOL, _VALUE, _OTHER, _VALUE_TOO], messages, needs):
        return needs
    one = needs.but(one_call=True)
    written = needs.but(write_calls=True, results_as_user=True)
    return (
        asked.first([_TOOL, _VALUE, _RESULT, _OTHER, _VALUE_TOO, _FURTHER], messages, one, written) or needs
    )


def _thoughts(asked: _Probe, needs: Needs) -> Needs:
    """Under which key a thought beside a call is shown, and whether beside content as well."""
    message = Message("assistant", reasoning=_THOUGHT, tool_calls=(_call("call-1"),))
    messages = [_user(), message]
    keys = [needs.but(reasoning_key=key) for key in _REASONING_KEYS]
    needs = asked.first([_THOUGHT], messages, *keys) or needs
    both = [_user(), Message("assistant", _ANSWER, _THOUGHT, message.tool_calls)]
    if asked.shows([_VALUE], both, needs):
        return needs
    one = needs.but(one_thought=True)
    return one if asked.shows([_VALUE], both, one) else needs
