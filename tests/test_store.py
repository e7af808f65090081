"""Responses that are kept: bounds, use, keys, and what may happen to a file."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import ROOT, Serving, playing
from test_chat import call
from test_responses import WEATHER

from server.api import limits
from server.api.parts import Served
from server.api.responses_request import decode
from server.api.store import Store
from server.errors import StartupFailed, ToolspanError
from server.settings import Settings

KEY, OTHER = "sk-test-key", "sk-other-key"
ANSWERS: list[dict[str, Any]] = [
    {"when": "Weather?", "text": "I look.\n" + call("Rome")},
    {"when": "22 degrees", "text": "It is 22 degrees."},
    {"when": "And now?", "text": "Now it is 23."},
    {"when": "Cut it", "text": "Cut", "ended": "length"},
    {"when": "dead end", "text": "x", "ended": "dead_end"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "responses.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    made = opened(file)
    yield made
    made.close()


def opened(file: Path, entries: int = 100, size: int = 10_000_000) -> Store:
    return Store(file, entries=entries, size=size)


def keep(store: Store, name: str, partition: str = "", text: str = "x") -> bool:
    return store.keep(name, partition, [{"role": "user", "content": text}], {"id": name})


def kept(store: Store, *names: str) -> list[str]:
    return [name for name in names if store.response(name, "") is not None]


def test_what_is_kept_is_found_after_a_restart(store: Store, file: Path) -> None:
    items = [{"role": "user", "content": "é\ud800", "n": 10**30}]
    assert store.keep("a", "", items, {"id": "a", "n": 1.5})
    store.close()
    again = opened(file)
    assert again.conversation("a", "") == items
    assert again.response("a", "") == {"id": "a", "n": 1.5}
    assert again.response("b", "") is again.conversation("b", "") is None
    assert again.delete("a", "")
    assert not again.delete("a", "")
    assert kept(again, "a") == []
    again.close()


def test_keys_do_not_see_each_others(store: Store) -> None:
    keep(store, "a", "one")
    assert store.response("a", "two") is store.conversation("a", "two") is None
    assert not store.delete("a", "two")
    assert store.response("a", "one")


def test_what_was_not_used_for_longest_goes_first(file: Path) -> None:
    store = opened(file, entries=3)
    for name in "abc":
        keep(store, name)
    store.conversation("a", "")
    keep(store, "d")
    assert kept(store, *"abcd") == ["a", "c", "d"]
    store.close()
    smaller = opened(file, entries=1)
    keep(smaller, "e")
    assert kept(smaller, *"abcde") == ["e"]
    smaller.close()


def test_bytes_are_bounded(file: Path) -> None:
    store = opened(file, size=10_000)
    for name in "abcd":
        assert keep(store, name, text="x" * 3_000)
    assert kept(store, *"abcd") == ["b", "c", "d"]
    assert not keep(store, "e", text="x" * 10_000)
    assert kept(store, *"abcde") == ["b", "c", "d"]
    for number in range(200):
        keep(store, f"more{number}", text="x" * 3_000)
    store.close()
    assert file.stat().st_size < 100_000


def test_only_its_user_can_read_it(store: Store, file: Path) -> None:
    keep(store, "a")
    for path in file.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def scribbled(file: Path) -> None:
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(b"\xff" * (file.stat().st_size - 4096))


def no_database(file: Path) -> None:
    file.write_bytes(b"no database at all " * 500)


def cut(file: Path) -> None:
    os.truncate(file, 5000)


def of_a_later_version(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()


@pytest.mark.parametrize("damage", [scribbled, no_database, cut, of_a_later_version])
def test_a_damaged_file_is_set_aside(
    store: Store, file: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    keep(store, "a", text="x" * 50_000)
    store.close()
    damage(file)
    damaged = file.read_bytes()
    again = opened(file)
    assert "are damaged" in caplog.text
    assert kept(again, "a") == []
    assert keep(again, "b")
    assert kept(again, "b") == ["b"]
    again.close()
    (aside,) = file.parent.glob("responses.db.damaged-*")
    assert aside.read_bytes() == damaged
    assert str(aside) in caplog.text


def test_damage_while_it_is_open_is_found_when_it_is_read(
    store: Store, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(store, "a", text="x" * 8_000_000)  # more than is cached
    with sqlite3.connect(file) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    scribbled(file)
    assert store.conversation("a", "") is None
    assert "are damaged" in caplog.text
    assert keep(store, "b")
    assert kept(store, "a", "b") == ["b"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupFailed, match="cannot keep responses"):
        opened(tmp_path / "file" / "responses.db")


def test_a_file_that_another_process_holds_is_not_kept_in(
    store: Store, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store._connection.execute("PRAGMA busy_timeout = 10")
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not keep(store, "a")
        other.execute("ROLLBACK")
    other.close()
    assert "could not be kept" in caplog.text
    assert keep(store, "a")


def test_many_threads(store: Store) -> None:
    def keeping(number: int) -> None:
        for step in range(20):
            keep(store, f"{number}.{step}")
            store.conversation(f"{number}.{step}", "")

    threads = [threading.Thread(target=keeping, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(kept(store, *(f"{number}.{step}" for number in range(4) for step in range(20)))) == 80


WRITER = """
import sys
from pathlib import Path
from server.api.store import Store
store = Store(Path(sys.argv[1]), entries=10**6, size=10**9)
for number in range(10**6):
    store.keep(str(number), "", ["x" * 5000], {})
    print(number, flush=True)
