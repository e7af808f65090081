"""A chat completion stream checked for its shape, and folded to what the whole answer would be."""

from __future__ import annotations

from typing import Any

SHARED = ("id", "object", "created", "model", "system_fingerprint")
VARYING = ("id", "created", "timings")


def folded(events: list[Any], *, text_after_calls: bool = False) -> dict[str, Any]:
    """The answer that a stream tells. Fails where the stream is not exactly as clients expect it.
    ``text_after_calls``: there may be some, as only a model can write it that nothing constrains."""
    *chunks, done = events
    assert done == "[DONE]"
    assert chunks, "an empty stream"
    shared = {name: chunks[0][name] for name in SHARED}
    assert shared["object"] == "chat.completion.chunk"
    choices: dict[int, _Choice] = {}
    answer: dict[str, Any] = {}
    for chunk in chunks:
        assert {name: chunk[name] for name in SHARED} == shared
        assert "usage" not in answer, "a chunk after the usage"
        if not chunk["choices"]:
            answer["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], _Choice(text_after_calls)).add(choice)
        answer |= {name: chunk[name] for name in ("timings", "warnings") if name in chunk}
    assert sorted(choices) == list(range(len(choices)))
    whole = [choices[index].whole(index) for index in sorted(choices)]
    return shared | {"object": "chat.completion", "choices": whole} | answer


def stable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs each time, ids of calls included."""
    choices = [_without_ids(choice) for choice in answer["choices"]]
    return {name: value for name, value in answer.items() if name not in VARYING} | {"choices": choices}


def _without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    message = dict(choice["message"])
    if "tool_calls" in message:
        message["tool_calls"] = [each | {"id": ""} for each in message["tool_calls"]]
    return choice | {"message": message}


class _Choice:
    def __init__(self, text_after_calls: bool) -> None:
        self._text_after_calls = text_after_calls
        self.message: dict[str, Any] = {}
        self.logprobs: dict[str, Any] | None = None
        self.reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}
        assert self.reason is None, "a delta after the finish reason"
        delta = choice["delta"]
        if not self.message:
            assert delta == {"role": "assistant", "content": None}
            self.message = dict(delta)
            return
        assert set(delta) <= {"content", "reasoning_content", "tool_calls"}, delta
        self._add_text(delta)
        for call in delta.get("tool_calls", ()):
            self._add_call(call)
        if choice["logprobs"]:
            self.logprobs = self.logprobs or {"content": [], "refusal": None}
            self.logprobs["content"] += choice["logprobs"]["content"]
        if choice["finish_reason"] is not None:
            assert delta == {}
            self.reason = choice["finish_reason"]

    def _add_text(self, delta: dict[str, Any]) -> None:
        for name in ("content", "reasoning_content"):
            if name in delta:
                assert delta[name], f"an empty {name} delta"
                assert self._text_after_calls or "tool_calls" not in self.message, "text after a call"
                self.message[name] = (self.message.get(name) or "") + delta[name]

    def _add_call(self, call: dict[str, Any]) -> None:
        calls = self.message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            assert set(call) == {"index", "id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
            assert call["function"]["arguments"] == ""
            calls.append({name: call[name] for name in ("id", "type")} | {"function": dict(call["function"])})
        else:
            assert call["index"] == len(calls) - 1, "a delta of a call that is not the last"
            assert set(call) == {"index", "function"}
            assert set(call["function"]) == {"arguments"}
            assert call["function"]["arguments"]
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]

    def whole(self, index: int) -> dict[str, Any]:
        assert self.reason in ("stop", "length", "tool_calls")
        message = dict(self.message)
        if "tool_calls" not in message and message["content"] is None:
            message["content"] = ""
        return {
            "index": index,
            "message": message,
            "logprobs": self.logprobs,
            "finish_reason": self.reason,
        }
