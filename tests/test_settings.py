"""Settings: one definition behind flag, environment, file and help; one clear line for what is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from server.errors import StartupFailed
from server.settings import BUILT_IN, PREFIX, Settings, load, parser

FIELDS = dataclasses.fields(Settings)
SAMPLES: dict[type, tuple[str, Any]] = {
    str: ("text", "text"),
    int: ("7", 7),
    float: ("7.5", 7.5),
    bool: ("true", True),
    tuple: ("one", ("one",)),
}


def sample(name: str, default: Any) -> tuple[str, Any]:
    """A valid value of a setting as text, and as it should come out."""
    if name == "log_level":
        return "debug", "debug"
    if name in ("flash_attention", "cache_type"):
        return {"flash_attention": ("off", "off"), "cache_type": ("q8_0", "q8_0")}[name]
    if name in ("max_body", "ctx", "store_bytes", "batch", "micro_batch"):
        return "4096", 4096
    return SAMPLES[type(default)]


CASES = [(each.name, *sample(each.name, each.default)) for each in FIELDS]


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(
        list(value) if isinstance(value, tuple) else value if not isinstance(value, str) else repr(value)
    )


@pytest.mark.parametrize(("name", "text", "value"), CASES, ids=[name for name, _, _ in CASES])
def test_every_setting_has_a_flag_a_variable_and_a_key(
    tmp_path: Path, name: str, text: str, value: Any
) -> None:
    flag = "--" + name.replace("_", "-")
    flags = [flag] if isinstance(value, bool) else [flag, text]
    file = tmp_path / "toolspan.toml"
    file.write_text(f"{name} = {toml(value)}\n")
    dashed = tmp_path / "dashed.toml"
    dashed.write_text(f"{name.replace('_', '-')} = {toml(value)}\n")
    expected = dataclasses.replace(Settings(), **{name: value})
    assert load(flags, {}) == expected
    assert load([], {PREFIX + name.upper(): text}) == expected
    assert load(["--config", str(file)], {}) == expected
    assert load([], {PREFIX + "CONFIG": str(dashed)}) == expected


def test_nothing_given_is_the_defaults() -> None:
    assert load([], {}) == Settings()
    assert load([], {"PATH": "/bin", "TOOLSPAN_OTHER": "x"}) == Settings()


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("port = 1\nslots = 1\nqueue = 1\n")
    variables = {"TOOLSPAN_PORT": "2", "TOOLSPAN_SLOTS": "2"}
    found = load(["--config", str(file), "--port", "3"], variables)
    assert (found.port, found.slots, found.queue) == (3, 2, 1)


def test_switches_can_be_turned_off() -> None:
    assert load(["--no-mmap"], {}).mmap is False
    assert load([], {"TOOLSPAN_MMAP": "no"}).mmap is False
    assert load(["--mmap"], {"TOOLSPAN_MMAP": "0"}).mmap is True


def test_a_replay_needs_no_file() -> None:
    assert load(["--replay"], {}).replay == BUILT_IN
    assert load(["--replay", "--port", "0"], {}) == Settings(replay=BUILT_IN, port=0)
    assert load(["--port", "0", "--replay", "./builtin"], {}).replay == "./builtin"


def test_lists_repeat_or_have_commas() -> None:
    assert load(["--alias", "a", "--alias", "b"], {}).alias == ("a", "b")
    assert load([], {"TOOLSPAN_ALIAS": "a, b,,"}).alias == ("a", "b")
    assert load([], {"TOOLSPAN_ALIAS": ""}).alias == ()


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "x"],
        ["--port", "65536"],
        ["--port", "-1"],
        ["--port", "1.5"],
        ["--port"],
        ["--slots", "0"],
        ["--api-key", ""],
        ["--alias", " "],
        ["--ctx", "1"],
        ["--ctx", "255"],
        ["--ctx", "1" * 400],
        ["--ctx", "1" * 5000],
        ["--max-body", str(2**31)],
        ["--receive-timeout", "inf"],
        ["--keepalive", "1e999"],
        ["--stall-timeout", "1e300"],
        ["--keepalive", "nan"],
        ["--log-level", "loud"],
        ["--mode", "x"],
        ["--mod", "x"],
        ["stray"],
        ["--config", "/nonexistent.toml"],
    ],
    ids=lambda flags: " ".join(flags)[:40],
)
def test_a_wrong_flag_is_one_clear_line(flags: list[str]) -> None:
    with pytest.raises(StartupFailed) as caught:
        load(flags, {})
    assert "\n" not in caught.value.message
    assert flags[0].lstrip("-") in caught.value.message or flags[-1] in caught.value.message


@pytest.mark.parametrize(
    "content",
    [
        "port = 'x'",
        "port = true",
        "mmap = 3",
        "alias = [1]",
        "colour = 1",
        "port = ",
        "port = [1]",
        "[port]\na=1",
        "port = inf",
        "port = 8183.7",
        "model = 5",
        "keepalive = nan",
        "mmap = 1",
        "port = " + "1" * 400,
        "port = " + "1" * 5000,
        "port = " + "[" * 100_000,
        "alias = 'a'\nalias = 'b'",
    ],
    ids=lambda content: content[:20],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(content)
    with pytest.raises(StartupFailed) as caught:
        load(["--config", str(file)], {})
    assert "\n" not in caught.value.message


def test_the_help_has_every_setting_with_its_default_and_no_secret() -> None:
    shown = " ".join(parser("toolspan serve").format_help().split())
    for each in FIELDS:
        assert each.name.replace("_", "-") in shown
        assert " ".join(each.metadata["help"].split()) in shown
    assert "(default: 8080)" in shown


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]
