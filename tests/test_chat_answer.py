"""Frames to chat completion objects: the stream's shape, and stream equal to whole, for any answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from chunks import folded, stable
from hypothesis import given
from hypothesis import strategies as st

from server.api import sse
from server.api.answer import Answer, fold
from server.api.chat_answer import ChatEncoder
from server.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
    Timings,
    TokenLogprob,
    TopLogprob,
    Usage,
    Warning,
)
from server.frames import Accepted, Emitted, Finished
from server.supervisor import AnswerFrame

texts = st.text(max_size=5)
logprobs = st.floats(max_value=0) | st.just(float("nan"))
scored = st.builds(
    TokenLogprob,
    texts,
    st.binary(max_size=4),
    logprobs,
    st.lists(st.builds(TopLogprob, texts, st.binary(max_size=4), logprobs), max_size=2).map(tuple),
)
finished = st.builds(
    Finished,
    st.just(1),
    st.builds(Usage, *[st.integers(0, 9)] * 4),
    st.just(Timings(queue_ms=1.5)),
    st.lists(st.builds(Warning, st.just("code"), texts), max_size=2).map(tuple),
)


@st.composite
def said(draw: st.DrawFn, scoring: bool) -> list[Event]:
    """The events of one choice, in the order that is promised."""
    events: list[Event] = [Reasoning(each) for each in draw(st.lists(texts, max_size=3))]
    for text in draw(st.lists(texts, max_size=3)):
        events.append(Text(text, tuple(draw(st.lists(scored, max_size=2))) if scoring else ()))
    calls = draw(st.lists(st.lists(texts, max_size=3), max_size=3))
    for index, fragments in enumerate(calls):
        events.append(CallStart(index, f"id{index}", draw(st.text(min_size=1, max_size=5))))
        events += [CallArguments(index, each) for each in fragments]
        events.append(CallEnd(index))
    reasons = st.just("tool_calls") if calls else st.sampled_from(["stop", "length"])
    return [*events, Finish(draw(reasons))]


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, bool, list[AnswerFrame]]:
    """Number of choices, whether with logprobs, and frames in which the choices take turns."""
    scoring = draw(st.booleans())
    waiting = dict(enumerate(draw(st.lists(said(scoring), min_size=1, max_size=3))))
    count = len(waiting)
    frames: list[AnswerFrame] = []
    while waiting:
        choice = draw(st.sampled_from(sorted(waiting)))
        cut = draw(st.integers(1, 4))
        frames.append(Emitted(1, choice, tuple(waiting[choice][:cut])))
        waiting[choice] = waiting[choice][cut:]
        if not waiting[choice]:
            del waiting[choice]
    return count, scoring, [*frames, draw(finished)]


def streamed(encoder: ChatEncoder, frames: Iterable[AnswerFrame]) -> list[Any]:
    """What a client reads of a stream."""
    chunks = list(encoder.start(Accepted(1, 3)))
    for frame in frames:
        if isinstance(frame, Emitted):
            chunks += encoder.chunks(frame)
        elif isinstance(frame, Finished):
            chunks += encoder.finish(frame)
    lines = [sse.event(each) for each in chunks]
    assert all(line.count(b"\n") == 2 for line in lines)
    return [*(json.loads(line.removeprefix(b"data: ")) for line in lines), "[DONE]"]


def whole(frames: Iterable[AnswerFrame], choices: int) -> Answer:
    async def each() -> AsyncIterator[AnswerFrame | None]:
        for frame in frames:
            yield None
            yield frame

    return asyncio.run(fold(each(), choices))


@given(answers())
def test_a_stream_folds_to_the_whole_answer(case: tuple[int, bool, list[AnswerFrame]]) -> None:
    choices, scoring, frames = case
    encoder = ChatEncoder("m", "b0", choices, include_usage=True, logprobs=scoring)
    stream = folded(streamed(encoder, frames))
    answer = json.loads(json.dumps(_decoded(encoder.whole(whole(frames, choices)))))
    for choice in answer["choices"]:  # a stream shows no empty list of logprobs
        if choice["logprobs"] == {"content": [], "refusal": None}:
            choice["logprobs"] = None
    assert stable(stream) == stable(answer)
    assert stream["id"] == answer["id"]


@given(answers())
def test_usage_comes_only_if_asked_for(case: tuple[int, bool, list[AnswerFrame]]) -> None:
    choices, _, frames = case
    plain = streamed(ChatEncoder("m", "b0", choices, include_usage=False, logprobs=False), frames)
    assert not any("usage" in chunk for chunk in plain[:-1])
    assert all(len(chunk["choices"]) == 1 for chunk in plain[:-1])
    asked = streamed(ChatEncoder("m", "b0", choices, include_usage=True, logprobs=False), frames)
    assert [chunk["usage"] is None for chunk in asked[:-1]] == [True] * (len(asked) - 2) + [False]
    assert asked[-2]["choices"] == []


def _decoded(content: Any) -> Any:
    return json.loads(sse.event(content).removeprefix(b"data: "))


def test_logprobs_have_openais_shape_and_are_finite() -> None:
    top = (TopLogprob("b", b"b", float("nan")),)
    frames: list[AnswerFrame] = [
        Emitted(1, 0, (Text("é", (TokenLogprob("é", "é".encode(), -0.5, top),)), Finish("stop"))),
        Finished(1, Usage(1, 1), Timings()),
    ]
    encoder = ChatEncoder("m", "b0", 1, include_usage=False, logprobs=True)
    answer = _decoded(encoder.whole(whole(frames, 1)))
    token = answer["choices"][0]["logprobs"]["content"][0]
    assert token == {
        "token": "é",
        "logprob": -0.5,
        "bytes": [195, 169],
        "top_logprobs": [{"token": "b", "logprob": -9999.0, "bytes": [98]}],
    }


def test_ids_are_random() -> None:
    made = [ChatEncoder("m", "b0", 1, include_usage=False, logprobs=False).silence()["id"] for _ in range(2)]
    assert made[0] != made[1]
    assert all(each.startswith("chatcmpl-") for each in made)
