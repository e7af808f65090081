"""Makes a turn ready for the engine: schemas checked, prompt rendered, constraint compiled.

Everything a client can get wrong is found here, before a request is queued. Runs on a thread of its own;
compiled constraints are kept by their text, since agents send the same tools again and again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from llguidance import LLMatcher

from server.dialects.bound import PLAIN, BoundDialect
from server.dialects.constrain import AnswerForm, CallableTool, ReasoningState, compose, compose_raw
from server.dialects.extent import extent_of, keys_of
from server.dialects.form import Notation, part_names, span_form
from server.engine.protocol import ConstraintRefused, Job
from server.errors import ContextOverflow, InvalidRequest, InvalidSchema, quoted
from server.events import Warning
from server.frames import Origin
from server.prompt.prompt import Prompt
from server.prompt.raw import raw_prompt
from server.prompt.thinking import thinking_is_off
from server.runner.builtin import Asked
from server.runner.model import LoadedModel
from server.runner.origin import Origins
from server.runner.plan import AnswerPlan, HeldValue, ThoughtLimit
from server.schema.cache import Prepared, prepared
from server.schema.check import check_all
from server.schema.references import place_of
from server.settings import Settings
from server.turn import ResponseFormat, Tool, Turn

_log = logging.getLogger("toolspan.runner")

ANY_OBJECT = '{"type": "object"}'
NO_ARGUMENTS = '{"type": "object", "properties": {}, "additionalProperties": false}'
KEPT_CONSTRAINTS = 64
PROMPT_LOGPROBS = 65_536
"""Logprobs that are told of a prompt, alternatives included."""


@dataclass(frozen=True, slots=True)
class PreparedTurn:
    """A turn ready to run. ``warnings`` are about the request, ``echo`` is what its answers begin with;
    ``origin`` only where it is asked for, or recorded. ``turn`` is what was asked for."""

    turn: Turn
    job: Job
    plan: AnswerPlan
    constraint: str
    prepare_s: float
    warnings: tuple[Warning, ...] = ()
    origin: Origin | None = None
    echo: str = ""


class Preparer:
    """Prepares turns for one loaded model."""

    def __init__(self, model: LoadedModel, settings: Settings) -> None:
        self._model = model
        self._settings = settings
        self._markup = tuple(model.engine.vocabulary.markup_texts())
        self._origins = Origins(model.engine.vocabulary)
        self._span = span_form(model.bound.dialect)
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()

    def prepare(self, request: int, asked: Turn) -> PreparedTurn:
        """Raises ``InvalidRequest`` and its kinds for whatever is wrong with the turn."""
        started = time.monotonic()
        named, warnings = self._named(asked)
        turn = _with(asked, named)
        tools = self._callable_tools(turn, named)
        response = self._response(turn.response_format)
        prompt = self._prompt(turn)
        room = self._room(prompt, turn)
        reasoning = self._reasoning(turn, prompt)
        form = self._form(turn, tools, response, reasoning)
        constraint = self._constraint(turn, form)
        _log.debug("request %d reads %r", request, prompt.text)
        _log.debug("request %d is held to %r", request, constraint)
        plan = self._plan(turn, form, tools, response)
        scored = _is_scored(turn, prompt)
        job = Job(
            request=request,
            prompt=prompt.tokens,
            matcher=self._matcher(constraint),
            sampling=turn.sampling,
            max_tokens=room,
            choices=turn.choices,
            partition=turn.partition,
            reuse_prefix=turn.reuse_prefix and self._settings.reuse_prefix and not scored,
            # The tokens of a thought are counted one by one.
            drafts=self._settings.drafts and plan.thoughts is None,
            score=scored,
        )
        if self._model.replay is not None:
            thoughts = reasoning is not ReasoningState.NONE
            job = self._model.replay.scripted(job, Asked(asked, prompt.text, tools, response, thoughts))
        origin, cut = self._origin(prompt, constraint, turn)
        echo = prompt.text if turn.raw and turn.raw.echo else ""
        took = time.monotonic() - started
        return PreparedTurn(asked, job, plan, constraint, took, (*warnings, *cut), origin, echo)

    def _origin(self, prompt: Prompt, constraint: str, turn: Turn) -> tuple[Origin | None, list[Warning]]:
        if not (turn.debug or self._settings.record):
            return None, []
        origin, cut = self._origins.of(prompt.tokens, constraint)
        return origin, cut if turn.debug else []

    def rendered(self, turn: Turn) -> Prompt:
        """What the model would read, whether or not it fits. Raises ``InvalidRequest`` and its kinds."""
        named, _ = self._named(turn)
        return self._prompt(_with(turn, named))

    def _prompt(self, turn: Turn) -> Prompt:
        if turn.raw is not None:
            return raw_prompt(turn.raw, self._model.engine.vocabulary)
        return self._without_thought(turn, self._model.prompter.prompt(turn))

    # What is asked for.

    def _named(self, turn: Turn) -> tuple[dict[str, Prepared], list[Warning]]:
        """The schemas of all tools by name, and what was done about those that can't be held to."""
        named: dict[str, Prepared] = {}
        warnings: list[Warning] = []
        for number, tool in enumerate(turn.tools):
            try:
                named[tool.name] = self._held_to(number, tool)
            except InvalidSchema as error:
                if turn.on_bad_tool == "error":
                    check_all(_schemas(turn.tools))  # names all bad tools at once
                    raise
                if turn.on_bad_tool == "relax":
                    self._refuse_markup(tool.name, _name_place(number, tool))
                    named[tool.name] = prepared(ANY_OBJECT, "", as_object=True)
                done = "dropped" if turn.on_bad_tool == "drop" else "not held to"
                warnings.append(Warning(f"tool_{done.replace(' ', '_')}", error.message, tool.name))
        return named, warnings

    def _held_to(self, number: int, tool: Tool) -> Prepared:
        """The schema of a tool. Raises ``InvalidSchema``."""
        param = _schema_place(number, tool)
        self._refuse_markup(tool.name, _name_place(number, tool))
        schema = prepared(tool.parameters or NO_ARGUMENTS, param, as_object=True)
        self._refuse_markup_in(schema, param, f"tool {quoted(tool.name)}: ")
        if self._span.notation is not Notation.JSON:
            self._refuse_unwritable(schema, param, tool.name)
        return schema

    def _callable_tools(self, turn: Turn, named: Mapping[str, Prepared]) -> dict[str, Prepared]:
        """The tools that may be called."""
        choice = turn.tool_choice
        if choice.mode == "none":
            return {}
        return {name: each for name, each in named.items() if choice.names is None or name in choice.names}

    def _response(self, wanted: ResponseFormat) -> Prepared | None:
        if wanted.kind == "text":
            return None
        schema = wanted.schema or ANY_OBJECT
        param = wanted.place or "response_format.json_schema.schema"
        result = prepared(schema, param, as_object=wanted.kind == "json_object")
        self._refuse_markup_in(result, param, "")
        return result

    def _refuse_markup_in(self, schema: Prepared, param: str, whose: str) -> None:
        if markup := _first(self._markup, schema.lowered.literals):
            raise _spells(f"{whose}{_place(schema, markup)}", markup, param)

    def _refuse_markup(self, name: str, param: str) -> None:
        if markup := _first(self._markup, [name]):
            raise _spells(f"the name {quoted(name)}", markup, param)
        if name in part_names(self._model.bound.dialect):
            raise InvalidSchema(
                f"the name {quoted(name)} begins another part of this model's answers: no tool can have it",
                code="invalid_tool_name",
                param=param,
            )

    def _room(self, prompt: Prompt, turn: Turn) -> int:
        """How many tokens the answer may have."""
        context, used = self._model.engine.model.context, len(prompt.tokens)
        if used >= context:
            raise ContextOverflow(
                f"This model's maximum context length is {context} tokens. However, your messages and tools "
                f"resulted in {used} tokens (prompt is too long: {used} tokens > {context} maximum). "
                "Please reduce the length of the messages or tools.",
                param=turn.place,
            )
        wanted = self._default_room(used) if turn.max_tokens is None else turn.max_tokens
        return min(wanted, (context - used) // turn.choices or 1)

    def _default_room(self, used: int) -> int:
        """The answer's tokens where the client sets no limit: so many that all slots can be busy, since
        a request waits until all it may need is free."""
        model = self._model.engine.model
        share = model.context // model.slots
        return min(self._settings.max_tokens, max(share - used, share // 2))

    def _reasoning_budget(self, turn: Turn) -> int:
        """The tokens that thoughts may have, negative where there is no limit."""
        budget = turn.reasoning_budget
        if budget is None and thinking_is_off(turn):
            return 0
        return self._settings.reasoning_budget if budget is None else budget

    def _closing(self, message: str) -> tuple[int, ...]:
        """The tokens that close a thought with a message."""
        pair = self._model.bound.dialect.reasoning
        assert pair is not None
        spelled = functools.partial(self._model.engine.vocabulary.tokenize, markup=False, continued=True)
        return (*(spelled(message) if message else ()), *self._model.bound.written(pair[1], spelled))

    def _without_thought(self, turn: Turn, prompt: Prompt) -> Prompt:
        """The prompt, a thought that it opens closed again where there is to be none."""
        if not prompt.reasoning_open or self._reasoning_budget(turn) != 0:
            return prompt
        closing = self._closing("")
        text = b"".join(map(self._model.engine.vocabulary.data, closing)).decode("utf-8", "replace")
        return Prompt((*prompt.tokens, *closing), prompt.text + text, False, reasoning_over=True)

    def _thought_limit(self, turn: Turn, reasoning: ReasoningState) -> ThoughtLimit | None:
        budget = self._reasoning_budget(turn)
        if reasoning is ReasoningState.NONE or budget < 0:
            return None
        return ThoughtLimit(budget, self._closing(self._settings.reasoning_budget_message))

    def _reasoning(self, turn: Turn, prompt: Prompt) -> ReasoningState:
        if prompt.reasoning_open:
            return ReasoningState.OPEN
        possible = self._model.facts.reasoning and not prompt.reasoning_over
        possible = possible and self._reasoning_budget(turn) != 0
        return ReasoningState.POSSIBLE if possible else ReasoningState.NONE

    def _form(
        self,
        turn: Turn,
        tools: Mapping[str, Prepared],
        response: Prepared | None,
        reasoning: ReasoningState,
    ) -> AnswerForm:
        dialect = self._model.bound.dialect
        return AnswerForm(
            tools=tuple(self._callable(name, schema) for name, schema in tools.items()),
            must_call=turn.tool_choice.mode == "required",
            parallel=turn.parallel_tool_calls,
            response=response.lowered.text if response else None,
            reasoning=reasoning,
            bare=self._settings.bare_calls and dialect.bare,
            thought_calls=self._settings.thought_calls,
        )

    def _plan(
        self, turn: Turn, form: AnswerForm, tools: Mapping[str, Prepared], response: Prepared | None
    ) -> AnswerPlan:
        strict = {tool.name for tool in turn.tools if tool.strict or form.must_call}
        return AnswerPlan(
            bound=self._bound(turn),
            tools={name: self._held_tool(schema, name in strict) for name, schema in tools.items()},
            response=_held(response, True) if response else None,
            reasoning=form.reasoning,
            must_call=form.must_call,
            bare=form.bare and not form.must_call and response is None,
            thought_calls=form.thought_calls,
            stop=() if response else turn.stop,
            thoughts=self._thought_limit(turn, form.reasoning),
            repeats=self._settings.repeat_calls,
        )

    def _callable(self, name: str, schema: Prepared) -> CallableTool:
        if self._span.notation is Notation.JSON:
            return CallableTool(name, schema.lowered.text)
        return CallableTool(name, schema.lowered.text, schema.parameters)

    def _held_tool(self, schema: Prepared, must_be_valid: bool) -> HeldValue:
        held = _held(schema, must_be_valid)
        if self._span.notation is Notation.JSON:
            return held
        known = schema.parameters
        exact = extent_of(self._span.notation, known).exact
        return dataclasses.replace(held, exact=exact and held.exact, parameters=known)

    def _refuse_unwritable(self, schema: Prepared, param: str, tool: str) -> None:
        """Names and texts that the dialect can't write: they end where its markup begins."""
        if end := _first(self._span.text_ends, schema.lowered.literals):
            raise InvalidSchema(
                f"tool {quoted(tool)}: {_place(schema, end)} holds {quoted(end)}, which ends a text in this "
                "model's form of calls",
                param=param,
            )
        keys = keys_of(self._span.notation)
        if unwritable := extent_of(self._span.notation, schema.parameters).unwritable:
            slash = f" or begin with {quoted(keys.not_first)}" if keys.not_first else ""
            raise InvalidSchema(
                f"tool {quoted(tool)}: the parameter {quoted(unwritable[0])} can't be written in this "
                f"model's form of calls: a name may not be empty{slash} or have control characters or any "
                f"of {quoted(''.join(sorted(keys.ends)).strip())}",
                param=param,
            )

    # The constraint.

    def _bound(self, turn: Turn) -> BoundDialect:
        return self._model.bound if turn.raw is None else PLAIN

    def _constraint(self, turn: Turn, form: AnswerForm) -> str:
        if turn.raw is None or form.response is not None:
            return compose(self._bound(turn), form)
        single = self._model.engine.vocabulary.single_token
        return compose_raw(token for text in self._markup if (token := single(text)) is not None)

    def _matcher(self, constraint: str) -> LLMatcher:
        known = self._matchers.get(constraint)
        if known is None:
            known = self._compiled(constraint)
            self._matchers[constraint] = known
            if len(self._matchers) > KEPT_CONSTRAINTS:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(constraint)
        return known.deep_copy()

    def _compiled(self, constraint: str) -> LLMatcher:
        try:
            return self._model.engine.vocabulary.matcher(constraint)
        except ConstraintRefused as error:
            # Each schema compiles alone, so it is their sum that is too much.
            raise InvalidRequest(
                f"the tools together are too complex to hold a model to: {error}",
                code="schema_too_large",
                param="tools",
            ) from error


def _first(markup: Iterable[str], texts: Iterable[str]) -> str | None:
    """The first marker that literals spell: forced bytes would become that token, or end a text."""
    joined = "\n".join(texts)
    return next((each for each in markup if each in joined), None)


def _place(schema: Prepared, text: str) -> str:
    """Where a schema holds a text, in words."""
    place = place_of(text, schema.checked.schema)
    return f"the schema{f' at {quoted(place)}' if place else ''}"


def _spells(what: str, markup: str, param: str) -> InvalidSchema:
    return InvalidSchema(
        f"{what} holds {quoted(markup)}, which is a control token of this model", param=param
    )


def _schemas(tools: Iterable[Tool]) -> Iterator[tuple[str, str, str]]:
    """The tools' names, schemas and fields."""
    for number, tool in enumerate(tools):
        yield tool.name, tool.parameters or NO_ARGUMENTS, _schema_place(number, tool)


def _schema_place(number: int, tool: Tool) -> str:
    return tool.place or f"tools[{number}].function.parameters"


def _name_place(number: int, tool: Tool) -> str:
    function, _, _ = _schema_place(number, tool).rpartition(".")
    return f"{function}.name"


def _is_scored(turn: Turn, prompt: Prompt) -> bool:
    """Whether the tokens of an echoed prompt are told with their logprobs."""
    alternatives = turn.sampling.top_logprobs
    if turn.raw is None or not turn.raw.echo or alternatives is None:
        return False
    if len(prompt.tokens) * (1 + alternatives) > PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"logprobs with echo are told for a prompt of {PROMPT_LOGPROBS // (1 + alternatives)} tokens at "
            f"most with {alternatives} alternatives each, and this one has {len(prompt.tokens)}",
            param="logprobs",
        )
    return True


def _with(turn: Turn, named: Mapping[str, Prepared]) -> Turn:
    """The turn with those of its tools that are left. Raises ``InvalidRequest`` where one is asked for that
    is not."""
    if len(named) == len(turn.tools):
        return turn
    choice = turn.tool_choice
    gone = [each for each in choice.names or () if each not in named]
    if gone or (choice.mode == "required" and not named):
        what = f"asks for {quoted(gone[0])}, which is" if gone else "asks for a call, but all tools are"
        raise InvalidRequest(f"tool_choice {what} dropped for its schema", param="tool_choice")
    return msgspec.structs.replace(turn, tools=tuple(each for each in turn.tools if each.name in named))


def _held(schema: Prepared, must_be_valid: bool) -> HeldValue:
    return HeldValue(schema.verifier, schema.lowered.exact, must_be_valid)