"""


def test_what_was_kept_outlives_a_kill(file: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        assert writer.stdout is not None
        for _ in range(50):
            last = writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        last = (last + writer.stdout.read()).splitlines()[-1]
        writer.wait()
        writer.stdout.close()
        store = opened(file)
        assert len(kept(store, *map(str, range(int(last) + 1)))) == int(last) + 1
        store.close()
        assert not list(file.parent.glob("*.damaged-*"))
        file.unlink()


# Over the API.


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("stored")
    with playing(folder, *ANSWERS, api_key=(KEY, OTHER), store=True, keepalive=0.1) as running:
        yield running


def client_of(server: Serving, key: str = KEY) -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(server: Serving) -> Iterator[OpenAI]:
    with client_of(server) as made:
        yield made


def create(client: OpenAI, given: Any, **fields: Any) -> Any:
    return client.responses.create(model="scripted", input=given, **fields)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_without_its_history(client: OpenAI, stream: bool) -> None:
    def answered(given: Any, **fields: Any) -> Any:
        made = create(client, given, tools=[WEATHER], stream=stream, **fields)
        return list(made)[-1].response if stream else made

    first = answered("Weather?")
    assert first.store is True
    (asked,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": asked.call_id, "output": "22 degrees"}
    second = answered([result], previous_response_id=first.id)
    assert second.output_text == "It is 22 degrees."
    assert second.previous_response_id == first.id
    third = answered("And now?", previous_response_id=second.id, instructions="Be brief.")
    assert third.output_text == "Now it is 23."
    forked = answered("And now?", previous_response_id=first.id)
    assert first.usage.input_tokens < second.usage.input_tokens < third.usage.input_tokens
    assert forked.usage.input_tokens < third.usage.input_tokens


def test_responses_are_got_and_deleted(server: Serving, client: OpenAI) -> None:
    made = create(client, "Cut it")
    found = client.responses.retrieve(made.id)
    assert found == made
    assert found.status == "incomplete"
    raw = server.request("DELETE", f"/responses/{made.id}", headers={"authorization": f"Bearer {KEY}"})
    assert raw.json() == {"id": made.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.retrieve(made.id)
    assert unknown.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)
    with pytest.raises(openai.BadRequestError) as gone:
        create(client, "And now?", previous_response_id=made.id)
    assert (gone.value.code, gone.value.param) == ("previous_response_not_found", "previous_response_id")


def test_what_is_not_kept(server: Serving, client: OpenAI) -> None:
    unwanted = create(client, "Cut it", store=False)
    assert unwanted.store is False
    *_, failed = create(client, "dead end", stream=True)
    assert failed.type == "response.failed"
    for identifier in (unwanted.id, failed.response.id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(identifier)
    mine = create(client, "Cut it")
    with client_of(server, OTHER) as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(mine.id)
        with pytest.raises(openai.BadRequestError):
            create(other, "And now?", previous_response_id=mine.id)


def test_a_response_too_large_for_the_store_says_so(tmp_path: Path, data_folder: Path) -> None:
    with playing(tmp_path, {"text": "x"}, store=True, store_bytes=2000) as small, client_of(small) as client:
        assert create(client, "Hi").store is True
        large = create(client, "long " * 1000)
        assert large.output_text == "x"
        assert large.store is False


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path, data_folder: Path) -> None:
    with playing(tmp_path, *ANSWERS, store=True) as before, client_of(before) as client:
        first = create(client, "Weather?", tools=[WEATHER])
    assert (data_folder / "toolspan" / "responses.db").exists()
    with playing(tmp_path, *ANSWERS, store=True) as after, client_of(after) as client:
        second = create(client, "And now?", previous_response_id=first.id, tools=[WEATHER])
        assert second.output_text == "Now it is 23."


def test_without_a_store(tmp_path: Path, data_folder: Path) -> None:
    with playing(tmp_path, *ANSWERS) as plain, client_of(plain) as client:
        made = create(client, "Cut it", store=True)
        assert made.store is False
        with pytest.raises(openai.BadRequestError, match="keeps no responses") as refused:
            create(client, "And now?", previous_response_id=made.id)
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "previous_response_id")
        with pytest.raises(openai.NotFoundError, match="keeps no responses"):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError, match="keeps no responses"):
            client.responses.delete(made.id)
    assert Store.of(Settings()) is None


def test_a_conversation_has_its_limit_as_a_whole(store: Store) -> None:
    item = {"role": "user", "content": "x"}
    store.keep("resp_1", "", [item] * (limits.MESSAGES - 1), {})
    served = Served(("m",), 1000, store)

    def items(count: int) -> int:
        body = {
            "input": [item] * count,
            "previous_response_id": "resp_1",
            "text": {"format": {"type": "text"}},
        }
        return len(decode(body, served).turn.messages)

    assert items(1) == limits.MESSAGES
    with pytest.raises(ToolspanError) as refused:
        items(2)
    assert refused.value.param == "input[1]"
