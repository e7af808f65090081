"""What is said where a replay stands in for a model: answers from a script file, or from the built-in script.

The file is JSON Lines; ``docs/replay.md`` has the fields. Which line answers a request is decided when the
request is prepared, and what the line says is written as a model of the dialect would write it: the engine
then plays raw text, and nothing after it knows of scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from server.dialects.dialect import Dialect
from server.dialects.form import written_calls
from server.dialects.values import in_json
from server.engine.protocol import Ended, Job
from server.engine.scripted import Played, ScriptedJob, TimedText, follows
from server.errors import ErrorData, InvalidRequest, Remote, StartupFailed, quoted
from server.frames import PromptPart
from server.runner.builtin import Asked, Said, said
from server.runner.matching import Requests
from server.runner.recorded import Count, Ms, RecordedModel, SingleToken, Take, Text
from server.settings import BUILT_IN
from server.turn import ToolCall, Turn

_ERROR_TYPES = {429: "rate_limit_error", 503: "service_unavailable"}


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a line."""

    name: str
    arguments: dict[str, msgspec.Raw] = {}

    @property
    def call(self) -> ToolCall:
        """The call with its arguments spaced as models write JSON."""
        arguments = {key: json.loads(bytes(value)) for key, value in self.arguments.items()}
        return ToolCall("", self.name, in_json(arguments))


class ScriptedError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request is refused with; ``retry_after`` in seconds, ``param`` the field it is about."""

    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    message: str = "as the script says"
    code: str = "replayed_error"
    retry_after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    param: str | None = None

    @property
    def data(self) -> ErrorData:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _ERROR_TYPES.get(self.status, kind)
        return ErrorData(self.status, kind, self.code, self.message, self.param, self.retry_after)


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer of a script, and when it is given; or the model that a recording is of. What is recorded
    answers its ``request`` alone, with ``answers``: one for each choice, the takes sampled for it."""

    recording: RecordedModel | None = None
    request: Turn | None = None
    prompt: tuple[PromptPart, ...] = ()
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    constraint: str = ""
    answers: tuple[Annotated[tuple[Take, ...], msgspec.Meta(min_length=1)], ...] = ()
    when: str = ""
    once: bool = False
    reasoning: str = ""
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    pieces: tuple[Text | Ms, ...] = ()
    takes: tuple[str, ...] = ()
    builtin: bool = False
    error: ScriptedError | None = None
    prefill_ms: Ms = 0.0
    delay_ms: Ms = 0.0
    ended: Literal["stop", "length", "dead_end"] = "stop"
    fault: Literal["", "abort", "exit", "hang"] = ""

    @property
    def said(self) -> Said:
        return Said(self.reasoning, self.text, tuple(each.call for each in self.calls))

    @property
    def has_cue(self) -> bool:
        """Whether it answers by its cue."""
        return self.recording is None and self.request is None

    @property
    def sources(self) -> int:
        """How many ways of answering it has, of which there may be one."""
        spoken = bool(self.reasoning or self.text or self.calls)
        raw = (self.pieces, self.takes, self.answers)
        return sum([spoken, *map(bool, raw), self.builtin, self.error is not None])


Script = tuple[Line, ...]


def load_script(name: str) -> Script:
    """The lines of a file, or the one that stands for the built-in script. Raises ``StartupFailed``."""
    if name == BUILT_IN:
        return (Line(builtin=True),)
    try:
        texts = Path(name).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise StartupFailed(f"cannot read the script {name}: {error}") from error
    numbered = [(number, text) for number, text in enumerate(texts, 1) if text.strip()]
    return tuple(_line(text, f"the script {name}, line {number}") for number, text in numbered)


def recorded_model(script: Script) -> RecordedModel | None:
    """The model that a script was recorded of, if it was. Raises ``StartupFailed`` for several."""
    models = {line.recording: None for line in script if line.recording is not None}
    if len(models) > 1:
        raise StartupFailed("the script has recordings of several models: replay them one by one")
    return next(iter(models), None)


