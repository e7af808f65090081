"""Composes the grammar of a whole answer, as text for the constraint engine (llguidance's Lark).

The call comes from the dialect's grammar file, with its slots filled by one tool each; everything around
it is composed here once for all families: reasoning, free text, ``tool_choice``, repetition, response
formats and the call without markers. The composed language lies within what ``parse`` reads.

A marker that is one token of the vocabulary stands as that token (``<[id]>``) and cannot be spelled in
free text; any other marker is text, and free text is then everything that does not hold it. The lexer of
the constraint engine never backs up, so text before a textual marker is one lazy terminal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.dialects.bound import BoundDialect
from server.dialects.elements import ElementRules
from server.dialects.form import (
    Aside,
    Gap,
    Item,
    Literal,
    Notation,
    Slot,
    behind_name,
    other_forms,
    span_form,
)
from server.dialects.gemma import GemmaRules
from server.dialects.grammar import Grammar, grammar_of, lark_string, pattern_of
from server.dialects.interruption import Interruption, interruption
from server.dialects.nested import NestedRules
from server.dialects.pythonic import PythonicRules
from server.dialects.raw_text import text_until
from server.schema.parameters import UNKNOWN, Parameters
from server.turn import Json

MAX_CALLS = 32
_SPACE = "[ \\t\\n\\r]"
_QUOTE = pattern_of('"')
_BARE_GAP = _SPACE + "{0,24}"
_FENCE = f"(```(json)?{_SPACE}*)"


class ReasoningState(enum.Enum):
    """Whether the answer begins inside a thought, may open one, or has none."""

    NONE = "none"
    POSSIBLE = "possible"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called in this answer; ``schema`` is what the constraint engine enforces,
    ``parameters`` the same for dialects that write each argument by itself."""

    name: str
    schema: Json
    parameters: Parameters = UNKNOWN


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer may consist of. ``must_call`` leaves out everything but calls; ``response`` is a
    schema that text has to follow, None for free text. ``thought_calls``: a call may end a thought."""

    tools: tuple[CallableTool, ...] = ()
    must_call: bool = False
    parallel: bool = True
    response: Json | None = None
    reasoning: ReasoningState = ReasoningState.NONE
    bare: bool = False
    thought_calls: bool = True


def compose(bound: BoundDialect, form: AnswerForm) -> str:
    """The grammar of the answer; its start symbol is ``start``."""
    return _Composer(bound, form).text()


def compose_raw(markup: Iterable[int]) -> str:
    """The grammar of an answer to a raw prompt: text, with any of these tokens of markup."""
    tokens = ",".join(map(str, sorted(set(markup))))
    return f"start: TEXT? (<[{tokens}]> TEXT?)*\nTEXT: /(?s:.+)/\n" if tokens else "start: /(?s:.*)/\n"


class _Composer:
    def __init__(self, bound: BoundDialect, form: AnswerForm) -> None:
        self._bound = bound
        self._form = form
        self._dialect = bound.dialect
        self._grammar: Grammar = grammar_of(bound.dialect)
        self._span = span_form(bound.dialect)
        self._lines: list[str] = []
        self._after_call = ""  # what follows the first call, as rule text
        bare = form.bare or not bound.dialect.opener
        self._bare = bare and bool(form.tools) and form.response is None and not form.must_call

    def text(self) -> str:
        if self._form.tools:
            self._add_calls()
        body = self._body()
        answer = self._with_reasoning(body)
        if self._dialect.turn_end:
            answer = f"({answer}) ({self._marker(self._dialect.turn_end)})?"
        self._lines.insert(0, f"start: {answer}")
        return "\n".join(self._lines) + "\n"

    # The parts of an answer.

    def _with_reasoning(self, body: str) -> str:
        form, pair = self._form, self._dialect.reasoning
        if pair is None or form.reasoning is ReasoningState.NONE:
            return body
        opener, closer = pair
        after = f" {lark_string(self._dialect.after_reasoning)}" if self._formal else ""
        until = self._text_until(closer, "thought")
        interrupted = self._interrupted_thought()
        if self._dialect.text:
            thought = f"({' | '.join([f'{until} turn', *interrupted])})"
            self._lines.append(f"turn: {body} | {self._marker(opener)} {thought}")
            return thought if form.reasoning is ReasoningState.OPEN else "turn"
        thought = f"({' | '.join([f'{until}{after} ({body})', *interrupted])})"
        if form.reasoning is ReasoningState.OPEN:
            return thought
        start = f"{body} | {self._marker(closer)}{after} ({body})" if self._dialect.thoughtless else body
        return f"{start} | {self._marker(opener)} {thought}"

    def _interrupted_thought(self) -> list[str]:
        """A thought that a call ends, as rule text; none where no call does. A token in its opener may begin
        other parts, too."""
        how = interruption(self._bound) if self._form.tools and self._form.thought_calls else None
        if how is None or (how is Interruption.TOKEN and self._dialect.text):
            return []
        if how is not Interruption.NAME:
            lead, rest = self._bound.split(self._dialect.opener)
            self._lines.append(f"interrupted{'' if rest else '[lazy]'}: INTERRUPTED {rest}".rstrip())
            self._lines.append(f"INTERRUPTED: /(?s:.*){pattern_of(lead)}/")
            return ["interrupted calls"]
        named, whole = [], [*self._span.before, *self._span.call]
        for number, tool in enumerate(self._form.tools):
            slots = {"name": tool.name, "arguments": f"arguments_{number}"}
            before, after = self._named(whole, pattern_of(tool.name), slots)
            self._lines.append(f"interrupted_{number}[lazy]: INTERRUPTED_{number}")
            self._lines.append(f"INTERRUPTED_{number}: /(?s:.*){before}/")
            named.append(f"interrupted_{number} {after}")
        return [f"({' | '.join(named)}) {self._after_call}"]

    @property
    def _formal(self) -> bool:
        """Whether the answer has no free text, so that what follows a thought must be given."""
        return self._form.must_call or self._form.response is not None

    @property
    def _opens_with_text(self) -> bool:
        """Whether a call opens with plain text, as other parts do: then it is one terminal with the name, by
        which they part."""
        return self._dialect.opener in self._dialect.keys.values()

    def _body(self) -> str:
        form = self._form
        calls = "opened_calls" if self._opens_with_text else f"{self._marker(self._dialect.opener)} calls"
        if self._dialect.others and form.tools:
            calls += " | others"
        if form.must_call:
            return calls
        if form.response is not None:
            response = self._response(form.response)
            return f"{calls} | {response}" if form.tools else response
        return self._framed_body(calls) if self._dialect.text else self._free_body(calls)

    def _response(self, schema: Json) -> str:
        self._lines.append(f"response: %json {schema}")
        segment = next((each for each in self._dialect.text if not each.onward), None)
        if segment is None:
            return "response"
        return f"{self._marker(segment.open)} response {self._marker(segment.close)}".rstrip()

    def _framed_body(self, calls: str) -> str:
        """Free text in its segments: one, or one after which the turn goes on, and then calls or another."""
        last: list[str] = []
        first: list[str] = []
        for number, each in enumerate(self._dialect.text):
            name = f"text_{number}"
            if not each.onward:
                last.append(f"{self._marker(each.open)} {self._last_text(each.close, name)}")
            elif self._form.tools:
                until = self._text_until(each.close or self._dialect.opener, name)
                first.append(f"{self._marker(each.open)} {until}{'' if each.close else ' calls'}")
        rest = " | ".join([calls, *last] if self._form.tools else last)
        onward = [each if each.endswith(" calls") else f"{each} ({rest})" for each in first]
        return " | ".join([rest, *onward])

    def _last_text(self, marker: str, name: str) -> str:
        """The rule of a text that ends a turn: where a call's opener would end it, it has none."""
        ends = [each for each in self._dialect.text if each.onward and not each.close and self._form.tools]
        excluded = [f"/(?s:.*){pattern_of(self._dialect.opener)}(?s:.*)/" for _ in ends[:1]]
        self._lines += text_until(name, marker, self._bound.split(marker), excluded=excluded)
        return name

    def _free_body(self, calls: str) -> str:
        form, opener = self._form, self._dialect.opener
        textual = bool(opener) and self._bound.opener_token is None
        free = ["/(?s:.*)/", *(f"~/(?s:{start}.*)/" for start in self._excluded_starts())]
        if self._unopened and not self._call_opens_with_token:
            named = self._any_named()
            free.append(f"~/(?s:.*){named}(?s:.*)/")
        if not textual:
            self._lines.append(f"TEXT: {' & '.join(free)}")
            branches = [f"TEXT ({calls})?" if form.tools and opener else "TEXT"]
        else:
            lead, rest = self._bound.split(opener)
            self._lines.append(f"TEXT: {' & '.join([*free, f'~/(?s:.*){pattern_of(opener)}(?s:.*)/'])}")
            branches = ["TEXT"]
            if form.tools:
                before = [f"/(?s:.*){pattern_of(lead)}/", *free[1:]]
                self._lines.append(
                    f"opened_text: OPENED_TEXT {rest}" if rest else "opened_text[lazy]: OPENED_TEXT"
                )
                self._lines.append(f"OPENED_TEXT: {' & '.join(before)}")
                branches.append("opened_text calls")
        if self._bare:
            branches.append("bare")
        if self._unopened:
            branches.append("unopened")
        return " | ".join(branches)

    def _excluded_starts(self) -> list[str]:
        """Patterns of what free text may not start with, since there it means something else."""
        starts = []
        pair = self._dialect.reasoning
        if pair and self._form.reasoning is not ReasoningState.NONE:
            marked = pair if self._dialect.thoughtless else pair[:1]
            starts += [f"{_SPACE}*{pattern_of(each)}" for each in marked if each not in self._bound.tokens]
        if self._bare:
            starts.append(f"{_SPACE}*{_FENCE}?{self._any_named()}")
        return starts

    def _text_until(self, marker: str, name: str) -> str:
        """The rule of any text up to and with ``marker``."""
        self._lines += text_until(name, marker, self._bound.split(marker))
        return name

    def _marker(self, text: str) -> str:
        return self._bound.split(text).rule_text

    # Calls.

    def _add_calls(self) -> None:
        dialect, form, span = self._dialect, self._form, self._span
        more = MAX_CALLS - 1 if form.parallel and dialect.parallel else 0
        before, after = (
            self._bound.rule_text(span.before[1:]),
            self._bound.rule_text(span.after),
        )  # the opener stands outside
        if span.several:
            further = f" ({self._bound.rule_text(span.between)} call){{0,{more}}}" if more else ""
            calls = f"{further} {after}"
            self._lines.append(f"calls: {before} call{calls}")
        else:
            between = f"{lark_string(dialect.separator)} " if dialect.separator else ""
            again = f" ({between}{self._marker(dialect.opener)} span){{0,{more}}}" if more else ""
            calls = f" {after}{again}"
            self._lines.append(f"calls: span{again}")
            self._lines.append(f"span: {before} call {after}")
        self._after_call = calls
        arguments = self._arguments_rules()
        names = [f"call_{number}" for number in range(len(form.tools))]
        self._lines.append(f"call: {' | '.join(names)}")
        for number, tool in enumerate(form.tools):
            slots = {"name": tool.name, "arguments": f"arguments_{number}"}
            self._lines.append(f"call_{number}: {self._bound.rule_text(span.call, slots)}")
            self._lines += arguments(f"arguments_{number}", tool)
            if self._opens_with_text:
                opened = self._bound.rule_text([Literal(dialect.opener), *span.before[1:], *span.call], slots)
                self._lines.append(f"opened_{number}: {opened}")
        if self._opens_with_text:
            opened = " | ".join(f"opened_{number}" for number in range(len(form.tools)))
            self._lines.append(f"opened_calls: ({opened}){calls}")
        self._add_others()
        if self._bare:
            self._add_bare(more)
        if self._unopened:
            self._add_unopened(calls)

    def _add_others(self) -> None:
        """One call in another of the forms that such models know."""
        calls = []
        for form in other_forms(self._dialect):
            for number, tool in enumerate(self._form.tools):
                slots = {"name": tool.name, "arguments": f"arguments_{number}"}
                calls.append(self._bound.rule_text([*form.before, *form.call, *form.after], slots))
        if calls:
            self._lines.append(f"others: {' | '.join(calls)}")

    def _arguments_rules(self) -> Callable[[str, CallableTool], Iterable[str]]:
        """What writes the rules of a tool's arguments, in the notation of the dialect."""
        span, count = self._span, len(self._form.tools)
        match span.notation:
            case Notation.ELEMENTS:
                assert span.elements is not None
                elements = ElementRules(span.elements, self._bound.rule_text, self._bound.split, count)
                return lambda name, tool: elements.rules(name, tool.parameters)
            case Notation.PYTHONIC:
                pythonic = PythonicRules(count)
                return lambda name, tool: pythonic.rules(name, tool.parameters)
            case Notation.GEMMA:
                schemas = [tool.parameters for tool in self._form.tools]
                gemma = GemmaRules(span.quote, self._bound.split(span.quote), schemas)
                return lambda name, tool: gemma.rules(name, tool.parameters)
            case Notation.NESTED:
                schemas = [tool.parameters for tool in self._form.tools]
                nested = NestedRules(span.tag, self._bound.split(span.tag), schemas)
                return lambda name, tool: nested.rules(name, tool.parameters)
        return lambda name, tool: [f"{name}: %json {tool.schema}"]

    def _add_bare(self, more: int) -> None:
        """Calls without markers: alone, or in a code fence. Up to the name they are one terminal a
        tool, so that free text can exclude just that."""
        alone, fenced, further = [], [], []
        for number, tool in enumerate(self._form.tools):
            slots = {"name": tool.name, "arguments": f"arguments_{number}"}
            before, after = self._named(self._span.call, pattern_of(tool.name), slots, gap=f"/{_BARE_GAP}/")
            self._lines.append(f"BARE_{number}: /{_SPACE}*{before}/")
            self._lines.append(f"FENCED_{number}: /{_SPACE}*{_FENCE}{before}/")
            self._lines.append(f"FURTHER_{number}: /{_SPACE}{{1,2}}{before}/")
            self._lines.append(f"bare_rest_{number}: {after}")
            alone.append(f"BARE_{number} bare_rest_{number}")
            fenced.append(f"FENCED_{number} bare_rest_{number}")
            further.append(f"FURTHER_{number} bare_rest_{number}")
        self._lines.append(f"further: {' | '.join(further)}")
        again = f" further{{0,{more}}}" if more else ""
        fence = lark_string(self._grammar.terminals["FENCE_END"].text or "")
        self._lines.append(
            f"bare: ({' | '.join(alone)}){again} | ({' | '.join(fenced)}){again} /{_SPACE}{{0,2}}/ {fence}"
        )

    @property
    def _unopened(self) -> bool:
        """Whether a call may come whose span has no opening marker."""
        form = self._form
        free = bool(form.tools) and form.response is None and not form.must_call
        return free and bool(self._dialect.unopened)

    @property
    def _call_opens_with_token(self) -> bool:
        return bool(self._bound.split(self._span.call_marker).rest)

    def _add_unopened(self, further: str) -> None:
        """Text and a call without the marker that opens its span. Where the call's own marker is no token,
        text up to behind the name is one terminal a tool, so that other text can have what looks like it."""
        free = "".join(f" & ~/(?s:{start}.*)/" for start in self._excluded_starts())
        names = []
        for number, tool in enumerate(self._form.tools):
            slots = {"name": tool.name, "arguments": f"arguments_{number}"}
            names.append(f"unopened_{number}")
            if self._call_opens_with_token:
                self._lines.append(f"{names[-1]}: {self._bound.rule_text(self._span.call[1:], slots)}")
                continue
            before, after = self._named(self._span.call, pattern_of(tool.name), slots)
            self._lines.append(f"{names[-1]}: named_{number} {after}")
            self._lines.append(f"named_{number}[lazy]: NAMED_{number}")
            self._lines.append(f"NAMED_{number}: /(?s:.*){before}/{free}")
        first = f"({' | '.join(names)})"
        if self._call_opens_with_token:
            lead, rest = self._bound.split(self._span.call_marker)
            self._lines.append(f"UNOPENED_TEXT: /(?s:.*){pattern_of(lead)}/{free}")
            first = f"UNOPENED_TEXT {rest} {first}"
        self._lines.append(f"unopened: {first}{further}")

    def _any_named(self) -> str:
        """The pattern of a call of any tool, up to its name and what tells that from longer ones."""
        names = "|".join(pattern_of(tool.name) for tool in self._form.tools)
        return self._named(self._span.call, f"({names})")[0]

    def _named(
        self, items: Sequence[Item], name: str, slots: Mapping[str, str] | None = None, gap: str | None = None
    ) -> tuple[str, str]:
        """What a call begins with cut behind its name, a pattern: the pattern of all that, with whitespace as
        models like it, and the rest as rule text."""
        cut = behind_name(items)
        texts = (_loose_pattern(item, name) for item in items[:cut])
        return "".join(texts), self._bound.rule_text(items[cut:], slots, gap) if slots else ""


def _loose_pattern(item: Item, name: str) -> str:
    """The pattern of an item, that of a name for a slot, with whitespace as models like it."""
    match item:
        case Slot(_, quoted):
            return f"{_QUOTE}{name}{_QUOTE}" if quoted else name
        case Gap():
            return f"{_SPACE}*"
        case Aside(texts):
            return f"({''.join(pattern_of(each) + f'{_SPACE}*' for each in texts)})?"
    return pattern_of(item.text)
