"""The spine: which events of a choice leave when, and what follows a value that fails."""

from __future__ import annotations

import re

import pytest

from server.dialects.bound import BoundDialect
from server.dialects.constrain import ReasoningState
from server.dialects.table import HERMES
from server.engine.protocol import Ended, Piece, Progress, SequenceId
from server.errors import ConstraintDeadEnd, SchemaNotSatisfied
from server.events import CallArguments, CallEnd, CallStart, Event, Finish, Text
from server.runner.answer import MAX_SAMPLES, Answer, Next, Step
from server.runner.plan import AnswerPlan, HeldValue, ThoughtLimit
from server.schema.verify import Failure

ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TWO = ONE.replace("1", "2")


class Refusing:
    """A verifier that finds fault with every value that holds the text ``bad``."""

    def failure(self, text: str) -> Failure | None:
        return Failure("const", "", "/const", "it is bad") if "bad" in text else None


def held(*, exact: bool = True, must_be_valid: bool = False) -> HeldValue:
    return HeldValue(Refusing(), exact, must_be_valid)  # type: ignore[arg-type]


def answer(tool: HeldValue | None = None, *, trusted: bool = True, **plan: object) -> Answer:
    tools = {"add": tool or held(), "say": tool or held()}
    return Answer(AnswerPlan(BoundDialect(HERMES), tools, **plan), trusted=trusted)  # type: ignore[arg-type]


def feed(choice: Answer, *texts: str, ended: Ended | None = None) -> Step:
    pieces = tuple(Piece(-1, text.encode()) for text in texts)
    return choice.feed(Progress(SequenceId(1, 0), pieces, ended))


def written(events: list[Event]) -> str:
    """Events in short: text as such, calls as ``name(arguments)``, the finish reason in brackets."""
    short = ""
    for event in events:
        match event:
            case Text() | CallArguments():
                short += event.text
            case CallStart():
                short += f"{event.name}("
            case CallEnd():
                short += ")"
            case Finish():
                short += f"[{event.reason}]"
    return short


def test_text_and_a_call() -> None:
    choice = answer()
    step = feed(choice, *"Hi. ", *ONE, ended=Ended.STOP)
    assert written(step.events) == 'Hi.add({"a": 1})[tool_calls]'
    assert step.next is Next.END


def test_an_answer_without_calls_stops() -> None:
    assert written(feed(answer(), "Hi", ended=Ended.STOP).events) == "Hi[stop]"


def test_a_cut_answer_says_so() -> None:
    assert written(feed(answer(), "Hi", ended=Ended.LENGTH).events) == "Hi[length]"
    assert written(feed(answer(), ONE[:40], ended=Ended.LENGTH).events).endswith("[length]")
    assert written(feed(answer(), ONE, "\n", TWO[:46], ended=Ended.LENGTH).events).endswith("[length]")


def test_a_thought_is_closed_when_its_tokens_are_used_up() -> None:
    limit = ThoughtLimit(3, (7, 8))
    choice = answer(reasoning=ReasoningState.OPEN, thoughts=limit)
    assert feed(choice, "a", "b").next is Next.GO_ON
    assert feed(choice, "c").next is Next.CLOSE_THOUGHT
    assert feed(choice, "</think>", "Hi").next is Next.GO_ON
    assert written(feed(choice, " you", ended=Ended.STOP).events) == " you[stop]"
    assert choice.reasoning_tokens == 4


def test_a_thought_is_not_closed_within_a_character_nor_after_the_end() -> None:
    choice = answer(reasoning=ReasoningState.OPEN, thoughts=ThoughtLimit(2, (7,)))
    first, *more = "🦊".encode()
    sequence = SequenceId(1, 0)

    def said(*data: int, ended: Ended | None = None) -> Next:
        return choice.feed(Progress(sequence, (Piece(-1, bytes(data)),), ended)).next

    assert [said(first), *(said(each) for each in more)] == [*[Next.GO_ON] * 3, Next.CLOSE_THOUGHT]
    assert said(ord("x"), ended=Ended.LENGTH) is Next.END


@pytest.mark.parametrize("end", range(1, 26))
@pytest.mark.parametrize("first", ["", ONE])
def test_the_beginning_of_a_call_is_not_text(end: int, first: str) -> None:
    """However an answer that can only call is cut, no markup leaves as text."""
    choice = answer(must_call=True)
    text = f"{first}\n{TWO[:end]}" if first else TWO[:end]
    step = feed(choice, *text, ended=Ended.LENGTH)
    assert written(step.events) == ('add({"a": 1})[length]' if first else "[length]")


def test_a_call_cut_before_its_name_is_not_text() -> None:
    assert written(feed(answer(), "Hi ", TWO[:14], ended=Ended.LENGTH).events) == "Hi[length]"
    assert written(feed(answer(), "Hi ", TWO[:4], ended=Ended.LENGTH).events) == "Hi <too[length]"


def test_an_invalid_call_in_one_piece_does_not_leave() -> None:
    bad = ONE.replace("1", '"bad"')
    for trusted in (True, False):
        step = feed(answer(held(exact=False, must_be_valid=True), trusted=trusted), bad, ended=Ended.STOP)
        assert isinstance(step.error, SchemaNotSatisfied)
        assert written(step.events) == ""


def test_a_call_cut_after_its_end_is_whole() -> None:
    assert written(feed(answer(), ONE[:-4], ended=Ended.LENGTH).events) == 'add({"a": 1})[tool_calls]'


