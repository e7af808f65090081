"""The commands: ``toolspan serve`` and ``toolspan models``."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys

from server import logs
from server import settings as settings_module
from server.api.server import serve
from server.catalogue import CATALOGUE, resolve
from server.errors import StartupFailed, quoted
from server.frames import ModelFacts
from server.model_file import check
from server.settings import Settings

USAGE = """usage: toolspan COMMAND [OPTIONS]

  serve    serve a model (toolspan serve --help lists the options)
  models   list the models that can be fetched by name
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
        case [] | ["-h" | "--help" | "help"]:
            print(USAGE, end="")
            return 0
    raise StartupFailed(f"{quoted(' '.join(words))} is no command; try toolspan --help")


def _serve(settings: Settings) -> int:
    logs.configure(settings.log_level)
    return serve(settings, lambda facts, address: _announce(settings, facts, address), _find_model)


def _find_model(settings: Settings) -> Settings:
    """Fetches the model where that is needed, and checks it."""
    if settings.script:
        return settings
    path = resolve(settings.model)
    check(path)
    return dataclasses.replace(settings, model=str(path))


def _announce(settings: Settings, facts: ModelFacts, address: str) -> None:
    """What the operator needs to know once the model answers."""
    note = next((entry.note for entry in CATALOGUE if entry.key == facts.name), "")
    where = (
        f"{facts.offloaded_layers} of {facts.layers} layers on {facts.device}"
        if facts.offloaded_layers
        else facts.device
    )
    print(f"model     {facts.name}{f' ({note})' if note else ''}")
    print(
        f"dialect   {facts.dialect}; tools {'yes' if facts.tools else 'no'}, parallel calls "
        f"{'yes' if facts.parallel_calls else 'no'}, reasoning {'yes' if facts.reasoning else 'no'}"
    )
    print(
        f"context   {facts.context} tokens, shared by {facts.slots} slots "
        f"(the model's own: {facts.context_train})"
    )
    print(f"runs on   {where}")
    for warning in facts.warnings:
        print(f"note      {warning}")
    print(f"listening {address}/v1{'' if settings.host in address else f' (on {settings.host})'}")
    print("try it (tool_choice required: the model has to call the tool):")
    print(_example(facts.name, address, bool(settings.api_key or settings.api_key_file)), flush=True)


def _example(model: str, address: str, keyed: bool) -> str:
    """A curl line that calls a tool."""
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
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0,
    }
    key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
    return (
        f"curl -s {address}/v1/chat/completions{key} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )


def _models() -> int:
    for entry in CATALOGUE:
        print(f"{entry.key:22} {entry.title}, {entry.licence}; {entry.note}")
    return 0
