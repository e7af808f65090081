"""The scripted engine keeps the engine's contract, so that tests over it say something."""

from __future__ import annotations

import time
from dataclasses import replace

from server.engine.protocol import Ended, SequenceId
from server.engine.scripted import NEVER, ByteVocabulary, Played, ScriptedEngine, ScriptedJob, TimedText
from server.events import Source
from server.turn import Sampling

GRAMMAR = "start: /(?s:.*)/"


def engine(slots: int = 2) -> ScriptedEngine:
    return ScriptedEngine(context=1000, slots=slots)


def saying(*takes: str, silence: float = 0.0) -> Played:
    """An answer that is one token a character."""
    return Played(tuple(tuple(TimedText(each, silence) for each in take) for take in takes))


def job(
    request: int, answer: Played, *, grammar: str = GRAMMAR, max_tokens: int = 100, choices: int = 1
) -> ScriptedJob:
    vocabulary = ByteVocabulary()
    prompt = tuple(vocabulary.tokenize("hi", markup=True))
    matcher = vocabulary.matcher(grammar)
    return ScriptedJob(request, prompt, matcher, Sampling(), max_tokens, choices, answer=answer)


def played(machine: ScriptedEngine, request: int, choice: int = 0) -> tuple[str, Ended | None]:
    text, ended = "", None
    while ended is None and machine.busy:
        for progress in machine.step():
            if progress.sequence == SequenceId(request, choice):
                text += "".join(piece.data.decode() for piece in progress.pieces)
                ended = progress.ended or ended
    return text, ended


def test_submit_says_whether_the_script_keeps_to_the_constraint() -> None:
    machine = engine()
    assert machine.submit(job(1, saying("yes")))
    assert not machine.submit(job(2, saying("yes"), grammar='start: "no"'))


def test_a_job_waits_for_a_slot() -> None:
    machine = engine(slots=1)
    machine.submit(job(1, saying("x")))
    machine.submit(job(2, saying("x")))
    assert played(machine, 1) == ("x", Ended.STOP)
    assert machine.load.waiting == 1
    machine.finish(SequenceId(1, 0))
    assert played(machine, 2) == ("x", Ended.STOP)


def test_more_choices_than_slots_take_turns() -> None:
    machine = engine(slots=1)
    machine.submit(job(1, saying("x"), choices=3))
    for choice in range(3):
        assert played(machine, 1, choice) == ("x", Ended.STOP)
        machine.finish(SequenceId(1, choice))
    assert machine.tally(1).sampled_tokens == 3
    assert not machine.busy


def test_max_tokens_cuts() -> None:
    machine = engine()
    machine.submit(job(1, saying("abcdef"), max_tokens=3))
    assert played(machine, 1) == ("abc", Ended.LENGTH)
    assert machine.tally(1).sampled_tokens == 3


def test_a_rewound_sequence_plays_the_next_take() -> None:
    machine = engine()
    machine.submit(job(1, saying("abX", "abY", "abZ")))
    assert played(machine, 1) == ("abX", Ended.STOP)
    machine.rewind(SequenceId(1, 0), 2)
    assert played(machine, 1) == ("Y", Ended.STOP)


def test_a_cancelled_request_is_forgotten() -> None:
    machine = engine()
    machine.submit(job(1, saying("x", silence=10.0)))
    machine.step()
    machine.cancel(1)
    machine.cancel(2)
    assert not machine.busy


def test_silence_is_no_token() -> None:
    machine = engine()
    machine.submit(job(1, Played(((TimedText("a"), TimedText("b"), TimedText("", 0.01)),))))
    assert played(machine, 1) == ("ab", Ended.STOP)
    assert machine.tally(1).sampled_tokens == 2


def test_what_is_not_due_does_not_hold_up_others() -> None:
    machine = engine()
    machine.submit(job(1, saying("late", silence=3600.0)))
    machine.submit(job(2, saying("soon")))
    assert played(machine, 2) == ("soon", Ended.STOP)
    assert machine.busy


def test_markup_is_two_tokens_in_prompts_only() -> None:
    vocabulary = ByteVocabulary()
    assert vocabulary.tokenize("<|im_start|>a<|im_end|>", markup=True) == [256, 97, 257]
    assert max(vocabulary.tokenize("<|im_start|>", markup=False)) < 256