def test_arguments_stream() -> None:
    choice = answer()
    assert written(feed(choice, ONE[:45]).events) == 'add({"a"'
    assert written(feed(choice, ONE[45:48]).events) == ": 1"


def test_call_ids_are_nine_letters_and_digits_and_differ() -> None:
    events = feed(answer(), ONE, "\n", TWO, ended=Ended.STOP).events
    ids = [event.id for event in events if isinstance(event, CallStart)]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in ids)
    assert len(set(ids)) == 2


def test_an_exact_repeat_ends_the_turn_and_is_not_sent() -> None:
    choice = answer()
    step = feed(choice, ONE, "\n", ONE)
    assert written(step.events) == 'add({"a": 1})[tool_calls]'
    assert step.next is Next.END
    assert choice.repeated == 1


def test_a_second_call_of_a_name_is_held_until_it_differs() -> None:
    choice = answer()
    feed(choice, ONE, "\n")
    assert written(feed(choice, TWO[:46]).events) == ""
    assert written(feed(choice, TWO[46:48]).events) == 'add({"a": 2'


@pytest.mark.parametrize(
    ("second", "reason"),
    [(ONE[:-14], "tool_calls"), (ONE[:-15], "length"), (ONE[:40], "length"), (ONE[:30], "length")],
)
@pytest.mark.parametrize("held_too", [False, True])
def test_a_call_cut_while_it_may_still_be_a_repeat_is_not_sent(
    second: str, reason: str, held_too: bool
) -> None:
    choice = answer(held(exact=not held_too, must_be_valid=held_too))
    step = feed(choice, ONE, "\n", second, ended=Ended.LENGTH)
    assert written(step.events) == f'add({{"a": 1}})[{reason}]'


def test_repeats_can_be_allowed() -> None:
    step = feed(answer(repeats=True), ONE, "\n", ONE, ended=Ended.STOP)
    assert written(step.events) == 'add({"a": 1})add({"a": 1})[tool_calls]'


def test_a_call_that_must_be_valid_is_held_until_it_is() -> None:
    choice = answer(held(exact=False, must_be_valid=True))
    assert feed(choice, ONE[:-15]).events == []
    assert written(feed(choice, ONE[-15:], ended=Ended.STOP).events) == 'add({"a": 1})[tool_calls]'


def test_an_invalid_call_is_sampled_again_from_its_arguments() -> None:
    choice = answer(held(exact=False, must_be_valid=True))
    bad = ONE.replace("1", '"bad"')
    step = feed(choice, *bad)
    assert step.events == []
    assert step.next is Next.REWIND
    assert bad[: step.kept] == '<tool_call>\n{"name": "add"'
    again = feed(choice, *ONE[step.kept :], ended=Ended.STOP)
    assert written(again.events) == 'add({"a": 1})[tool_calls]'
    assert choice.resampled == 1


def test_sampling_again_is_bounded_and_then_an_error() -> None:
    choice = answer(held(exact=False, must_be_valid=True))
    bad = ONE.replace("1", '"bad"')
    step = feed(choice, *bad)
    samples = 1
    while step.next is Next.REWIND:
        samples += 1
        step = feed(choice, *bad[step.kept :])
    assert samples == MAX_SAMPLES
    assert isinstance(step.error, SchemaNotSatisfied)
    assert step.events == []


def test_an_invalid_call_elsewhere_leaves_with_a_warning() -> None:
    choice = answer(held(exact=False))
    step = feed(choice, ONE.replace("1", '"bad"'), ended=Ended.STOP)
    assert written(step.events) == 'add({"a": "bad"})[tool_calls]'
    assert [(each.code, each.param) for each in choice.warnings] == [("schema_not_satisfied", "add")]


def test_an_unconstrained_call_that_must_be_valid_is_held_too_but_not_sampled_again() -> None:
    choice = answer(held(must_be_valid=True), trusted=False)
    step = feed(choice, *ONE.replace("1", '"bad"'))
    assert isinstance(step.error, SchemaNotSatisfied)
    assert not step.events


def test_a_response_is_held_verified_and_sampled_again() -> None:
    choice = answer(response=held(exact=False, must_be_valid=True))
    step = feed(choice, *'"bad"', ended=Ended.STOP)
    assert (step.next, step.kept, step.events) == (Next.REWIND, 0, [])
    assert written(feed(choice, *'"good"', ended=Ended.STOP).events) == '"good"[stop]'


def test_an_enforced_response_streams_and_is_still_verified() -> None:
    choice = answer(response=held(must_be_valid=True))
    assert written(feed(choice, '"go').events) == '"go'
    choice = answer(response=held(must_be_valid=True))
    assert isinstance(feed(choice, '"bad"', ended=Ended.STOP).error, SchemaNotSatisfied)


def test_a_cut_response_is_not_verified() -> None:
    choice = answer(response=held(exact=False, must_be_valid=True))
    assert written(feed(choice, '"bad', ended=Ended.LENGTH).events) == '"bad[length]'


def test_a_stop_string_ends_the_turn_at_once() -> None:
    step = feed(answer(stop=("END",)), "some EN", "D and more")
    assert written(step.events) == "some [stop]"
    assert step.next is Next.END


def test_a_dead_end_is_an_error() -> None:
    assert isinstance(feed(answer(), "Hi", ended=Ended.DEAD_END).error, ConstraintDeadEnd)
