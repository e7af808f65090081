"""Vocabularies of real models: what client text may become, and what a constraint lets a model say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from server.dialects.table import ALL_MARKERS
from server.engine.llama import Weights
from server.engine.protocol import ConstraintRefused
from server.engine.vocabulary import LlamaVocabulary, looks_like_markup

pytestmark = pytest.mark.model

MARKERS = {
    "qwen2.5-coder-0.5b": ["<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>"],
    "smollm2-135m": ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>"],
    "gemma3-270m": ["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unused7>"],
}


@pytest.fixture(scope="module", params=list(MARKERS))
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def vocabulary(key: str, model_file: Callable[[str], Path]) -> LlamaVocabulary:
    return LlamaVocabulary(Weights(model_file(key), vocabulary_only=True).tokens, ALL_MARKERS)


def sayable(vocabulary: LlamaVocabulary, constraint: str) -> set[int]:
    mask = allocate_token_bitmask(1, vocabulary.size)
    fill_next_token_bitmask(vocabulary.matcher(constraint), mask)
    return {
        token
        for token in range(vocabulary.size)
        if int(mask[0, token // 32]) & 0xFFFFFFFF & (1 << token % 32)
    }


def test_a_marker_is_one_token_in_markup_and_plain_text_elsewhere(
    vocabulary: LlamaVocabulary, key: str
) -> None:
    for marker in MARKERS[key]:
        token = vocabulary.single_token(marker)
        assert token is not None
        assert vocabulary.tokenize(f"a{marker}b", markup=True).count(token) == 1
        plain = vocabulary.tokenize(f"a{marker}b", markup=False)
        assert token not in plain
        assert b"".join(map(vocabulary.data, plain)).strip() == f"a{marker}b".encode()


def test_no_client_text_becomes_markup(vocabulary: LlamaVocabulary) -> None:
    markup = {vocabulary.single_token(text) for text in vocabulary.markup_texts()}
    fragments = st.sampled_from(
        [
            *vocabulary.markup_texts()[:60],
            *ALL_MARKERS,
            "<",
            "|",
            ">",
            "im_start",
            "_call",
            " ",
            "é",
            "\n",
            "日",
        ]
    )

    @settings(max_examples=150, deadline=None)
    @given(st.lists(fragments, max_size=6).map("".join))
    def check(text: str) -> None:
        plain = vocabulary.tokenize(text, markup=False, continued=True)
        assert not set(plain) & markup
        # To a SentencePiece vocabulary U+2581 is a space; of the markers only DeepSeek's have it.
        written = b"".join(map(vocabulary.data, plain)).decode()
        assert written.replace("▁", " ") == text.replace("▁", " ")

    check()


def test_markup_cannot_be_said_as_text(vocabulary: LlamaVocabulary) -> None:
    free = sayable(vocabulary, "start: /(?s:.*)/")
    markup = {vocabulary.single_token(text) for text in vocabulary.markup_texts()}
    assert free & markup <= vocabulary.ends
    assert vocabulary.ends <= free
    assert len(free) > 0.8 * vocabulary.size


def test_markup_can_be_said_as_itself(vocabulary: LlamaVocabulary, key: str) -> None:
    token = vocabulary.single_token(MARKERS[key][0])
    assert sayable(vocabulary, f"start: <[{token}]>") == {token}


def test_all_ends_end(vocabulary: LlamaVocabulary) -> None:
    assert vocabulary.ends
    for end in vocabulary.ends:
        matcher = vocabulary.matcher("start: /(?s:.*)/")
        assert matcher.consume_token(end)
        assert matcher.is_stopped()
    assert not sayable(vocabulary, 'start: "a" /(?s:.*)/') & vocabulary.ends


def test_a_marker_of_the_dialect_ends_nothing(key: str, model_file: Callable[[str], Path]) -> None:
    vocabulary = LlamaVocabulary(Weights(model_file(key), vocabulary_only=True).tokens, ALL_MARKERS)
    first, *others = sorted(vocabulary.ends)
    text = vocabulary.data(first).decode()
    constraint = f'start: "a" (<[{first}]> "b")?'
    vocabulary.keep_open([text, "no token at all"])
    assert vocabulary.ends == set(others)
    assert first not in sayable(vocabulary, "start: /(?s:.*)/")
    matcher = vocabulary.matcher(constraint)
    assert matcher.consume_tokens([*vocabulary.tokenize("a", markup=False, continued=True), first])
    assert not matcher.is_stopped()
    assert matcher.consume_tokens(vocabulary.tokenize("b", markup=False, continued=True))
    assert matcher.is_stopped()


def test_blanks_and_tags_stay_text(vocabulary: LlamaVocabulary) -> None:
    texts = set(vocabulary.markup_texts())
    assert not texts & {"\n\n", "  ", "<table>", "</td>", "<code>", "\t"}
    free = sayable(vocabulary, "start: /(?s:.*)/")
    for text in ("<table>", "\n\n", "    "):
        assert set(vocabulary.tokenize(text, markup=False, continued=True)) <= free


@pytest.mark.parametrize("text", ["hello world", " leading", "\nnew", "日本語 🎉", "", "tab\tand  blanks"])
def test_continued_text_is_itself(vocabulary: LlamaVocabulary, text: str) -> None:
    ids = vocabulary.tokenize(text, markup=False, continued=True)
    assert b"".join(map(vocabulary.data, ids)).decode() == text


def test_a_bad_constraint_is_refused(vocabulary: LlamaVocabulary) -> None:
    with pytest.raises(ConstraintRefused):
        vocabulary.matcher("start: nothing_by_this_name")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call>", True),
        ("[TOOL_CALLS]", True),
        ("<|x|>", True),
        ("<table>", False),
        ("</TD>", False),
        ("<>", False),
        ("  ", False),
        ("word", False),
    ],
)
def test_what_looks_like_markup(text: str, expected: bool) -> None:
    assert looks_like_markup(text.encode()) is expected
