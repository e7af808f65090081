"""The commands: ``toolspan serve``, ``models``, ``check-tools`` and ``render``."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from server import logs, record_file
from server import settings as settings_module
from server.api.chat_request import decode
from server.api.parts import Served
from server.catalogue import CATALOGUE, resolve
from server.download import cache_folder
from server.errors import StartupFailed, ToolspanError, quoted
from server.frames import ModelFacts
from server.model_file import check
from server.programs import program
from server.settings import BUILT_IN, Settings

_log = logging.getLogger("toolspan")
_SOURCES = ("--model", "--template")
_PROMPT_ALONE = "--prompt"
USAGE = """usage: toolspan COMMAND [OPTIONS]

  serve    serve a model (toolspan serve --help lists the options)
  models   list the models that can be fetched by name
  check-tools
           say what of the schemas in FILE (tools, or a request; - is standard input) is enforced, verified
           or refused; the exit status is 1 if a tool is refused:
           toolspan check-tools FILE [--json]
  render   show what a model's template makes of a conversation, the answer's grammar, and what an answer
           on standard input is read as; nothing is generated:
           toolspan render FILE (--model MODEL | --template FILE) [--tools FILE] [--prompt]
           FILE has a list of messages or a whole request; --prompt shows the prompt's text alone
"""


def run(words: list[str]) -> int:
    """Runs the command that ``words`` name; returns the exit status."""
    try:
        return _run(words)
    except StartupFailed as error:
        print(f"toolspan: {error.message}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    match words:
        case ["serve", *options]:
            return _serve(settings_module.load(options))
        case ["models"]:
            return _models()
        case ["check-tools", file] | ["check-tools", file, "--json"] | ["check-tools", "--json", file]:
            return _check_tools(file, "--json" in words)
        case ["render", file, *options]:
            return _render(file, options)
        case [] | ["-h" | "--help" | "help"]:
            print(USAGE, end="")
            return 0
    raise StartupFailed(f"{quoted(' '.join(words))} is no command; try toolspan --help")


def _serve(settings: Settings) -> int:
    # Imported here so that the other commands start without the web framework, which takes a second.
    from server.api.server import serve

    logs.configure(settings.log_level)
    return serve(settings, lambda facts, address: _announce(settings, facts, address), _find_model)


def _find_model(settings: Settings) -> Settings:
    """Fetches the model where that is needed, and checks it; before that, where a recording goes."""
    if settings.record:
        _check_record(settings)
    if settings.replay:
        return settings
    return dataclasses.replace(
        settings, model=_model_file(settings.model), snapshot_folder=_snapshot_folder(settings)
    )


def _check_record(settings: Settings) -> None:
    record_file.check(settings.record)
    if settings.replay not in ("", BUILT_IN) and os.path.realpath(settings.replay) == os.path.realpath(
        settings.record
    ):
        raise StartupFailed("record and replay name the same file: what is replayed would be added to it")


def _snapshot_folder(settings: Settings) -> str:
    """The folder for prefixes; nothing where there is none to be had, which only costs time."""
    if settings.snapshot_folder or not settings.snapshots:
        return os.path.expanduser(settings.snapshot_folder)
    try:
        return str(cache_folder() / "prefixes")
    except StartupFailed as error:
        _log.warning("no prefixes are kept on disk: %s", error.message)
        return ""


def _model_file(model: str) -> str:
    """The file of a catalogue key, a path or an ``hf:`` name, checked."""
    path = resolve(model)
    check(path)
    return str(path)


def _announce(settings: Settings, facts: ModelFacts, address: str) -> None:
    """What the operator needs to know once the model answers."""
    note = _replayed(settings.replay) or next((each.note for each in CATALOGUE if each.key == facts.name), "")
    print(f"model     {facts.name}{f' ({note})' if note else ''}")
    for line in _embedder_lines(facts) if facts.embedding else _model_lines(facts):
        print(line)
    if not settings.replay:
        print(f"runs on   {_place(facts)}")
    if settings.record:
        print(f"records   all requests and answers, to {settings.record}")
    for warning in facts.warnings:
        print(f"note      {warning}")
    print(f"page      {address}/")
    print(f"listening {address}/v1{'' if settings.host in address else f' (on {settings.host})'}")
    keyed = settings.asks_for_key
    if facts.embedding:
        print("try it:")
        text = {"model": facts.name, "input": "What is the weather in Paris?"}
        print(_curl(f"{address}/v1/embeddings", text, keyed), flush=True)
    else:
        print("try it (tool_choice required: the model has to call the tool):")
        print(_curl(f"{address}/v1/chat/completions", _example(facts.name), keyed), flush=True)


def _place(facts: ModelFacts) -> str:
    if not facts.offloaded_layers:
        return facts.device
    return f"{facts.offloaded_layers} of {facts.layers} layers on {facts.device}"


def _model_lines(facts: ModelFacts) -> Iterator[str]:
    yield (
        f"dialect   {facts.dialect}; tools {'yes' if facts.tools else 'no'}, parallel calls "
        f"{'yes' if facts.parallel_calls else 'no'}, reasoning {'yes' if facts.reasoning else 'no'}"
    )
    yield (
        f"context   {facts.context} tokens, shared by {facts.slots} slots "
        f"(the model's own: {facts.context_train})"
    )


def _embedder_lines(facts: ModelFacts) -> Iterator[str]:
    yield f"makes     embeddings of {facts.embedding} components, and no text"
    yield f"context   {facts.context} tokens for each text (the model's own: {facts.context_train})"


def _replayed(replay: str) -> str:
    """What a replay is, so that nobody takes it for a model; empty where there is a model."""
    if not replay:
        return ""
    source = "the built-in script" if replay == BUILT_IN else replay
    return f"a replay of {source}: no model is loaded, nothing is computed"


def _example(model: str) -> dict[str, Any]:
    """The body of a request that calls a tool."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    return {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0,
    }


