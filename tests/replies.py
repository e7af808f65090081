"""What a client is told of a model's raw answer: the text goes through a turn's constraint, parser, gate and
encoder, whole and as a stream, cut in every way. All of these are the server's own; only the model is not.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import random
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from answers import random_cuts
from chunks import folded, stable
from languages import tokenizer_of
from llguidance import LLMatcher
from scripting import SILENT, script

from server.api import sse
from server.api.answer import fold
from server.api.chat_answer import ChatEncoder
from server.dialects.bound import BoundDialect
from server.dialects.dialect import Dialect
from server.dialects.table import DIALECTS, HERMES
from server.engine.protocol import Ended, Engine, Piece, Progress, SequenceId
from server.engine.scripted import ByteVocabulary
from server.events import Event, Timings, Usage
from server.frames import Accepted, Emitted, Finished
from server.prompt.prompt import CHATML, Prompter
from server.runner.answer import Answer, Next
from server.runner.model import LoadedModel, load_model
from server.runner.prepare import PreparedTurn, Preparer
from server.settings import Settings
from server.supervisor import AnswerFrame
from server.turn import Message, Tool, Turn

ROWS = {row.name: row for row in DIALECTS}


def tool(name: str, required: Sequence[str] | None = None, **properties: Any) -> Tool:
    """A tool whose parameters are all required, if nothing else is said."""
    if not properties:
        return Tool(name)
    needed = list(properties if required is None else required)
    return Tool(name, None, json.dumps({"type": "object", "properties": properties, "required": needed}))


TEXT = {"type": "string"}
WEATHER = tool("get_weather", city=TEXT)
READ = tool("read_file", path=TEXT)
WRITE = tool("write_file", path=TEXT, content=TEXT)
SHELL = tool("bash", command=TEXT)
NOW = tool("now")


@dataclass(frozen=True)
class Reply:
    """The first choice of an answer: calls as name and arguments, these as their exact text."""

    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    finish: str = "stop"


def in_hermes(name: str, arguments: str) -> str:
    """A call as models of that dialect write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def in_qwen(name: str, *values: tuple[str, str]) -> str:
    """A call with an element for each argument."""
    elements = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{elements}</function>\n</tool_call>"


PARIS, OSLO = (f'{{"city": "{city}"}}' for city in ("Paris", "Oslo"))


def called(*calls: tuple[str, str], content: str | None = None, reasoning: str = "") -> Reply:
    return Reply(content, calls, reasoning, "tool_calls")


