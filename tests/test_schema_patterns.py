import json

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from schemas import BYTES, holds

from server.schema import compiling
from server.schema.patterns import any_text, extent, literal, other_than, translated, unsaid

QUICK = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
TEXTS = [
    *("", "a", "b", "ab", "ba", "aa", "aab", "abc", "A", "_", "-", "é", "𝄞", "3", "٣", " ", "\t", "\n", "\r"),
    *(
        "\u2028",
        "\xa0",
        "\ufeff",
        "\x85",
        '"',
        "\\",
        "/",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        "$",
        "^",
        "|",
        ".",
        "&",
    ),
    *("~", "#", "a-b", "a.b", 'a"b', "a\\b", "a\nb", "12", "k", "K", "ſ"),
]

_atoms = st.sampled_from(
    [
        *(
            "a",
            "b",
            "-",
            "/",
            "&",
            "~",
            "#",
            '"',
            " ",
            "é",
            "𝄞",
            ".",
            "\\d",
            "\\D",
            "\\w",
            "\\W",
            "\\s",
            "\\S",
        ),
        *("\\.", "\\\\", "\\/", "\\-", "\\n", "\\t", "\\x61", "\\u0062", "\\u00e9", "\\$", "\\]"),
    ]
)
_members = st.sampled_from(
    [
        *("a", "b", "a-c", "!-/", "-", '"', "\\\\", "\\]", "\\[", "&&", "~~", "#", "^", ".", "$", " ", "é"),
        *("\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\n", "\\x00-\\x1f", "\\u0000-\\uffff", "0-9", "|"),
    ]
)
_classes = st.builds(
    lambda negated, members: f"[{'^' if negated else ''}{''.join(members)}]",
    st.booleans(),
    st.lists(_members, min_size=1, max_size=4),
)
_counts = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "+?", "??", "{1,2}?"])
_repeated = st.builds(lambda atom, count: atom + count, st.one_of(_atoms, _classes), _counts)
_sequences = st.lists(_repeated, max_size=3).map("".join)
_groups = st.builds(
    lambda kind, left, right, count: f"({kind}{left}|{right}){count}",
    st.sampled_from(["", "?:", "?<n>"]),
    _sequences,
    _sequences,
    _counts,
)
_patterns = st.builds(
    lambda start, parts, end: start + "".join(parts) + end,
    st.sampled_from(["", "^"]),
    st.lists(st.one_of(_repeated, _groups), min_size=1, max_size=2),
    st.sampled_from(["", "$"]),
)


def language(pattern: str) -> LLMatcher:
    text = compiling.engine_text({"type": "string", "pattern": pattern})
    made = LLMatcher(BYTES, f"start: %json {text}", log_level=0)
    assert not made.is_error(), made.get_error()
    return made


@QUICK
@given(_patterns)
def test_a_translated_pattern_means_the_same(pattern: str) -> None:
    try:
        validator = jsonschema_rs.Draft202012Validator({"pattern": pattern})
    except jsonschema_rs.ValidationError:
        return
    written = translated(pattern)
    if written is None or not compiling.takes({"type": "string", "pattern": written}):
        return
    start = language(written)
    for text in TEXTS:
        if not unsaid(text):
            generable = holds(start, json.dumps(text, ensure_ascii=False))
            assert generable == validator.is_valid(text), (text, written)


@pytest.mark.parametrize(
    "pattern",
    [
        *('^[^"]$', "^[^\\\\]$", "^.$", "^\\s$", "^[a&&b]$", "^[a~~b]$", "^[^!-/]$", '^(?:[^"\\r]|\\r)$'),
        *("^a|b$", "^(a|b$)", "^[-a]$", "^[a-]$", "^[\\d-]$", "^}$", "^]$"),
    ],
)
def test_where_the_languages_differ(pattern: str) -> None:
    validator = jsonschema_rs.Draft202012Validator({"pattern": pattern})
    start = language(translated(pattern) or "")
    for text in TEXTS:
        assert holds(start, json.dumps(text, ensure_ascii=False)) == validator.is_valid(text), text


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?<!a)",
            "(a)\\1",
            "\\ba",
            "\\B",
            "(?i)a",
            "(?s:.)",
            "\\p{L}",
            "\\P{L}",
            "[\\p{L}]",
        ),
        *(
            "\\cA",
            "\\ud83d\\ude00",
            "a{,3}",
            "{",
            "[]",
            "[^]",
            "[^]a]",
            "\\k<n>",
            "\\u{61}",
            "\\x00",
            "[\\x00]",
            "\x7f",
        ),
    ],
)
def test_what_is_not_known_to_mean_the_same_is_not_translated(pattern: str) -> None:
    assert translated(pattern) is None


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=6), st.text(max_size=6))
@QUICK
def test_other_than_is_the_complement(values: list[str], text: str) -> None:
    start = language(other_than(values))
    for each in [*values, text]:
        if not unsaid(each) and each.isprintable():
            assert holds(start, json.dumps(each, ensure_ascii=False)) == (each not in values)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8))
@QUICK
def test_a_literal_is_that_text_only(text: str) -> None:
    start = language(f"^(?:{literal(text)})$")
    assert holds(start, json.dumps(text, ensure_ascii=False))
    assert not holds(start, json.dumps(text + "x", ensure_ascii=False))


def test_any_text_counts_characters() -> None:
    start = language(any_text(1, 2))
    assert [holds(start, json.dumps("𝄞" * n, ensure_ascii=False)) for n in range(4)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("pattern", "nesting", "repeats", "size"),
    [
        ("", 0, 1, 0),
        ("abc", 0, 1, 3),
        ("(a(b))", 2, 1, 2),
        ("a{3}", 0, 3, 3),
        ("(a{10}){20}", 1, 200, 200),
        ("(a{10}b){2}c{5}", 1, 20, 27),
        ("a{5,}", 0, 5, 5),
        ("a{0,900}", 0, 1, 900),
        ("(ab{1,9}){2,3}", 1, 2, 30),
        ("\\(\\{9}", 0, 1, 4),
        ("[({]{7}", 0, 7, 7),
        ("[^\\]a]+x*", 0, 1, 2),
        ("(", 1, 1, 0),
        ("a{99999999999999999999}", 0, 999_999_999, 999_999_999),
    ],
)
def test_extent(pattern: str, nesting: int, repeats: int, size: int) -> None:
    measured = extent(pattern)
    assert (measured.nesting, measured.repeats, measured.size) == (nesting, repeats, size)
