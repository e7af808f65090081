"""Texts, settings and keywords with which other servers lost their constraint, under the numbers of our list
of such faults: whatever the names and values of a schema, the settings of a request and the keywords that the
constraint engine lacks, nothing invalid looks valid.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from conformance import answered
from fake_llama import END, SIZE, VOCABULARY
from reported import Requests, inside

from server.engine.sampler import Sampler, Workbench
from server.schema.cache import Prepared
from server.turn import Sampling


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Requests:
    return Requests(tmp_path_factory.mktemp("requests"))


def taken(schema: object) -> Prepared:
    made = answered(schema)
    assert isinstance(made, Prepared), made
    return made


# Text.

TEXTS = {
    "quotes": "\"a\" 'b'",
    "backslash": "a\\b\\",
    "line end": "a\nb\r\n",
    "rule": 'a"\nroot ::= "b" | %json {}',
    "brackets": "]})>{[(",
    "separators": "a\u2028b\u2029",
    "emoji": "😀🏳️‍🌈",
    "regular expression": ".*/x/[^a]$|(?!",
    "empty": "",
    "long": "x" * 10_000,
    "format": "%s {0} ${a} {{b}}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_j11_text_is_data(requests: Requests, name: str) -> None:
    text = TEXTS[name]
    for schema in ({"const": text}, {"enum": ["other", text]}, {"const": [{text: text}]}):
        calls = requests.calls(inside(schema))
        value = schema.get("const", text)
        assert calls.allow({"a": value})
        assert not calls.allow({"a": "x"})
    calls = requests.calls({"type": "object", "properties": {text: {"type": "null"}}, "required": [text]})
    assert calls.allow({text: None})
    assert not calls.allow({text: 1})
    assert not calls.allow({"x": None})


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\x1f", "\x7f"])
def test_j11_control_characters(requests: Requests, character: str) -> None:
    text = f"a{character}"
    named = requests.calls({"type": "object", "properties": {text: {"type": "null"}}, "required": [text]})
    assert named.allow({text: None})
    assert not named.allow({"a": None})
    listed = {"enum": [text, "b"]}
    assert not requests.calls(inside(listed)).exact
    verifier = taken(listed).verifier
    assert [verifier.failure(json.dumps(each)) is None for each in (text, "b", "a", "c")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "names", [("a-b", "a.b", "a b", "a_b"), ("天气", "时间", "天 气"), ("é", "e\u0301", "e")]
)
def test_j12_names_that_are_nearly_alike(requests: Requests, names: tuple[str, ...]) -> None:
    properties = {name: {"const": number} for number, name in enumerate(names)}
    calls = requests.calls({"type": "object", "properties": properties, "required": list(names)})
    assert calls.allow({name: number for number, name in enumerate(names)})
    for name in names:
        assert not calls.allow({each: number + (each == name) for number, each in enumerate(names)})


# While generating.

EXTREMES: dict[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "hot": Sampling(temperature=2.0, seed=1),
    "one token": Sampling(top_k=1, seed=2),
    "the best only": Sampling(min_p=1.0, seed=3),
    "hardly any": Sampling(top_p=1e-6, seed=4),
    "penalties": Sampling(temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0, repeat_penalty=10.0),
    "end wanted": Sampling(temperature=0.0, logit_bias=((END, 100.0),)),
    "end banned": Sampling(seed=5, logit_bias=((END, -100.0),)),
    "letters wanted": Sampling(seed=6, logit_bias=tuple((byte, 50.0) for byte in range(97, 123))),
}
CODE = {**inside({"type": "string", "pattern": "^[a-c]{2,4}$"}), "additionalProperties": False}


def generated(sampling: Sampling, most: int = 100) -> tuple[bytes, int | None]:
    """What is generated over noise within so many tokens, and the last token (None: there was none)."""
    noise = np.random.default_rng(0)
    sampler = Sampler(sampling, 1, 0, Workbench(SIZE))
    matcher = VOCABULARY.matcher(f"start: %json {taken(CODE).lowered.text}")
    said: list[int] = []
    token: int | None = END
    while len(said) < most:
        token = sampler.choose(noise.normal(scale=5, size=SIZE).astype(np.float32), matcher, said, 0)
        if token is None or token == END:
            break
        assert matcher.consume_token(token)
        said.append(token)
    sampler.close()
    return bytes(said), token


@pytest.mark.parametrize("name", [each for each in EXTREMES if each != "end banned"])
def test_j14_every_setting_leaves_what_the_schema_allows(name: str) -> None:
    said, last = generated(EXTREMES[name])
    assert last == END
    assert taken(CODE).verifier.failure(said.decode()) is None


@pytest.mark.parametrize("most", range(1, 15))
def test_j14_a_cut_answer_is_the_beginning_of_a_valid_one(most: int) -> None:
    whole, _ = generated(EXTREMES["hot"])
    assert generated(EXTREMES["hot"], most)[0] == whole[:most]


@pytest.mark.parametrize("banned", [b"{", b'"', b"}", bytes(range(256))])
def test_j14_the_only_legal_token_banned_is_an_end(banned: bytes) -> None:
    said, last = generated(Sampling(seed=1, logit_bias=tuple((byte, -100.0) for byte in banned)))
    assert last is None
    assert banned[0] not in said


def test_j14_the_end_banned_is_an_end() -> None:
    said, last = generated(EXTREMES["end banned"])
    assert last is None
    assert taken(CODE).verifier.failure(said.decode()) is None


# What the engine lacks.


@pytest.mark.parametrize("pattern", ["^(?!a)", "a(?=b)", "(?<!x)b", "(a)\\1", "\\bword\\b", "^\\p{Lu}"])
def test_j15_patterns_the_engine_lacks_are_verified(requests: Requests, pattern: str) -> None:
    made = taken({"type": "string", "pattern": pattern})
    assert [each.keyword for each in made.lowered.loosened] == ["pattern"]
    assert not requests.calls(inside({"type": "string", "pattern": pattern})).exact


LACKED: dict[str, tuple[object, object, object]] = {
    "not": ({"not": {"type": "string", "minLength": 2}}, "x", "xy"),
    "if": ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "x", "xy"),
    "dependentSchemas": ({"dependentSchemas": {"b": {"required": ["c"]}}}, {"b": 1, "c": 1}, {"b": 1}),
    "dependencies": ({"dependencies": {"b": ["c"]}}, {"b": 1, "c": 1}, {"b": 1}),
    "uniqueItems": ({"uniqueItems": True}, [1, 2], [1, 1]),
    "multipleOf": ({"multipleOf": 3}, 9, 10),
    "multipleOf of a fraction": ({"multipleOf": 0.000123}, 0.000246, 0.0002),
    "propertyNames": ({"propertyNames": {"format": "ipv4"}}, {"1.2.3.4": 1}, {"a": 1}),
    "contains": ({"contains": {"type": "null"}}, [1, None], [1]),
    "unevaluatedProperties": (
        {"anyOf": [{"properties": {"b": {}}, "required": ["b"]}], "unevaluatedProperties": False},
        {"b": 1},
        {"b": 1, "c": 1},
    ),
    "unevaluatedItems": ({"anyOf": [{"prefixItems": [True]}], "unevaluatedItems": False}, [1], [1, 2]),
    "a known format": ({"format": "json-pointer"}, "/a/b", "a"),
}


@pytest.mark.parametrize("name", LACKED)
def test_j16_every_keyword_counts(requests: Requests, name: str) -> None:
    schema, valid, invalid = LACKED[name]
    made = taken(inside(schema))
    calls = requests.calls(inside(schema))
    assert calls.allow({"a": valid})
    assert made.verifier.failure(json.dumps({"a": valid})) is None
    assert made.verifier.failure(json.dumps({"a": invalid})) is not None
    assert calls.exact == (not calls.allow({"a": invalid}))


def test_j16_an_unknown_format_is_a_note(requests: Requests) -> None:
    calls = requests.calls(inside({"type": "string", "format": "colour"}))
    assert calls.exact
    assert calls.allow({"a": "anything"})