def _curl(url: str, body: Any, keyed: bool) -> str:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
    return f"curl -s {url}{key} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def _models() -> int:
    for entry in CATALOGUE:
        print(f"{entry.key:22} {entry.title}, {entry.licence}; {entry.note}")
    return 0


def _check_tools(name: str, as_json: bool) -> int:
    """The work is the runner's, so it is done in a process of its own."""
    found = _json_file("/dev/stdin" if name == "-" else name)
    tools = found.get("tools") if isinstance(found, dict) else found
    if not isinstance(tools, list):
        raise StartupFailed(f"{quoted(name)} has no list of tools")
    command = [*program("server.schema.report"), *([] if as_json else ["--text"])]
    return subprocess.run(command, input=json.dumps(tools).encode(), check=False).returncode


def _render(name: str, words: list[str]) -> int:
    """The work is the runner's, so it is done in a process of its own."""
    alone = [each for each in words if each == _PROMPT_ALONE]
    words = [each for each in words if each != _PROMPT_ALONE]
    options = dict(zip(words[::2], words[1::2], strict=False))
    source = [each for each in _SOURCES if each in options]
    if len(words) % 2 or set(options) - {*_SOURCES, "--tools"} or len(source) != 1:
        raise StartupFailed(
            "render takes a file, --model or --template, --tools and --prompt: see toolspan --help"
        )
    body = _json_file(name)
    body = body if isinstance(body, dict) else {"messages": body}
    if "--tools" in options:
        body["tools"] = _json_file(options["--tools"])
    try:
        turn = decode(body, Served((str(body.get("model")),), 2**31)).turn
    except ToolspanError as error:
        raise StartupFailed(error.message) from None
    value = options[source[0]]
    if source[0] == "--model":
        value = _model_file(value)
    elif not Path(value).is_file():
        raise StartupFailed(f"{quoted(value)} is no file")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode(turn))
        file.flush()
        command = [*program("server.runner.render"), file.name, source[0], value, *alone]
        return subprocess.run(command, check=False).returncode


def _json_file(name: str) -> Any:
    try:
        return json.loads(Path(name).read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise StartupFailed(f"{quoted(name)} can't be read as JSON: nested too deep") from None
    except (OSError, ValueError) as error:
        raise StartupFailed(f"{quoted(name)} can't be read as JSON: {error}") from None
