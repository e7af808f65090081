import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.errors import InvalidSchema
from server.schema.cache import BYTES_PER_ENTRY, BYTES_PER_TEXT_BYTE, Cache, prepared


def text(number: int) -> str:
    return json.dumps({"type": "object", "properties": {f"p{number}": {"type": "string"}}})


def test_the_same_text_is_prepared_once() -> None:
    cache = Cache()
    first = cache.prepared(text(1), "a", True)
    assert cache.prepared(text(1), "b", True) is first
    assert cache.prepared(text(1), "a", False) is not first
    assert len(cache) == 2


def test_a_prepared_schema_is_checked_lowered_and_verifiable() -> None:
    made = prepared('{"type": "object", "properties": {"a": {"const": 1}}}', "p", True)
    assert made is prepared('{"type": "object", "properties": {"a": {"const": 1}}}', "p", True)
    assert made.lowered.exact
    assert made.verifier.failure('{"a": 1}') is None
    assert made.verifier.failure('{"a": 2}') is not None


def test_refusals_are_not_kept_and_name_each_field() -> None:
    cache = Cache()
    for param in ("first", "second"):
        with pytest.raises(InvalidSchema) as caught:
            cache.prepared('{"type": 1}', param, True)
        assert caught.value.param == f"{param}.type"
    assert len(cache) == 0


def test_entries_are_bounded_and_the_longest_unused_goes() -> None:
    cache = Cache(entries=2)
    kept = cache.prepared(text(1), "p", True)
    cache.prepared(text(2), "p", True)
    cache.prepared(text(1), "p", True)
    newest = cache.prepared(text(3), "p", True)
    assert len(cache) == 2
    assert cache.prepared(text(3), "p", True) is newest
    assert cache.prepared(text(1), "p", True) is kept


def test_bytes_are_bounded() -> None:
    size = BYTES_PER_ENTRY + BYTES_PER_TEXT_BYTE * len(text(1))
    cache = Cache(bytes_held=3 * size)
    for number in range(9):
        cache.prepared(text(number), "p", True)
        assert cache.size <= 3 * size
    assert len(cache) == 3
    large = json.dumps({"description": "x" * (3 * size)})
    assert cache.prepared(large, "p", True).lowered.exact
    assert len(cache) == 3


def test_threads_share_it() -> None:
    cache = Cache(entries=4)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: cache.prepared(text(number % 6), "p", True), range(60)))
    assert all(each.lowered.exact for each in made)
    assert len(cache) <= 4