class _Vocabulary(ByteVocabulary):
    """The bytes, and one token for each marker: 257 for the first."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        super().__init__()
        self._markers = markers

    def matcher(self, constraint: str) -> LLMatcher:
        matcher = LLMatcher(tokenizer_of(self._markers), LLMatcher.grammar_from_lark(constraint), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher


@functools.cache
def _scripted() -> LoadedModel:
    with tempfile.TemporaryDirectory() as folder:
        return load_model(Settings(replay=script(Path(folder), SILENT)))


@functools.cache
def _prompter(row: Dialect, open_thought: bool) -> Prompter:
    opener = row.reasoning[0] if row.reasoning and open_thought else ""
    return Prompter(CHATML + f"{{{{ {opener!r} }}}}", row, ByteVocabulary())


class Model:
    """A model of one dialect: its markers are text, or (``tokens``) one token each; ``open_thought``: its
    prompts end inside a thought. ``settings`` are those of the server."""

    def __init__(
        self, row: Dialect = HERMES, *, tokens: bool = False, open_thought: bool = False, **settings: Any
    ) -> None:
        self.row = row
        self.markers = tuple(sorted(set(row.hidden_texts), key=len, reverse=True)) if tokens else ()
        bound = BoundDialect(row, {marker: 257 + at for at, marker in enumerate(self.markers)})
        self._preparer = Preparer(
            dataclasses.replace(
                _scripted(),
                bound=bound,
                prompter=_prompter(row, open_thought),
                engine=cast(
                    Engine,
                    SimpleNamespace(vocabulary=_Vocabulary(self.markers), model=_scripted().engine.model),
                ),
            ),
            Settings(**settings),
        )

    def prepared(self, *tools: Tool, **turn: Any) -> PreparedTurn:
        return self._preparer.prepare(1, Turn((Message("user", "Go on"),), tools, **turn))

    def pieces(self, raw: str) -> list[Piece]:
        """The text as one piece a byte, and one for each marker that is a token."""
        parts = re.split("(" + "|".join(map(re.escape, self.markers)) + ")", raw) if self.markers else [raw]
        made: list[Piece] = []
        for part in parts:
            if part in self.markers:
                made.append(Piece(257 + self.markers.index(part), part.encode()))
            else:
                made += [Piece(-1, bytes([each])) for each in part.encode()]
        return made

    def allows(self, raw: str, *tools: Tool, whole: bool = True, **turn: Any) -> bool:
        """Whether the constraint has the text, as an answer or else as the beginning of one."""
        return self._allows(self.prepared(*tools, **turn), raw, whole)

    def _allows(self, ready: PreparedTurn, raw: str, whole: bool) -> bool:
        ids = [piece.token if piece.token >= 0 else piece.data[0] for piece in self.pieces(raw)]
        matcher = ready.job.matcher.deep_copy()
        return matcher.try_consume_tokens(ids) == len(ids) and (matcher.is_accepting() or not whole)

    def replied(self, raw: str, *tools: Tool, ended: Ended = Ended.STOP, **turn: Any) -> Reply:
        """The reply to a raw answer. It must be the same however the answer is cut, as a stream and as a
        whole, and, if it is complete, whether or not a constraint is known to have written it."""
        ready = self.prepared(*tools, **turn)
        trusted = self._allows(ready, raw, whole=ended is Ended.STOP)
        replies = {
            _reply(ready, cut, ended, trust)
            for cut in cuts(self.pieces(raw))
            for trust in {trusted, trusted and ended is not Ended.STOP}
        }
        assert len(replies) == 1, replies
        return replies.pop()

    def deltas(self, raw: str | Sequence[bytes], *tools: Tool, **turn: Any) -> list[dict[str, Any]]:
        """The deltas of the stream of a raw answer that is generated in these pieces, or byte by byte."""
        ready = self.prepared(*tools, **turn)
        made = self.pieces(raw) if isinstance(raw, str) else [Piece(-1, each) for each in raw]
        chunks = _stream(_frames(ready, made, Ended.STOP, trusted=True))
        return [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]


@functools.cache
def model(
    name: str = "hermes", *, tokens: bool = False, open_thought: bool = False, **settings: Any
) -> Model:
    return Model(ROWS[name], tokens=tokens, open_thought=open_thought, **settings)


def cuts(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """The pieces joined in many ways; a token of a marker is not joined to others."""
    yield _joined(pieces, len(pieces))
    yield pieces
    chance = random.Random(len(pieces))
    for _ in range(20):
        yield _joined(pieces, 0, chance)


def _joined(pieces: list[Piece], most: int, chance: random.Random | None = None) -> list[Piece]:
    runs: list[list[Piece]] = [[]]
    for piece in pieces:
        if piece.token >= 0:
            runs += [[piece], []]
        else:
            runs[-1].append(piece)
    made: list[Piece] = []
    for run in filter(None, runs):
        data = b"".join(each.data for each in run)
        if run[0].token >= 0:
            made += run
        else:
            parts = random_cuts(data, chance) if chance else [data]
            made += [Piece(-1, part) for part in parts if part]
    return made


def _frames(
    ready: PreparedTurn, pieces: Sequence[Piece], ended: Ended, *, trusted: bool
) -> list[AnswerFrame]:
    answer = Answer(ready.plan, trusted=trusted)
    frames: list[AnswerFrame] = []
    steps = [Progress(SequenceId(1, 0), (piece,)) for piece in pieces]
    for progress in [*steps, Progress(SequenceId(1, 0), (), ended)]:
        step = answer.feed(progress)
        assert step.error is None, step.error
        events: tuple[Event, ...] = tuple(step.events)
        frames.append(Emitted(1, 0, events))
        if step.next is Next.END:
            break
    return [*frames, Finished(1, Usage(1, 1), Timings())]


def _stream(frames: list[AnswerFrame]) -> list[Any]:
    encoder = ChatEncoder("m", "b0", 1, include_usage=False, logprobs=False)
    chunks = list(encoder.start(Accepted(1, 3)))
    for frame in frames:
        if isinstance(frame, Emitted):
            chunks += encoder.chunks(frame)
        elif isinstance(frame, Finished):
            chunks += encoder.finish(frame)
    return [*(_decoded(each) for each in chunks), "[DONE]"]


def _decoded(content: Any) -> Any:
    return json.loads(sse.event(content).removeprefix(b"data: "))


def _whole(frames: list[AnswerFrame]) -> dict[str, Any]:
    async def each() -> AsyncIterator[AnswerFrame | None]:
        for frame in frames:
            yield frame

    encoder = ChatEncoder("m", "b0", 1, include_usage=False, logprobs=False)
    whole = encoder.whole(asyncio.run(fold(each(), 1)))
    return {name: value for name, value in _decoded(whole).items() if name != "usage"}


def _reply(ready: PreparedTurn, pieces: list[Piece], ended: Ended, trusted: bool) -> Reply:
    frames = _frames(ready, pieces, ended, trusted=trusted)
    whole = _whole(frames)
    assert stable(folded(_stream(frames), text_after_calls=not trusted)) == stable(whole)
    return reply_of(whole)


def reply_of(answer: dict[str, Any]) -> Reply:
    """The first choice of a whole answer."""
    choice = answer["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls", ())
    functions = [each["function"] for each in calls]
    assert {each["type"] for each in calls} <= {"function"}
    assert len({each["id"] for each in calls}) == len(calls)
    return Reply(
        message["content"],
        tuple((each["name"], each["arguments"]) for each in functions),
        message.get("reasoning_content", ""),
        choice["finish_reason"],
    )
