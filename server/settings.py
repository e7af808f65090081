"""The settings: one frozen object, each field once.

A field is its flag (``--gpu-layers``), its environment variable (``TOOLSPAN_GPU_LAYERS``), its key in
the TOML file (``gpu_layers`` or ``gpu-layers``) and its help line. Flag beats environment beats file
beats default.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from server.errors import StartupFailed, quoted

PREFIX = "TOOLSPAN_"
HIGHEST = 2**31 - 1
"""What a number may be where its setting has no limit of its own."""
BUILT_IN = "builtin"
"""The value of ``replay`` that names no file: what ``--replay`` alone means."""


def _setting(default: Any, help_line: str, **metadata: Any) -> Any:
    shown = not metadata.get("secret")
    return field(default=default, repr=shown, metadata={"help": help_line, **metadata})


@dataclass(frozen=True, slots=True)
class Settings:
    model: str = _setting(
        "smollm2-135m",
        "catalogue key, path of a GGUF file, or hf:owner/repo/file.gguf",
    )
    alias: tuple[str, ...] = _setting((), "another name the model answers to (repeatable)")
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on; 0 takes a free one", low=0, high=65535)
    api_key: tuple[str, ...] = _setting((), "key a client must send (repeatable)", secret=True)
    api_key_file: str = _setting("", "file with one API key a line; # begins a comment line")
    admin_key: tuple[str, ...] = _setting(
        (), "key of an admin, who may also ask for debug data (repeatable)", secret=True
    )
    admin_key_file: str = _setting("", "file with one admin key a line")
    insecure_no_key: bool = _setting(False, "listen beyond this machine without an API key")
    allowed_host: tuple[str, ...] = _setting((), "further Host name to answer to (repeatable)")
    allowed_origin: tuple[str, ...] = _setting(
        (), "web origin allowed by CORS, localhost for all on this machine (repeatable)"
    )
    ctx: int = _setting(
        0, "context in tokens, shared by the slots; 0: the model's own, at most 32768", low=256, or_zero=True
    )
    slots: int = _setting(4, "requests answered at the same time", low=1, high=64)
    queue: int = _setting(64, "requests that may wait for a slot", low=0, high=4096)
    threads: int = _setting(0, "CPU threads; 0: all physical cores", low=0, high=512)
    gpu_layers: int = _setting(
        -1, "model layers on the GPU; -1: all of them if the build can offload", low=-1
    )
    flash_attention: str = _setting(
        "auto", "auto, on or off; auto: where the device can", choices=("auto", "on", "off")
    )
    cache_type: str = _setting(
        "f16", "numbers of the context's cells: f16, q8_0 or q4_0", choices=("f16", "q8_0", "q4_0")
    )
    batch: int = _setting(2048, "tokens evaluated in one call, at most", low=128, high=8192)
    micro_batch: int = _setting(512, "tokens the device computes at once, at most", low=32, high=8192)
    mmap: bool = _setting(True, "map the model file instead of reading it")
    max_tokens: int = _setting(4096, "tokens an answer may have where the client sets no limit", low=1)
    reasoning_budget: int = _setting(
        -1, "tokens a model may think where the client sets no limit; -1: any number", low=-1
    )
    reasoning_budget_message: str = _setting("", "what closes a thought that has used its tokens up")
    bare_calls: bool = _setting(True, "take a bare JSON call at the start of an answer for a call")
    thought_calls: bool = _setting(True, "take a call within a thought for a call, which ends the thought")
    repeat_calls: bool = _setting(False, "allow the exact same call twice in one turn")
    reuse_prefix: bool = _setting(True, "reuse computed prompts of earlier requests")
    store: bool = _setting(False, "keep responses in the user's data folder, for previous_response_id")
    store_entries: int = _setting(1000, "responses that are kept, at most", low=1)
    store_bytes: int = _setting(256 * 1024 * 1024, "bytes that kept responses may have", low=1024)
    snapshots: bool = _setting(True, "keep long prefixes on disk, so that a restart need not compute them")
    snapshot_folder: str = _setting("", "folder of those prefixes; none: prefixes in the cache folder")
    snapshot_space: int = _setting(4096, "MiB that those prefixes may take on disk", low=1, high=1024 * 1024)
    drafts: bool = _setting(True, "evaluate together what is likely to be copied from the prompt")
    max_body: int = _setting(10 * 1024 * 1024, "bytes a request body may have", low=1024)
    max_connections: int = _setting(256, "open connections", low=1)
    receive_timeout: float = _setting(30.0, "seconds a request may take to arrive", low=0.1)
    generation_timeout: float = _setting(600.0, "seconds an answer may take", low=1.0)
    keepalive: float = _setting(10.0, "seconds of silence before an empty chunk", low=0.05)
    stall_timeout: float = _setting(
        60.0, "seconds a busy model may show no progress before it is restarted", low=0.5
    )
    load_timeout: float = _setting(900.0, "seconds a model may take to load", low=1.0)
    replay: str = _setting(
        "",
        "without a model, play the answers of this file; with no file, those of the built-in script",
        bare=BUILT_IN,
    )
    record: str = _setting(
        "", "file to which each request, its prompt, its grammar and its answer are added, for --replay"
    )
    chunk: int = _setting(4, "characters of a replayed answer that are generated at once", low=1)
    log_level: str = _setting(
        "info", "debug, info, warning or error", choices=("debug", "info", "warning", "error")
    )

    @property
    def asks_for_key(self) -> bool:
        """Whether any key is set."""
        return bool(self.api_key or self.api_key_file or self.admin_key or self.admin_key_file)


def load(
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    program: str = "toolspan serve",
) -> Settings:
    """Settings from flags, environment and file. Raises ``StartupFailed`` with one clear line."""
    environment = os.environ if environment is None else environment
    flags = vars(parser(program).parse_args(list(arguments)))
    path = flags.pop("config") or environment.get(PREFIX + "CONFIG")
    merged = _from_file(path) | _from_environment(environment)
    merged |= {name: value for name, value in flags.items() if value is not None}
    return Settings(**{name: _checked(_FIELDS[name], value) for name, value in merged.items()})


def parser(program: str) -> argparse.ArgumentParser:
    """The command line, from the fields."""
    result = _OneLineParser(prog=program, allow_abbrev=False)
    result.add_argument("--config", metavar="FILE", help="TOML file with any of these settings")
    for setting in _FIELDS.values():
        flag = "--" + setting.name.replace("_", "-")
        kind = _kind(setting)
        shown = "" if setting.metadata.get("secret") else f" (default: {_shown(setting.default)})"
        line = f"{setting.metadata['help']}{shown}".replace("%", "%%")
        if kind is bool:
            result.add_argument(flag, action=argparse.BooleanOptionalAction, help=line)
        elif kind is tuple:
            result.add_argument(flag, action="append", metavar="TEXT", help=line)
        elif bare := setting.metadata.get("bare"):
            result.add_argument(flag, nargs="?", const=bare, metavar="FILE", help=line)
        else:
            result.add_argument(flag, metavar=kind.__name__.upper(), help=line)
    return result


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise StartupFailed(f"{self.prog}: {message} (see --help)")


def _from_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, too many digits
        raise StartupFailed(f"cannot read the settings file {path}: {error}") from error
    named = {key.replace("-", "_"): value for key, value in table.items()}
    for key in named:
        if key not in _FIELDS:
            raise StartupFailed(f"{path}: unknown setting {key!r}")
    return named


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, setting in _FIELDS.items():
        text = environment.get(PREFIX + name.upper())
        if text is None:
            continue
        if _kind(setting) is tuple:
            found[name] = [each for each in text.split(",") if each.strip()]
        else:
            found[name] = text
    return found


_KINDS = {str: "a text", int: "a whole number", float: "a number"}
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _checked(setting: Field[Any], value: Any) -> Any:
    kind = _kind(setting)
    name = setting.name.replace("_", "-")
    if kind is tuple:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise StartupFailed(f"{name}: expected a list of texts")
        if not all(each.strip() for each in values):
            raise StartupFailed(f"{name}: is empty")
        return tuple(each.strip() for each in values)
    if kind is bool:
        word = _WORDS.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(word, bool):
            raise StartupFailed(f"{name}: expected true or false, not {quoted(str(value))}")
        return word
    return _within(setting, name, _converted(kind, name, value))


def _converted(kind: type, name: str, value: Any) -> Any:
    """A text or number as ``kind``: what is no text comes from the file and has its type already."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return kind(value)
    elif type(value) is kind or (kind is float and type(value) is int):
        return value
    raise StartupFailed(f"{name}: expected {_KINDS[kind]}, not {quoted(str(value))}")


def _within(setting: Field[Any], name: str, value: Any) -> Any:
    rules = setting.metadata
    if "choices" in rules and value not in rules["choices"]:
        raise StartupFailed(f"{name}: expected one of {', '.join(rules['choices'])}")
    if isinstance(value, str) or (value == 0 and "or_zero" in rules):
        return value
    low, high = rules["low"], rules.get("high", HIGHEST)
    if not low <= value <= high:
        raise StartupFailed(f"{name}: expected {'0, or ' if 'or_zero' in rules else ''}{low} to {high}")
    return value


def _kind(setting: Field[Any]) -> type:
    hint = _HINTS[setting.name]
    return typing.get_origin(hint) or typing.cast(type, hint)


def _shown(default: Any) -> str:
    return (
        "none"
        if default in ("", ())
        else str(default).lower()
        if default is True or default is False
        else str(default)
    )


_FIELDS: Mapping[str, Field[Any]] = types.MappingProxyType({each.name: each for each in fields(Settings)})
_HINTS = typing.get_type_hints(Settings)
