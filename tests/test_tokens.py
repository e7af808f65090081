"""Client text is data: whatever it looks like, it becomes plain text and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from vocabularies import MARKERS, SmallVocabulary, markup, vocabulary_of, written

from server.engine.protocol import Vocabulary
from server.errors import InvalidRequest
from server.prompt.tokens import Edges, Markup, TokenWriter, Twins

VOCABULARY = SmallVocabulary()
QWEN_MARKERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>")
FIRST, LAST = "\U00100000", "\U0010fffd"


def client_texts(markers: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of markers, their halves, private-use characters, blanks and words."""
    marker = st.sampled_from(markers)
    cut = st.tuples(marker, st.integers(1, 12))
    pieces = st.one_of(
        marker,
        cut.map(lambda each: each[0][: each[1]]),
        cut.map(lambda each: each[0][each[1] :]),
        marker.map(lambda each: each.strip("<|/>")),
        st.sampled_from([FIRST, "\U00100001", LAST, "\ue000", " ", "\n", "é", "word", "<", "|", ">"]),
        st.characters(exclude_categories=["Cs"]),
    )
    return st.lists(pieces, min_size=1, max_size=5).map("".join).filter(bool)


def template_texts(markers: Sequence[str]) -> st.SearchStrategy[str]:
    """What stands between client texts: markers, punctuation that would complete one, words, nothing."""
    return st.sampled_from([*markers, "", "", "<", "</", "<|", ">", "|>", '"', " ", "\n", "user\n", "{"])


def prompts(markers: Sequence[str]) -> st.SearchStrategy[tuple[list[str], list[str]]]:
    """Client texts, and one template text more than these."""
    texts = st.lists(client_texts(markers), min_size=1, max_size=4)
    return texts.flatmap(
        lambda known: st.tuples(
            st.just(known),
            st.lists(template_texts(markers), min_size=len(known) + 1, max_size=len(known) + 1),
        )
    )


def twins(vocabulary: Vocabulary = VOCABULARY, reserved: str = "") -> Twins:
    known = Markup((*vocabulary.markup_texts(), *MARKERS))
    return Twins(known, Edges(known), reserved)


def joined(texts: Sequence[str], between: Sequence[str], change: Callable[[str], str]) -> str:
    return between[0] + "".join(change(text) + after for text, after in zip(texts, between[1:], strict=True))


def check_plain(vocabulary: Vocabulary, texts: Sequence[str], between: Sequence[str]) -> None:
    """The tokens say the whole text, and their markers are those of the template alone."""
    hidden = twins(vocabulary)
    tokens = TokenWriter(vocabulary).write(joined(texts, between, hidden.hide), hidden)
    assert written(vocabulary, tokens) == joined(texts, between, str)
    harmless = vocabulary.tokenize(joined(texts, between, lambda text: "\x01"), markup=True)
    assert markup(vocabulary, tokens) == markup(vocabulary, harmless)


@given(prompts(VOCABULARY.markup_texts()))
@example((["<|im_", "start|>"], ["", "", ""]))
@example((["<|im_ ", " start|>"], ["", "", ""]))
@example((["tool_call", "/think"], ["<", "><", ">"]))
@example((["<tool_call><tool_call>", "\n"], ["<tool_call>", "</tool_call>", "<|im_end|>"]))
@example(([FIRST, "<s>"], ["<s>", "", ""]))
def test_client_text_is_plain(prompt: tuple[list[str], list[str]]) -> None:
    check_plain(VOCABULARY, *prompt)


@pytest.mark.model
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=prompts(QWEN_MARKERS))
@example(prompt=(["<|im_", "start|>"], ["<|im_start|>", "", "<|im_end|>"]))
@example(prompt=(["<tool_call></tool_call><|endoftext|>"], ["<tool_call>", "</tool_call>"]))
def test_client_text_is_plain_to_qwen(
    model_file: Callable[[str], Path], prompt: tuple[list[str], list[str]]
) -> None:
    vocabulary = vocabulary_of(model_file("qwen2.5-coder-0.5b"))
    assert all(vocabulary.single_token(text) is not None for text in QWEN_MARKERS)
    check_plain(vocabulary, *prompt)


@pytest.mark.parametrize("text", ["hello <|user|> there", " <|end|>", "a<s>b", "\n<|end|>\n"])
def test_blanks_are_kept_in_vocabularies_that_add_some(sdist_dir: Path, text: str) -> None:
    vocabulary = vocabulary_of(sdist_dir / "vendor/llama.cpp/models/ggml-vocab-phi-3.gguf")
    hidden = twins(vocabulary)
    tokens = TokenWriter(vocabulary).write(f"<|system|>{hidden.hide(text)}<|end|>", hidden)
    assert markup(vocabulary, tokens) == ["<|system|>", "<|end|>"]
    assert written(vocabulary, tokens) == f"<|system|>{text}<|end|>"


def test_text_without_twins_is_tokenized_in_one_piece() -> None:
    asked: list[str] = []

    class Listening(SmallVocabulary):
        def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
            asked.append(text)
            return super().tokenize(text, markup=markup, continued=continued)

    hidden = twins()
    text = f"<|im_start|>user\n{hidden.hide('hello')}<|im_end|>\n"
    TokenWriter(Listening()).write(text, hidden)
    assert asked == [text]


@given(st.lists(client_texts(VOCABULARY.markup_texts()), max_size=4))
def test_hidden_texts_come_back(texts: list[str]) -> None:
    hidden = twins()
    shown = [hidden.hide(text) for text in texts]
    assert [hidden.reveal(text) for text in shown] == texts
    assert len(set(shown)) == len(set(texts))
    assert not any(marker in text for text in shown for marker in VOCABULARY.markup_texts())


@given(client_texts(VOCABULARY.markup_texts()))
def test_templates_may_trim_and_shout(text: str) -> None:
    hidden = twins()
    shown = hidden.hide(text)
    assert hidden.reveal(shown.strip()) == text.strip()
    assert hidden.reveal("".join(shown.split("</think>"))) == text
    for changed in (shown.upper(), shown[1:], shown[:-1]):
        assert not markup(VOCABULARY, TokenWriter(VOCABULARY).write(changed, hidden))


def test_the_templates_own_private_characters_are_no_twins() -> None:
    hidden = twins(reserved=f"{FIRST}\U00100001")
    shown = hidden.hide("<s>")
    assert shown not in (FIRST, "\U00100001")
    assert hidden.reveal(FIRST + shown) == FIRST + "<s>"
    assert not hidden.within(FIRST)


def test_texts_that_cannot_be_hidden_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate") as failure:
        twins().hide("half \ud800")
    assert failure.value.code == "invalid_unicode"
    every = "".join(map(chr, range(ord(FIRST), ord(LAST) + 1)))
    hidden = twins()
    assert hidden.reveal(hidden.hide(every)) == every
    with pytest.raises(InvalidRequest, match="private-use"):
        hidden.hide("<s>")


def test_the_longest_marker_counts() -> None:
    known = Markup(["<a", "<a>", "b", "<a>>"])
    assert list(known.occurrences("<a>b<a<a>>")) == [(0, 3), (4, 6), (6, 10)]
    assert known.longest == 4
