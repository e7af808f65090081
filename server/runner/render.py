"""The work of ``toolspan render``: what a template makes of a conversation. No weights are loaded.

``python -m server.runner.render TURN KIND SOURCE [--prompt]``: a file with a ``Turn`` as JSON, then
``--model`` and a GGUF or ``--template`` and a file. What comes on standard input, if that is no terminal, is
read as the model's answer. With ``--prompt`` nothing is shown but the prompt's text, as it is.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from server.dialects.detect import detect
from server.dialects.table import ALL_MARKERS
from server.engine.protocol import Ended, Engine, Model, Piece, Progress, SequenceId, Vocabulary
from server.engine.scripted import ByteVocabulary
from server.errors import StartupFailed, ToolspanError
from server.events import CallArguments, CallEnd, CallStart, Event, Finish, Reasoning, Text
from server.runner.answer import Answer
from server.runner.model import LoadedModel, model_of
from server.runner.origin import Origins
from server.runner.prepare import PreparedTurn, Preparer
from server.settings import Settings
from server.turn import Turn

_CONTEXT = 2**31 - 1


class _NoEngine:
    """A vocabulary and a template; nothing can be generated."""

    def __init__(self, vocabulary: Vocabulary, template: str | None, architecture: str) -> None:
        self.vocabulary = vocabulary
        self.model = Model(architecture, _CONTEXT, _CONTEXT, 1, template)


def main(turn_file: str, kind: str, source: str, *alone: str) -> int:
    turn = msgspec.json.decode(Path(turn_file).read_bytes(), type=Turn)
    settings = Settings(model=source)
    try:
        engine = _of_model(Path(source)) if kind == "--model" else _of_template(Path(source))
        model = model_of(cast(Engine, engine), settings)
        preparer = Preparer(model, settings)
        if alone:
            print(preparer.rendered(turn).text, end="")
            return 0
        prepared = preparer.prepare(0, turn)
    except ToolspanError as error:
        print(f"toolspan: {error.message}", file=sys.stderr)
        return 1
    _show_dialect(model, engine.model.template)
    _show_prompt(model, prepared, turn)
    print(f"--- constraint\n{prepared.constraint}", end="")
    if not sys.stdin.isatty() and (answer := sys.stdin.buffer.read()):
        _show_answer(prepared, answer)
    return 0


def _of_template(file: Path) -> _NoEngine:
    return _NoEngine(ByteVocabulary(), file.read_text(encoding="utf-8"), "none")


def _of_model(file: Path) -> _NoEngine:
    # Imported here so that a template alone is shown without llama.cpp being loaded.
    from server.engine.llama import Weights
    from server.engine.vocabulary import LlamaVocabulary

    weights = Weights(file, vocabulary_only=True)
    if weights.pooling:
        raise StartupFailed(f"{file.name} makes embeddings and reads no messages")
    return _NoEngine(LlamaVocabulary(weights.tokens, ALL_MARKERS), weights.template, "gguf")


def _show_dialect(model: LoadedModel, template: str | None) -> None:
    dialect, wanted = model.bound.dialect, detect(template)
    cues = ", ".join(map(repr, wanted.cues)) or "no cue of any other row"
    read = "read back" if dialect.name == wanted.name else "not read back"
    print(f"dialect   {dialect.name} ({dialect.grammar}.lark, rule {dialect.span})")
    print(f"why       the template has {cues}; its own calls were {read} as {wanted.name}")
    print(f"parallel  {'yes' if dialect.parallel else 'no'}")
    for marker in dict.fromkeys(dialect.hidden_texts):
        token = model.bound.tokens.get(marker)
        print(f"marker    {marker!r} {'is text' if token is None else f'is token {token}'}")
    for warning in model.facts.warnings:
        print(f"note      {warning}")


def _show_prompt(model: LoadedModel, prepared: PreparedTurn, turn: Turn) -> None:
    """The prompt with its control tokens between ⟦ and ⟧."""
    count, thought = len(prepared.job.prompt), prepared.plan.reasoning.value
    print(f"--- prompt, {count} tokens; a thought in the answer: {thought}")
    parts = Origins(model.engine.vocabulary).parts(prepared.job.prompt)
    print("".join(f"⟦{each.text}⟧" if each.control else each.text for each in parts))


def _show_answer(prepared: PreparedTurn, answer: bytes) -> None:
    """The events of a text, as if the model had written it without constraint."""
    reader = Answer(prepared.plan, trusted=False)
    step = reader.feed(Progress(SequenceId(0, 0), (Piece(-1, answer),), Ended.STOP))
    print("--- answer")
    for event in step.events:
        print(_line(event))
    if step.error is not None:
        print(f"error     {step.error.message}")
    for warning in reader.warnings:
        print(f"warning   {warning.message}")


def _line(event: Event) -> str:
    match event:
        case Reasoning() | Text():
            return f"{type(event).__name__.lower():9} {event.text!r}"
        case CallStart():
            return f"call      {event.name}"
        case CallArguments():
            return f"arguments {event.text}"
        case CallEnd():
            return "call ends"
        case Finish():
            return f"finish    {event.reason}"
    return repr(cast(Any, event))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends quietly where the output is cut off
    raise SystemExit(main(*sys.argv[1:]))
