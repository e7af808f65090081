"""Keys: from settings and file, and what a request may show."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from server.api.auth import Caller, Keys
from server.errors import StartupFailed, Unauthorized
from server.settings import Settings


def bearer(key: str) -> Headers:
    return Headers({"authorization": f"Bearer {key}"})


def test_without_keys_everyone_may_ask() -> None:
    keys = Keys.of(Settings())
    assert not keys
    assert keys.check(Headers({})) == keys.check(bearer("anything")) == Caller()
    assert keys.check(Headers({}), local=True) == Caller(admin=True)


def test_keys_come_from_settings_and_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n  two  \r\nschlüssel\n", encoding="utf-8")
    os.chmod(path, 0o600)
    keys = Keys.of(Settings(api_key=("three",), api_key_file=str(path)))
    partitions = {keys.check(bearer(key)).partition for key in ("one", "two", "three")}
    assert len(partitions) == 3
    assert keys.check(bearer("schlüssel".encode().decode("latin-1")))
    for wrong in ("", "on", "one two", "\n"):
        with pytest.raises(Unauthorized):
            keys.check(bearer(wrong))


def test_admin_keys_are_keys_with_a_right(tmp_path: Path) -> None:
    path = tmp_path / "admins"
    path.write_text("two\n")
    os.chmod(path, 0o600)
    keys = Keys.of(Settings(api_key=("user",), admin_key=("one",), admin_key_file=str(path)))
    callers = [keys.check(bearer(key), local=True) for key in ("user", "one", "two")]
    assert [each.admin for each in callers] == [False, True, True]
    assert len({each.partition for each in callers}) == 3
    assert all(each.partition for each in callers)


def test_no_key_is_kept() -> None:
    assert "secret-key" not in repr(vars(Keys(["secret-key"], ["secret-key"])))
    assert "secret-key" not in repr(Settings(api_key=("secret-key",), admin_key=("secret-key",)))


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff"])
def test_a_file_without_keys_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupFailed) as caught:
        Keys.of(Settings(api_key_file=str(path)))
    assert "\n" not in caught.value.message
    assert "keys" in caught.value.message


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_all_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    path = tmp_path / "keys"
    path.write_text("secret")
    os.chmod(path, mode)
    with caplog.at_level(logging.WARNING):
        Keys.of(Settings(api_key_file=str(path)))
    assert bool(caplog.records) == warns
    assert "secret" not in caplog.text


@pytest.mark.parametrize("key", ["", "two words", "tab\tinside", "\x07", "a\u2028b", "a\xa0b"])
def test_what_no_client_can_send_is_no_key(tmp_path: Path, key: str) -> None:
    with pytest.raises(StartupFailed, match="one word"):
        Keys.of(Settings(api_key=(key,)))
    path = tmp_path / "keys"
    path.write_text(f"good\n{key or 'a b'}", encoding="utf-8")
    with pytest.raises(StartupFailed, match="one word"):
        Keys.of(Settings(api_key_file=str(path)))


def test_a_key_file_may_have_comments(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the laptop\none\n  # two\n", encoding="utf-8")
    keys = Keys.of(Settings(api_key_file=str(path)))
    assert keys.check(bearer("one"))
    for comment in ("# the laptop", "#", "# two", "two"):
        with pytest.raises(Unauthorized):
            keys.check(bearer(comment))
