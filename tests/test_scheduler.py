"""The scheduler over a model that keeps llama.cpp's books (``fake_llama``), where no timing or rounding
blurs what has to be equal."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from driving import Said, answer, run, step
from fake_llama import ANYTHING, BINARY, CALL, LETTERS, VOCABULARY, FakeLlama, engine, job, sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.llama import DecodeFailed
from server.engine.protocol import Ended, Job, SequenceId
from server.engine.sampler import token_logprob
from server.events import Source

PREFIXES = ("", "a" * 40, "a" * 40 + "b" * 50, "c" * 35)


def alone(each: Job, **options: object) -> dict[SequenceId, Said]:
    """What a job says without company and without drafts."""
    each = dataclasses.replace(each, drafts=False)
    return run(engine(FakeLlama(**options)), [each])  # type: ignore[arg-type]


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    made = []
    for request in range(draw(st.integers(1, 7))):
        made.append(
            job(
                request,
                draw(st.sampled_from(PREFIXES)) + draw(st.text("xyz", max_size=30)),
                draw(st.sampled_from((LETTERS, CALL, ANYTHING, BINARY))),
                max_tokens=draw(st.integers(0, 24)),
                choices=draw(st.integers(1, 3)),
                partition=draw(st.sampled_from(("", "other"))),
                reuse_prefix=draw(st.booleans()),
                score=draw(st.booleans()),
                temperature=draw(st.sampled_from((0.0, 1.0))),
                seed=draw(st.integers(0, 9)),
            )
        )
    return made


def scores(prompt: str, context: int = 200) -> list[float | None]:
    """The logprobs of a prompt's tokens, each by the model's own thought before it."""
    llama = FakeLlama(context=context)
    found: list[float | None] = [None]
    for at, token in enumerate(prompt.encode()[1:], 1):
        found.append(token_logprob(llama.thought(list(prompt.encode()[:at])), token, 0, VOCABULARY).logprob)
    return found


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("partial", [False, True])
def test_a_prompt_is_scored_whatever_was_computed_before(max_tokens: int, partial: bool) -> None:
    llama = FakeLlama(partial=partial)
    scheduler, prompt = engine(llama), "one two three four five six seven eight nine"
    run(scheduler, [job(0, prompt)])
    made = [job(1, prompt, max_tokens=max_tokens, score=True, choices=2), job(2, prompt + "x", score=True)]
    said = run(scheduler, made)
    for request, text in ((1, prompt), (2, prompt + "x")):
        told = said[sequence(request)].prompt
        assert [each.logprob for each in told] == scores(text)
        assert b"".join(each.data for each in told) == text.encode()
    assert said[sequence(1, 1)].prompt == ()
    assert len(said[sequence(1, 1)].pieces) == max_tokens


def test_an_empty_prompt_has_no_scores() -> None:
    assert answer(engine(FakeLlama()), job(1, "", score=True)).prompt == ()


@settings(max_examples=60, deadline=None)
@given(
    made=jobs(),
    slots=st.integers(1, 4),
    cached=st.integers(1, 3),
    partial=st.booleans(),
    dice=st.integers(0, 999),
)
def test_company_changes_nothing(made: list[Job], slots: int, cached: int, partial: bool, dice: int) -> None:
    chance = random.Random(dice)
    llama = FakeLlama(context=200, slots=slots, cached=cached, partial=partial)
    busy = engine(llama)
    said: dict[SequenceId, Said] = {}
    arriving = list(made)
    cancelled: set[int] = set()
    while arriving or busy.busy:
        if arriving and chance.random() < 0.5:
            busy.submit(arriving.pop(0))
        elif not arriving and chance.random() < 0.03:
            cancelled.add(made[0].request)
            busy.cancel(made[0].request)
        step(busy, said)
    for each in made:
        if each.request not in cancelled:
            expected = alone(each)
            assert {key: said[key].undrafted for key in expected} == expected
            pieces = [piece for key in expected for piece in said[key].pieces]
            tally = busy.tally(each.request)
            assert tally.completion_tokens == len(pieces)
            assert tally.drafted_tokens == sum(piece.source is Source.DRAFTED for piece in pieces)
    assert busy.load.active == busy.load.waiting == busy.load.used_cells == 0
    assert len(llama.cells) <= busy.load.cached_tokens


@settings(max_examples=40, deadline=None)
@given(kept=st.integers(0, 12), partial=st.booleans(), temperature=st.sampled_from((0.0, 1.0)))
def test_sampling_again_keeps_what_was_kept(kept: int, partial: bool, temperature: float) -> None:
    llama = FakeLlama(partial=partial)
    scheduler = engine(llama)
    scheduler.submit(job(1, constraint=LETTERS, max_tokens=20, temperature=temperature, seed=3))
    first: list[int] = []
    while scheduler.busy:
        for progress in scheduler.step():
            first += [piece.token for piece in progress.pieces]
    kept = min(kept, len(first))
    scheduler.rewind(sequence(1), kept)
    again = first[:kept]
    while scheduler.busy:
        for progress in scheduler.step():
            again += [piece.token for piece in progress.pieces]
    assert again[:kept] == first[:kept]
    assert len(first) - kept < 5 or again != first
    assert bytes(token for token in again if token < 256).isalpha() or not again
    scheduler.finish(sequence(1))
    assert scheduler.load.used_cells == 0


def test_a_call_sampled_again_stays_legal_and_repeats_what_is_forced() -> None:
    scheduler = engine(FakeLlama())
    scheduler.submit(job(1, constraint=CALL, max_tokens=40, seed=3))
    pieces = []
    while scheduler.busy:
        pieces += [piece for progress in scheduler.step() for piece in progress.pieces]
    name = next(at for at, piece in enumerate(pieces) if piece.source is Source.SAMPLED) + 2
    scheduler.rewind(sequence(1), name)  # in the middle of a call, before what is forced after its name
    again = []
    while scheduler.busy:
        again += [piece for progress in scheduler.step() for piece in progress.pieces]
    assert again[0].source is Source.FORCED
    text = b"".join(piece.data for piece in (*pieces[:name], *again)).decode()
    assert text.startswith("<call>")
    assert text.endswith(")</call>")
    assert text != b"".join(piece.data for piece in pieces).decode()


def test_forced_tokens_cost_no_decode() -> None:
    llama = FakeLlama()
    said = answer(engine(llama), job(1, "hi", CALL, max_tokens=40))
    assert said.ended is Ended.STOP
    forced = b"".join(piece.data for piece in said.of(Source.FORCED))
    assert forced.startswith(b"<call>")
    assert forced.endswith(b"</call>")
    decoded = [count for batch in llama.batches for _, count in batch]
    assert decoded[0] == len("hi<call>")  # rides on the prompt
    assert len(decoded) == len(said.of(Source.SAMPLED))
    last = max(at for at, piece in enumerate(said.pieces) if piece.source is Source.SAMPLED)
    assert sum(decoded) == len("hi") + last  # neither the last choice nor what is forced behind it


def test_an_answer_without_any_choice_is_not_computed() -> None:
    llama = FakeLlama()
    scheduler = engine(llama)
    said = answer(scheduler, job(1, constraint='start: "only this"'))
    assert (said.text, said.ended, llama.batches) == ("only this", Ended.STOP, [])
    assert scheduler.tally(1).forced_tokens == len("only this")


def test_max_tokens_counts_forced_tokens_too() -> None:
    for limit in range(1, 20):
        said = answer(engine(FakeLlama()), job(1, constraint=CALL, max_tokens=limit))
        assert len(said.pieces) <= limit
        assert said.ended is (
            Ended.LENGTH if len(said.pieces) == limit and ")<" not in said.text else said.ended
        )
        assert (said.ended is Ended.STOP) == said.text.endswith("</call>")


def test_the_end_is_not_said() -> None:
    said = answer(engine(FakeLlama(likes=b"xhello")), job(1, "x", LETTERS))
    assert (said.text, said.ended) == ("hello", Ended.STOP)


def test_a_prompt_seen_before_is_not_computed_again() -> None:
    llama = FakeLlama()
    scheduler = engine(llama)
    first = answer(scheduler, job(1, "p" * 100))
    assert scheduler.tally(1).cached_tokens == 0
    again = answer(scheduler, job(2, "p" * 100))
    assert scheduler.tally(2).cached_tokens == 99
    longer = answer(scheduler, job(3, b"p" * 100 + first.data[:-1] + b"?"))
    assert scheduler.tally(3).cached_tokens == 100 + len(first.data) - 1
    assert again == first
    assert longer.ended is Ended.LENGTH


@pytest.mark.parametrize(
    "changed", [{"partition": "somebody else"}, {"reuse_prefix": False}], ids=["partition", "reuse"]
)
def test_a_prompt_is_not_shared(changed: dict[str, object]) -> None:
    scheduler = engine(FakeLlama())
    answer(scheduler, job(1, "p" * 100))
    answer(scheduler, job(2, "p" * 100, **changed))  # type: ignore[arg-type]
    assert scheduler.tally(2).cached_tokens == 0


def test_requests_at_the_same_time_compute_a_common_prompt_once() -> None:
    llama = FakeLlama()
    scheduler = engine(llama)
    run(scheduler, [job(number, "p" * 100 + str(number)) for number in range(4)])
    prefill = sum(count for batch in llama.batches for _, count in batch if count > 1)
    assert prefill == 101  # the others start with their last token


def test_choices_share_the_prompt_and_differ() -> None:
    llama = FakeLlama(slots=2)
    scheduler = engine(llama)
    said = run(scheduler, [job(1, "p" * 100, choices=4, temperature=1.0, seed=1, reuse_prefix=False)])
    assert len({each.text for each in said.values()}) == 4
    assert sum(count for batch in llama.batches for _, count in batch if count > 1) == 100
    assert scheduler.tally(1).cached_tokens == 0


def test_a_leader_that_is_cancelled_leaves_its_followers_to_themselves() -> None:
    llama = FakeLlama(context=1000)
    scheduler = engine(llama)
    requests = [job(number, "p" * 300 + str(number)) for number in range(3)]
    for each in requests:
        scheduler.submit(each)
    scheduler.step()
    scheduler.cancel(0)
    said = run(scheduler, [])
    assert {key: said[key].text for key in said} == {
        key: value.text for each in requests[1:] for key, value in alone(each, context=1000).items()
    }


def test_orphans_go_before_others() -> None:
    scheduler = engine(FakeLlama(slots=2))
    for each in (job(1, "p" * 300), job(2, "p" * 300), job(3, max_tokens=300)):
        scheduler.submit(each)
    scheduler.step()
    scheduler.cancel(1)
    scheduler.step()
    assert (scheduler.load.active, scheduler.load.waiting) == (1, 1)  # the third has no room beside it
    said = run(scheduler, [])
    assert list(said) == [sequence(2), sequence(3)]


class Timed(FakeLlama):
    """Each batch takes ``STEP`` and ``EACH`` for every token of it, by a clock of its own."""

    STEP, EACH = 0.02, 0.005

    def __init__(self, patch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(**options)
        self.now = 0.0
        patch.setattr("server.engine.scheduler.time", self)

    def monotonic(self) -> float:
        return self.now

    def decode(self) -> bool:
        self.now += self.STEP + self.EACH * self.batch.count
        return super().decode()


def test_answers_keep_half_their_speed_beside_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = Timed(monkeypatch, context=4000)
    scheduler = engine(llama)
    said: dict[SequenceId, Said] = {}
    scheduler.submit(job(1, max_tokens=1000, drafts=False))
    step(scheduler, said)
    scheduler.submit(job(2, "p" * 2000))
    begun, before = llama.now, len(said[sequence(1)].pieces)
    while sequence(2) not in said:
        step(scheduler, said)
    speed = (len(said[sequence(1)].pieces) - before) / (llama.now - begun)
    assert speed * (llama.STEP + llama.EACH) > 0.45  # what is owed for the last batch is still to come
    assert llama.now - begun < 3 * 2000 * llama.EACH


def computed(batches: list[list[tuple[int, int]]], sequence: int) -> int:
    return sum(count for batch in batches for each, count in batch if each == sequence)


def test_a_short_prompt_does_not_wait_for_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = Timed(monkeypatch, context=8000)
    scheduler = engine(llama)
    said: dict[SequenceId, Said] = {}
    scheduler.submit(job(1, "p" * 3000))
    step(scheduler, said)
    for number in range(2, 5):
        scheduler.submit(job(number, str(number) * 100, max_tokens=2))
    before = len(llama.batches)
    while any(sequence(number) not in said for number in range(2, 5)):
        step(scheduler, said)
    assert sequence(1) not in said
    batches = llama.batches[before:]
    assert len(batches) < 20
    long = max({each for batch in batches for each, _ in batch}, key=lambda each: computed(batches, each))
    assert computed(batches, long) >= 300  # it moves on meanwhile
    assert run(scheduler, [])[sequence(1)].ended is Ended.LENGTH


def test_cancelling_frees_slot_and_cells_at_once() -> None:
    scheduler = engine(FakeLlama(slots=1))
    scheduler.submit(job(1, max_tokens=200))
    scheduler.submit(job(2, max_tokens=4))
    scheduler.step()
    assert (scheduler.load.active, scheduler.load.waiting) == (1, 1)
    scheduler.cancel(1)
    assert scheduler.load.used_cells == 0
    assert scheduler.step()[0].sequence == sequence(2)
    scheduler.cancel(2)
    scheduler.cancel(77)
    assert not scheduler.busy
    assert scheduler.step() == []


def test_a_request_that_waits_can_be_cancelled() -> None:
    scheduler = engine(FakeLlama(slots=1))
    scheduler.submit(job(1, max_tokens=3))
    scheduler.submit(job(2, choices=3))
    scheduler.cancel(2)
    assert set(run(scheduler, [])) == {sequence(1)}


def test_first_come_first_served() -> None:
    scheduler = engine(FakeLlama(slots=2))
    started: list[int] = []
    for number in range(6):
        scheduler.submit(job(number, max_tokens=3 + number))
    said: dict[SequenceId, Said] = {}
    while scheduler.busy:
        started += [moved.request for moved in step(scheduler, said) if moved.request not in started]
    assert started == list(range(6))


def test_a_request_without_room_waits_and_is_not_overtaken() -> None:
    llama = FakeLlama(context=100)
    scheduler = engine(llama)
    scheduler.submit(job(1, max_tokens=50))
    scheduler.step()
    scheduler.submit(job(2, max_tokens=60))
    scheduler.submit(job(3, max_tokens=4))
    scheduler.step()
    assert (scheduler.load.active, scheduler.load.waiting) == (1, 2)
    said = run(scheduler, [])
    assert [said[sequence(number)].ended for number in (1, 2, 3)] == [Ended.LENGTH] * 3
    assert len(llama.cells) <= llama.context


def test_what_is_cached_makes_room() -> None:
    llama = FakeLlama(context=100, slots=2)
    scheduler = engine(llama)
    answer(scheduler, job(1, "a" * 70, max_tokens=20))
    answer(scheduler, job(2, "a" * 30 + "b", max_tokens=69))  # its own source is in the way
    assert scheduler.tally(2).cached_tokens == 30
    answer(scheduler, job(3, "c" * 50, max_tokens=50))
    assert scheduler.load.cached_tokens <= 100


def test_the_context_is_the_limit() -> None:
    said = answer(engine(FakeLlama(context=20)), job(1, "p" * 15, max_tokens=500))
    assert len(said.pieces) == 5
    assert said.ended is Ended.LENGTH
    full = answer(engine(FakeLlama(context=20)), job(1, "p" * 20))
    assert (full.pieces, full.ended) == ([], Ended.LENGTH)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_model_is_a_dead_end_for_its_request(value: float, temperature: float) -> None:
    llama = FakeLlama()
    scheduler = engine(llama)
    scheduler.submit(job(1, temperature=temperature, frequency_penalty=1.0, top_logprobs=2))
    scheduler.step()
    llama.broken = value
    assert run(scheduler, [])[sequence(1)].ended is Ended.DEAD_END
    llama.broken = None
    assert answer(scheduler, job(2)).ended is Ended.LENGTH


def test_a_matcher_that_refuses_ends_only_its_own_request() -> None:
    scheduler = engine(FakeLlama())
    broken = VOCABULARY.matcher(LETTERS)
    broken.consume_token(ord("?"))
    said = run(scheduler, [dataclasses.replace(job(1), matcher=broken), job(2)])
    assert said[sequence(1)].ended is Ended.DEAD_END
    assert said[sequence(2)].ended is Ended.LENGTH


def test_no_room_in_spite_of_reservations_is_fatal() -> None:
    llama = FakeLlama()
    scheduler = engine(llama)
    scheduler.submit(job(1))
    llama.decode = lambda: False  # type: ignore[method-assign]
    with pytest.raises(DecodeFailed):
        scheduler.step()


def test_times_and_counts() -> None:
    scheduler = engine(FakeLlama(slots=1))
    run(scheduler, [job(1), job(2, max_tokens=5)])
    first, second = scheduler.tally(1), scheduler.tally(2)
    assert second.queue_s >= first.decode_s > 0
    assert first.prefill_s > 0
    assert (second.sampled_tokens, second.forced_tokens) == (5, 0)
    with pytest.raises(KeyError):
        scheduler.tally(1)


def test_closing_frees_the_model() -> None:
    llama = FakeLlama()
    scheduler = engine(llama)
    scheduler.submit(job(1))
    scheduler.step()
    scheduler.close()
    assert llama.closed
