from __future__ import annotations

from server.dialects.logprobs import LogprobQueue
from server.events import TokenLogprob


def logprob(text: str) -> TokenLogprob:
    return TokenLogprob(text, text.encode(), -1.0)


def test_a_token_is_taken_once_its_last_character_is() -> None:
    queue = LogprobQueue()
    for word in ("ab", "cd", "", "e"):
        queue.add(len(word), logprob(word))
    assert queue.take(1) == ()
    assert [each.token for each in queue.take(1)] == ["ab"]
    assert [each.token for each in queue.take(3)] == ["cd", "", "e"]
    assert queue.take(5) == ()


def test_characters_without_tokens_do_not_count_for_later_ones() -> None:
    queue = LogprobQueue()
    queue.take(4)
    queue.add(2, logprob("ab"))
    assert queue.take(1) == ()


def test_dropped_text_takes_its_tokens_along() -> None:
    queue = LogprobQueue()
    queue.add(1, logprob("\n"))
    queue.add(1, logprob("a"))
    queue.drop(1)
    assert [each.token for each in queue.take(1)] == ["a"]
