"""Forced tokens joined to sampled ones, with the vocabulary of a real model."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.choice import Choice
from server.engine.healing import healed
from server.engine.llama import Weights
from server.engine.protocol import Job, Source, Tally
from server.engine.sampler import Workbench
from server.engine.vocabulary import LlamaVocabulary
from server.turn import Sampling

CALL = r'start: "{\"city\": \"" /[A-Za-zé ]{1,9}/ "\"}}\n" <[CLOSE]> "\n" /[a-z]{3}/'


@pytest.fixture(scope="module")
def vocabulary(sdist_dir: Path) -> LlamaVocabulary:
    weights = Weights(sdist_dir / "vendor/llama.cpp/models/ggml-vocab-qwen2.gguf", vocabulary_only=True)
    return LlamaVocabulary(weights.tokens, ())


def tokens(vocabulary: LlamaVocabulary, *texts: str) -> array[int]:
    """Each text as the tokenizer writes it alone."""
    return array("i", [token for text in texts for token in vocabulary.tokenize(text, markup=True)])


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        (['{"', "Paris"], ['"}', "}\n"], ['"}}\n']),
        (["1"], ["}]", ",", ' "b'], ["}],", ' "b']),
        ([], ['"}', "}\n", "<|im_start|>", "\n"], ['"}}\n', "<|im_start|>", "\n"]),
        (["<|im_start|>", "x"], ['"}', "}\n"], ['"}}\n']),
        ([], ["a", " b"], ["a", " b"]),
        ([], ["<|im", "_start|>", '"}', "}\n"], ["<|im", "_start|>", '"}}\n']),
        (['"}'], ["}", "\n"], ["}", "\n"]),  # what is before would have to change
    ],
)
def test_joined(vocabulary: LlamaVocabulary, before: list[str], after: list[str], right: list[str]) -> None:
    prompt = tokens(vocabulary, "a prompt", "\n")
    start = len(prompt) + len(tokens(vocabulary, *before))
    written = prompt + tokens(vocabulary, *before, *after)
    assert healed(written, start, len(prompt), vocabulary) == tokens(vocabulary, *right)


def test_a_text_that_ends_within_a_code_point_is_left(vocabulary: LlamaVocabulary) -> None:
    whole = tokens(vocabulary, '"}', "}\n", "\u10ff")
    assert len(vocabulary.data(whole[-1])) < 3
    assert healed(whole[:-1], 0, 0, vocabulary) == whole[:-1]
    assert healed(whole, 0, 0, vocabulary) == tokens(vocabulary, '"}}\n', "\u10ff")


def choice(vocabulary: LlamaVocabulary, **sampling: object) -> Choice:
    close = vocabulary.single_token("<|im_start|>")
    job = Job(
        1,
        (1, 2, 3),
        vocabulary.matcher(CALL.replace("CLOSE", str(close))),
        Sampling(temperature=0.0, **sampling),  # type: ignore[arg-type]
        100,
    )
    bench = Workbench(vocabulary.size)
    return Choice(job, 0, seed=1, context=1000, vocabulary=vocabulary, bench=bench, tally=Tally())


def say(choice: Choice, vocabulary: LlamaVocabulary, text: str) -> None:
    """Samples the token that is a text."""
    (token,) = vocabulary.tokenize(text, markup=False)
    logits = np.zeros(vocabulary.size, np.float32)
    logits[token] = 50
    choice.sample(logits)


def test_a_turn_has_the_ids_of_the_tokenizer(vocabulary: LlamaVocabulary) -> None:
    answer = choice(vocabulary)
    for text in (' "', "Paris", '"}', "abc"):
        say(answer, vocabulary, text)
    assert answer.ended is not None
    assert answer.tokens[3:].tolist() == vocabulary.tokenize(
        '{"city": "Paris"}}\n<|im_start|>\nabc', markup=True
    )
    told = answer.progress()
    assert told is not None
    assert [piece.token for piece in told.pieces] == answer.tokens[3:].tolist()
    sources = {vocabulary.data(piece.token): piece.source for piece in told.pieces}
    assert sources[b'"}}\n'] is Source.SAMPLED
    tally = answer._tally
    assert (tally.sampled_tokens, tally.sampled_tokens + tally.forced_tokens) == (4, len(told.pieces))


def test_tokens_that_are_told_with_logprobs_stay_as_they_are(vocabulary: LlamaVocabulary) -> None:
    answer = choice(vocabulary, top_logprobs=1)
    for text in (' "', "Paris", '"}'):
        say(answer, vocabulary, text)
    assert tokens(vocabulary, '"}', "}\n").tolist() == answer.tokens[-4:-2].tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_text_is_what_was_said(vocabulary: LlamaVocabulary, seed: int) -> None:
    chance = np.random.default_rng(seed)
    answer = choice(vocabulary)
    while answer.ended is None:
        answer.sample(chance.normal(size=vocabulary.size).astype(np.float32))
    said = answer.tokens[3:].tolist()
    text = b"".join(map(vocabulary.data, said))
    assert text.startswith(b'{"city": "')
    assert b'"}}\n<|im_start|>\n' in text
    assert answer.job.matcher.deep_copy().consume_tokens(said)
    answer.rewind(len(said) - 1)
    assert (
        b"".join(map(vocabulary.data, answer.tokens[3:]))
        == text[: len(text) - len(vocabulary.data(said[-1]))]
    )
