"""Prefixes between cache and disk, with the scheduler over the books of ``fake_llama``."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from driving import Said, run, step
from fake_llama import END, FakeLlama, engine, job, sequence

from server.engine import prefix_store
from server.engine.protocol import Job
from server.engine.scheduler import Scheduler
from server.engine.snapshots import Snapshots

SYSTEM = (*b"s" * 700, END)
HEADER = tuple(b"\nassistant\n")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_store, "QUIET_S", 0.0)


def asked(request: int, *turns: str, system: tuple[int, ...] = SYSTEM, **options: object) -> Job:
    """A system text and a conversation, as a template would write them."""
    written = [token for turn in turns or ("hello",) for token in (*turn.encode(), END)]
    prompt = (*system, *written, *HEADER)
    return dataclasses.replace(job(request, **options), prompt=prompt)  # type: ignore[arg-type]


def started(folder: Path, llama: FakeLlama | None = None, space: int = 1 << 20) -> Scheduler:
    """An engine as it is after a start."""
    return engine(llama or FakeLlama(context=6000), Snapshots(folder, "fake", space))


def answered(engine: Scheduler, each: Job) -> tuple[Said, int]:
    """What is said, and how many tokens of the prompt were not computed. All files are written then."""
    said: dict = {}
    engine.submit(each)
    for _ in range(5000):
        step(engine, said)
        if engine._store is not None and engine._store._write is not None:
            engine._store._write.result()
        if not engine.busy:
            return said[sequence(each.request)], engine.tally(each.request).cached_tokens
    raise AssertionError("the engine does not come to an end")


def lengths(folder: Path) -> list[int]:
    """Of how many tokens the kept prefixes are."""
    return sorted(each.tokens for each in Snapshots(folder, "fake", 1 << 20)._index.values())


@pytest.mark.parametrize("partial", [True, False])
def test_a_start_goes_on_where_the_last_one_ended(tmp_path: Path, partial: bool) -> None:
    said, cached = answered(started(tmp_path, FakeLlama(context=6000, partial=partial)), asked(1))
    assert cached == 0
    again = FakeLlama(context=6000, partial=partial)
    assert answered(started(tmp_path, again), asked(2)) == (said, len(SYSTEM))
    assert sum(count for batch in again.batches for _, count in batch) < len(SYSTEM)
    assert answered(started(tmp_path), asked(3, "something else"))[1] == len(SYSTEM)
    assert lengths(tmp_path) == [len(SYSTEM)]


def test_what_is_short_is_not_kept(tmp_path: Path) -> None:
    answered(started(tmp_path), asked(1, system=(*b"s" * 300, END)))
    assert lengths(tmp_path) == []


def test_a_growing_conversation_is_written_a_few_times(tmp_path: Path) -> None:
    engine = started(tmp_path)
    for turn in range(1, 31):
        answered(engine, asked(turn, *["words " * 20] * turn))
    assert lengths(tmp_path) == [701, 701 + 3 * 121, 701 + 8 * 121, 701 + 15 * 121, 701 + 26 * 121]
    engine._cache.clear()
    assert len(engine._cache._free_numbers) == 8


def test_what_is_asked_at_once_again_is_not_slowed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(prefix_store, "QUIET_S", 1e9)
        answered(engine, asked(1))
        assert not engine.busy
    assert engine.busy


def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(tmp_path, FakeLlama(context=20_000, cached=20))
    with monkeypatch.context() as patch:
        patch.setattr(prefix_store, "QUIET_S", 1e9)
        for request in range(30):
            answered(engine, asked(request, system=(*b"s" * (600 + request // 2), END)))
    answered(engine, asked(30, system=(END,)))
    assert lengths(tmp_path) == [601 + at for at in range(11, 15)]  # of the newest 8, half are hardly longer


def test_without_an_end_of_turn_the_prompt_is_kept(tmp_path: Path) -> None:
    answered(started(tmp_path), job(1, "x" * 600))
    assert lengths(tmp_path) == [599]
    assert answered(started(tmp_path), job(2, "x" * 600))[1] == 599


def test_partitions_are_kept_apart(tmp_path: Path) -> None:
    answered(started(tmp_path), asked(1, partition="mine"))
    assert answered(started(tmp_path), asked(2, partition="yours"))[1] == 0
    engine = started(tmp_path)
    assert answered(engine, asked(3, partition="mine"))[1] == len(SYSTEM)
    assert answered(engine, asked(4, partition="other"))[1] == 0


def test_who_wants_no_reuse_neither_reads_nor_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(started(tmp_path), asked(1, reuse_prefix=False))
    assert lengths(tmp_path) == []
    answered(started(tmp_path), asked(2))
    monkeypatch.setattr(Snapshots, "read", None)
    assert answered(started(tmp_path), asked(3, reuse_prefix=False))[1] == 0


def test_what_the_cache_has_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(tmp_path)
    answered(engine, asked(1))
    monkeypatch.setattr(Snapshots, "read", None)
    assert answered(engine, asked(2, "other"))[1] == len(SYSTEM)


def test_a_damaged_file_costs_time_only(tmp_path: Path) -> None:
    said, _ = answered(started(tmp_path), asked(1))
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert answered(started(tmp_path), asked(2)) == (said, 0)
    assert answered(started(tmp_path), asked(3)) == (said, len(SYSTEM))  # it was written anew


def test_a_state_that_llama_cpp_refuses_costs_time_only(tmp_path: Path) -> None:
    said, _ = answered(started(tmp_path), asked(1))
    refusing = FakeLlama(context=6000)
    refusing.restore = lambda *_: False  # type: ignore[method-assign]
    engine = started(tmp_path, refusing)
    assert answered(engine, asked(2)) == (said, 0)
    engine._cache.clear()
    assert (refusing.cells, engine._cache._cells.free) == ([], 6000)


def test_streams_go_on_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(started(tmp_path), asked(1))
    gate, read = threading.Event(), Snapshots.read

    def slow(*arguments: object) -> object:
        assert gate.wait(30)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Snapshots, "read", slow)
    engine, said = started(tmp_path), {}
    engine.submit(job(2, "short", max_tokens=50))
    step(engine, said)
    engine.submit(asked(3))
    while said.get(sequence(2)) is None or said[sequence(2)].ended is None:
        step(engine, said)
    assert sequence(3) not in said
    gate.set()
    while engine.busy:
        step(engine, said)
    assert engine.tally(3).cached_tokens == len(SYSTEM)


def test_nothing_is_copied_out_while_something_runs(tmp_path: Path) -> None:
    llama = FakeLlama(context=6000)
    busy: list[int] = []
    state: Callable[[int, int], np.ndarray | None] = llama.state
    llama.state = lambda *arguments: (busy.append(engine.load.active), state(*arguments))[1]  # type: ignore
    engine, said = started(tmp_path, llama), {}
    engine.submit(asked(1, max_tokens=1))
    engine.submit(job(2, "short", max_tokens=40))
    while engine.busy:
        step(engine, said)
    assert busy == [0]


def test_a_request_that_waits_for_room_gets_its_prefix(tmp_path: Path) -> None:
    answered(started(tmp_path), asked(1))
    llama = FakeLlama(context=900)
    engine = started(tmp_path, llama)
    said = run(engine, [job(2, "q" * 600, max_tokens=40), asked(3, max_tokens=40)])
    assert engine.tally(3).cached_tokens == len(SYSTEM)
    assert all(each.ended is not None for each in said.values())
    engine._cache.clear()
    assert (llama.cells, engine._cache._cells.free) == ([], 900)


def test_a_cancelled_request_leaves_nothing(tmp_path: Path) -> None:
    answered(started(tmp_path), asked(1))
    engine = started(tmp_path)
    engine.submit(asked(2))
    engine.step()
    engine.cancel(2)
    assert answered(engine, asked(3, "other", max_tokens=3))[1] == len(SYSTEM)


def test_a_folder_that_cannot_be_changes_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    scheduler = started(folder)
    said, cached = answered(scheduler, asked(1))
    assert (len(said.tokens), cached) == (16, 0)
    assert answered(scheduler, asked(2)) == (said, len(SYSTEM) + len("hello") + 1 + len(HEADER) - 1)


def test_close_writes_what_had_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops a server right after an answer finds its prompt again."""
    monkeypatch.setattr(prefix_store, "QUIET_S", 3600.0)
    scheduler = started(tmp_path)
    run(scheduler, [asked(1), asked(2, system=(*b"t" * 600, END))])
    assert lengths(tmp_path) == []
    scheduler.close()
    assert lengths(tmp_path) == [601, len(SYSTEM)]


def test_close_takes_its_time_for_no_more_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_store, "QUIET_S", 3600.0)
    monkeypatch.setattr(prefix_store, "CLOSING_S", 0.0)
    scheduler = started(tmp_path)
    run(scheduler, [asked(1)])
    scheduler.close()
    assert lengths(tmp_path) == []


def test_close_waits_for_what_is_written(tmp_path: Path) -> None:
    scheduler = started(tmp_path)
    run(scheduler, [asked(1)])
    scheduler.close()
    assert lengths(tmp_path) == [len(SYSTEM)]
