"""One answer of a loaded model, folded: for tests of the whole runner without its process."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from server.engine.protocol import Engine
from server.events import CallArguments, CallEnd, CallStart, Finish, Reasoning, Text
from server.frames import Emitted, Failed, Finished
from server.runner.model import LoadedModel
from server.runner.prepare import Preparer
from server.runner.request import Request
from server.settings import Settings
from server.turn import Turn


class WithTemplate:
    """An engine whose model has another template."""

    def __init__(self, engine: Engine, template: str) -> None:
        self._engine = engine
        self.model = dataclasses.replace(engine.model, template=template)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@dataclass
class Told:
    """One answer, folded."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    complete: int = 0
    reason: str = ""
    error: str = ""
    code: str = ""
    thought: int = 0
    prepared_ms: float = 0.0


def told(model: LoadedModel, settings: Settings, turn: Turn, number: int) -> Told:
    prepared_turn = Preparer(model, settings).prepare(number, turn)
    request = Request(prepared_turn, model.engine)
    result = Told(prepared_ms=prepared_turn.prepare_s * 1000)
    while not request.done:
        for progress in model.engine.step():
            for frame in request.take(progress):
                match frame:
                    case Emitted():
                        for event in frame.events:
                            _fold(event, result)
                    case Failed():
                        result.error, result.code = frame.error.message, frame.error.code
                    case Finished():
                        result.thought = frame.usage.reasoning_tokens
    return result


def _fold(event: object, result: Told) -> None:
    match event:
        case Text():
            result.text += event.text
        case Reasoning():
            result.reasoning += event.text
        case CallStart():
            result.calls.append((event.name, ""))
        case CallArguments():
            name, arguments = result.calls[event.index]
            result.calls[event.index] = (name, arguments + event.text)
        case CallEnd():
            result.complete += 1
        case Finish():
            result.reason = event.reason