def test_markup_of_a_model_takes_the_place_of_its_own() -> None:
    vocabulary = ByteVocabulary(("<a>", "<a><b>"), size=1000)
    assert vocabulary.tokenize("x<a><b>y<a>", markup=True) == [120, 257, 121, 256]
    assert [vocabulary.data(each) for each in (256, 257, 999)] == [b"<a>", b"<a><b>", b""]
    matcher = vocabulary.matcher('start: <[256]> "x" | "<a>"')
    assert matcher.try_consume_tokens([256, 120]) == 2
    assert matcher.is_accepting()
    spelled = vocabulary.matcher('start: <[256]> "x"')
    assert spelled.try_consume_tokens(list(b"<a>")) == 0


# What was recorded.


def test_what_came_in_one_step_comes_in_one() -> None:
    machine = engine()
    texts = (
        TimedText("a", source=Source.SAMPLED),
        TimedText("b", joined=True, source=Source.FORCED),
        TimedText("c", source=Source.DRAFTED, ended=Ended.LENGTH),
    )
    machine.submit(job(1, Played((texts,), recorded=True), max_tokens=1))
    steps = [machine.step()[0] for _ in range(2)]
    assert [[each.data for each in step.pieces] for step in steps] == [[b"a", b"b"], [b"c"]]
    assert [step.ended for step in steps] == [None, Ended.LENGTH]
    machine.finish(SequenceId(1, 0))
    tally = machine.tally(1)
    assert (tally.sampled_tokens, tally.forced_tokens, tally.drafted_tokens) == (1, 1, 1)


def test_parts_of_characters_and_markup_are_tokens() -> None:
    machine = ScriptedEngine(context=1000, slots=1, vocabulary=ByteVocabulary(("<a>",)))
    texts = tuple(TimedText(each.decode("utf-8", "surrogateescape")) for each in (b"\xf0\x9f", b"\x98\x80"))
    asked = job(1, Played(((*texts, TimedText("<a>", token=256)),), recorded=True))
    matcher = machine.vocabulary.matcher("start: /.*/ <[256]>")
    assert machine.submit(replace(asked, matcher=matcher))
    pieces = [machine.step()[0].pieces[0] for _ in range(3)]
    assert [each.token for each in pieces] == [-1, -1, 256]
    assert b"".join(each.data for each in pieces).decode() == "😀<a>"


def test_what_never_comes_is_waited_for() -> None:
    machine = engine()
    machine.submit(job(1, Played(((TimedText("a"), TimedText("", NEVER)),))))
    for _ in range(5):
        machine.step()
    assert machine.busy
    machine.cancel(1)
    assert not machine.busy


def test_each_choice_has_its_own_answer() -> None:
    machine = engine(slots=1)
    asked = job(1, saying("x"), choices=3)
    machine.submit(replace(asked, others=(saying("y"), saying("z")), cached_tokens=7))
    for choice, text in enumerate("xyz"):
        assert played(machine, 1, choice)[0] == text
        machine.finish(SequenceId(1, choice))
    assert machine.tally(1).cached_tokens == 7


def test_recorded_choices_keep_their_order_where_they_come_late() -> None:
    machine = engine()
    quick = (TimedText("a", 0.05), TimedText("b", 0.001), TimedText("c", 0.001))
    slow = (TimedText("x", 0.05), TimedText("y", 0.008), TimedText("z", 0.001))
    answers = [Played((texts,), recorded=True) for texts in (quick, slow)]
    machine.submit(replace(job(1, answers[0], choices=2), others=(answers[1],)))
    assert machine.step() == []
    time.sleep(0.1)
    told = ""
    while machine.busy:
        told += "".join(piece.data.decode() for each in machine.step() for piece in each.pieces)
    assert told == "axbcyz"


def test_a_recorded_answer_has_what_closed_its_thought() -> None:
    machine = engine()
    machine.submit(job(1, Played(((TimedText("a"), TimedText("b")),), recorded=True)))
    machine.step()
    machine.append(SequenceId(1, 0), [120])
    assert played(machine, 1) == ("b", Ended.STOP)