def _line(text: str, where: str) -> Line:
    try:
        line = msgspec.json.decode(text, type=Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StartupFailed(f"cannot read {where}: {error}") from error
    if line.sources > 1:
        raise StartupFailed(
            f"{where}: an answer is reasoning, text and calls, or pieces, or takes, or answers, or builtin, "
            "or an error"
        )
    return line


class Replay:
    """Gives each job the answer that the script has for it. ``chunk`` is how many characters are a piece,
    ``single_token`` says which texts are control tokens.

    One thread uses it: lines that are given ``once``, and recorded ones, are remembered.
    """

    def __init__(self, script: Script, dialect: Dialect, chunk: int, single_token: SingleToken) -> None:
        self._script = script
        self._dialect = dialect
        self._chunk = chunk
        self._single_token = single_token
        self._spent: set[int] = set()
        numbered = enumerate(script)
        self._requests = Requests((at, line.request) for at, line in numbered if line.request is not None)

    def scripted(self, job: Job, asked: Asked) -> ScriptedJob:
        """The job with its answer. Raises what the script says in place of an answer, and ``InvalidRequest``
        where it has none."""
        entry = self._requests.entry(asked.turn)
        line = self._line(asked) if entry is None else self._script[entry]
        if line.error is not None:
            raise Remote(line.error.data)
        given = {each.name: getattr(job, each.name) for each in fields(job)}
        if line.answers:
            return ScriptedJob(**given | self._recorded(line))
        takes = tuple(self._takes(line, job, asked))
        return ScriptedJob(**given, answer=Played(takes, Ended(line.ended), line.fault))

    def _recorded(self, line: Line) -> dict[str, Any]:
        """What a recorded line says of a job; its prompt has as many tokens as the model has read."""
        first, *others = (
            Played(tuple(take.moments(self._single_token) for take in takes), recorded=True)
            for takes in line.answers
        )
        counts = {"prompt": (0,) * line.prompt_tokens, "cached_tokens": line.cached_tokens}
        return {"answer": first, "others": tuple(others), **counts}

    def _line(self, asked: Asked) -> Line:
        """The line whose cue stands last in the prompt, the first of several; none of a recording."""
        prompt = asked.prompt
        free = [each for each in enumerate(self._script) if each[0] not in self._spent and each[1].has_cue]
        fitting = [(number, line) for number, line in free if line.when in prompt]
        if not fitting and self._requests:
            raise InvalidRequest(
                "the recording has no answer to this request: the most similar one in it differs in "
                + self._requests.difference(asked.turn),
                code="request_not_recorded",
            )
        if not fitting:
            raise InvalidRequest(
                "no line of the script answers this request: none has a cue that stands in its prompt",
                code="no_scripted_answer",
            )
        number, line = max(fitting, key=lambda each: prompt.rfind(each[1].when) if each[1].when else -1)
        if line.once:
            self._spent.add(number)
        return line

    def _takes(self, line: Line, job: Job, asked: Asked) -> Iterator[tuple[TimedText, ...]]:
        texts: Sequence[str] = line.takes
        if line.pieces:
            yield tuple(_timed(line, line.pieces))
        elif not texts:
            answer = self._without_markers(said(asked)) if line.builtin else line.said
            answer = answer if asked.thoughts else replace(answer, reasoning="")
            texts = [self._written(answer, job, whole=line.ended == "stop")]
        for text in texts:
            yield tuple(_timed(line, self._cut(text)))

    def _cut(self, text: str) -> list[str]:
        return [text[at : at + self._chunk] for at in range(0, len(text), self._chunk)]

    def _written(self, answer: Said, job: Job, *, whole: bool) -> str:
        """The answer as a model of the dialect writes it, without words before a call that has to come first.
        Raises ``InvalidRequest`` where this request lets no model say it; ``whole``: it also has to be
        complete."""
        calls = written_calls(self._dialect, answer.calls) if answer.calls else ""
        thought = self._thought(answer.reasoning)
        texts = [thought + answer.text + calls, *([thought + calls] if calls else [])]
        for text in texts:
            if follows(job.matcher, text, whole=whole):
                return text
        raise InvalidRequest(
            f"the script answers {quoted(texts[0])}, which this request lets no model say: its tools, "
            "their schemas, tool_choice or response_format rule it out",
            code="scripted_answer_not_allowed",
        )

    def _thought(self, text: str) -> str:
        pair = self._dialect.reasoning
        return f"{pair[0]}{text}{pair[1]}{self._dialect.after_reasoning}" if pair and text else ""

    def _without_markers(self, answer: Said) -> Said:
        """The answer with a space in what would be a marker, which no model can say as text: the built-in
        script repeats what it was told."""
        text = answer.text
        for marker in self._dialect.hidden_texts:
            text = text.replace(marker, f"{marker[:1]} {marker[1:]}")
        return replace(answer, text=text)


def _timed(line: Line, pieces: Iterable[str | float]) -> Iterator[TimedText]:
    """Pieces with the silence before each: the line's own, and that of the numbers, in milliseconds."""
    silence = line.prefill_ms
    for each in pieces:
        if isinstance(each, str):
            yield TimedText(each, (silence + line.delay_ms) / 1000)
            silence = 0.0
        else:
            silence += each
    if silence:
        yield TimedText("", silence / 1000)
