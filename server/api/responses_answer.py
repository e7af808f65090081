"""Frames and folded answers to OpenAI's response objects and events.

A stream is: ``response.created`` and ``response.in_progress``; for each thought, text and call an
``output_item.added``, its deltas, and an ``output_item.done`` with the whole item; then
``response.completed``, ``response.incomplete`` or ``response.failed`` with the whole response. ``timings``
and ``warnings`` are ours.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

from server.api.answer import Answer, Choice
from server.errors import ErrorData
from server.events import CallArguments, CallEnd, CallStart, Event, Finish, Reasoning, Text, Usage
from server.frames import Accepted, Emitted, Finished

Json = dict[str, Any]


class ResponsesEncoder:
    """Makes the objects of one answer; ``echo`` are the fields of the request that it repeats."""

    def __init__(self, model: str, echo: Json) -> None:
        self._common: Json = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **echo,
        }
        self._number = -1
        self._choice = Choice()
        self._output: list[Json] = []
        self._open: Json | None = None

    def start(self, accepted: Accepted) -> Iterator[Json]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self.silence()

    def silence(self) -> Json:
        return self._event("response.in_progress", response=self._response("in_progress"))

    def chunks(self, frame: Emitted) -> Iterator[Json]:
        for event in frame.events:
            self._choice.add(event)
            yield from self._said(event)

    def finish(self, frame: Finished) -> Iterator[Json]:
        status = _status(self._choice)
        yield from self._close(status)
        response = self._response(status) | {"output": self._output} | _ended(frame)
        yield self._event(f"response.{status}", response=response)

    def failed(self, error: ErrorData) -> Iterator[Json]:
        yield from self._close("incomplete")
        told = {"code": error.code, "message": error.message}
        response = self._response("failed") | {"error": told, "output": self._output}
        yield self._event("response.failed", response=response)

    def whole(self, answer: Answer) -> Json:
        (choice,) = answer.choices
        output = list(_items(choice, self._common["id"]))
        return self._response(_status(choice)) | {"output": output} | _ended(answer)

    def _response(self, status: str) -> Json:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._common,
            "status": status,
            "output": [],
            "error": None,
            "incomplete_details": incomplete,
            "usage": None,
        }

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    # Items.

    def _said(self, event: Event) -> Iterator[Json]:
        match event:
            case Reasoning(text) if text:
                yield from self._begin("reasoning")
                yield self._delta("response.reasoning_text.delta", text, content_index=0)
            case Text(text) if text:
                yield from self._begin("message")
                yield self._delta("response.output_text.delta", text, content_index=0, logprobs=[])
            case CallStart(_, identifier, name):
                yield from self._close()
                yield from self._begin("function_call", identifier, name)
            case CallArguments(_, text) if text:
                yield self._delta("response.function_call_arguments.delta", text)
            case CallEnd():
                yield from self._close()
            case Finish():
                pass

    def _begin(self, kind: str, identifier: str = "", name: str = "") -> Iterator[Json]:
        """Begins an item of a kind, unless one is open."""
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self._close()
        number = len(self._output)
        self._open = _item(kind, f"{self._common['id']}_{number}", identifier, name)
        shown = {**self._open, "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=number, item=shown)
        if kind != "function_call":
            part = _part(kind, "")
            yield self._placed("response.content_part.added", content_index=0, part=part)

    def _placed(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._output)}
        return self._event(kind, **place, **fields)

    def _delta(self, kind: str, text: str, **fields: Any) -> Json:
        assert self._open is not None
        key = "arguments" if self._open["type"] == "function_call" else "text"
        self._open[key] = self._open.get(key, "") + text
        return self._placed(kind, delta=text, **fields)

    def _close(self, status: str = "completed") -> Iterator[Json]:
        """Ends the open item, if there is one."""
        if self._open is None:
            return
        kind, text = self._open["type"], self._open.pop("text", "")
        if kind == "function_call":
            arguments, name = self._open["arguments"], self._open["name"]
            yield self._placed("response.function_call_arguments.done", arguments=arguments, name=name)
        else:
            said = "reasoning_text" if kind == "reasoning" else "output_text"
            logprobs: Json = {"logprobs": []} if kind == "message" else {}
            yield self._placed(f"response.{said}.done", content_index=0, text=text, **logprobs)
            part = _part(kind, text)
            yield self._placed("response.content_part.done", content_index=0, part=part)
            self._open["content"] = [part]
        item = {**self._open, "status": status}
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open = None


def _item(kind: str, item_id: str, identifier: str, name: str) -> Json:
    match kind:
        case "function_call":
            call = {"call_id": identifier, "name": name, "arguments": ""}
            return {"type": kind, "id": f"fc_{item_id}", **call}
        case "message":
            return {"type": kind, "id": f"msg_{item_id}", "role": "assistant", "content": []}
    return {"type": kind, "id": f"rs_{item_id}", "summary": [], "content": []}


def _part(kind: str, text: str) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _items(choice: Choice, response: str) -> Iterator[Json]:
    """The items of a whole answer, as a stream makes them."""
    texts = [("reasoning", choice.reasoning), ("message", choice.text)]
    parts = [(kind, text) for kind, text in texts if text]
    last = len(parts) + len(choice.calls) - 1
    for number, (kind, text) in enumerate(parts):
        item = _item(kind, f"{response}_{number}", "", "")
        status = _status(choice) if number == last else "completed"
        yield {**item, "content": [_part(kind, text)], "status": status}
    for number, each in enumerate(choice.calls, len(parts)):
        item = _item("function_call", f"{response}_{number}", each.id, each.name)
        status = _status(choice) if number == last else "completed"
        yield {**item, "arguments": each.arguments, "status": status}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.reason == "length" else "completed"


def _ended(answer: Answer | Finished) -> Json:
    extras: Json = {"usage": _usage(answer.usage), "timings": answer.timings}
    return extras | ({"warnings": answer.warnings} if answer.warnings else {})


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
