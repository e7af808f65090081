"""Chat templates: what they are given, what they may use, and how their failures are told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from server.errors import TemplateFailed
from server.prompt.template import REFUSAL_LIMIT, SOURCE_LIMIT, ChatTemplate

NOW = datetime(2026, 3, 4, 5, 6, 7)
TREE = {"b": '<a href="x">&\'', "a": ["é", 1.5, None, True], "c": {}}


def rendered(source: str, messages: list[Any] | None = None, **variables: Any) -> str:
    template = ChatTemplate(source, "<s>", "</s>", clock=lambda: NOW)
    return template.render(messages or [], **variables)


def failure(source: str, **variables: Any) -> str:
    with pytest.raises(TemplateFailed) as failed:
        rendered(source, **variables)
    assert (failed.value.status, failed.value.code) == (400, "chat_template_failed")
    return failed.value.message


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ tree | tojson }}", '{"b": "<a href=\\"x\\">&\'", "a": ["é", 1.5, null, true], "c": {}}'),
        ("{{ tree | tojson(sort_keys=true, separators=(',', ':')) }}", None),
        ("{{ tree.a | tojson(ensure_ascii=false, indent=2) }}", '[\n  "é",\n  1.5,\n  null,\n  true\n]'),
        ("{{ (tree.a | map('string')) | tojson }}", '["é", "1.5", "None", "True"]'),
        ("{{ nothing | tojson }}", "null"),
        ("{{ '{\"b\": [1]}' | from_json }}", "{'b': [1]}"),
        ("{{ '<b>' | safe + '<i>' }}", "<b><i>"),
        ("{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}", None),
        ("{% generation %}{{ 1 + 1 }}{% endgeneration %}", "2"),
        (
            "{% set found = [] %}{% set _ = found.append(1) %}{% set _ = found.append(2) %}{{ found }}",
            "[1, 2]",
        ),
        ("{{ [1, 2, 3][::-1] }}{{ 'abc'[1:] }}{{ [1, 2, 3][:2][-1] }}", "[3, 2, 1]bc2"),
        ("{{ 'a' ~ 1 ~ none }}{{ '%s-%d' % ('b', 2) }}{{ '{}+{}'.format(1, 'c') }}", "a1Noneb-21+c"),
        ("{{ dict(a=1).items() | list }}{{ ' x '.strip() }}{{ 'a,b'.split(',') }}", "[('a', 1)]x['a', 'b']"),
        (
            "{{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ datetime }}",
            "2026-03-04 04 Mar 2026 Mar 04 2026",
        ),
        ("{{ tools is defined }}{{ functions is defined }}", "FalseTrue"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        (
            "{% set n = namespace(n=0) %}{% for x in 'abc' %}{% set n.n = n.n + 1 %}{% endfor %}{{ n.n }}",
            "3",
        ),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
    ],
)
def test_what_templates_use(source: str, expected: str | None) -> None:
    if "continue" in source:
        source, expected = source + "{% if x == 3 %}{% break %}{% endif %}{% endfor %}", "13"
    if "sort_keys" in source:
        expected = '{"a":["é",1.5,null,true],"b":"<a href=\\"x\\">&\'","c":{}}'
    assert rendered(source, tree=TREE) == expected


def test_tools_are_given_under_both_names() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "é"}}]
    template = ChatTemplate("{{ tools | length }}{{ functions }}", "", "")
    assert template.render([], tools) == '1[{"name": "f", "description": "é"}]'


def test_decoded_json_is_changed_as_asked() -> None:
    template = ChatTemplate("{{ (messages[0].content | from_json).b }}", "", "")
    assert template.render([{"content": '{"a": 1}'}], decoded=lambda value: {"b": value["a"] + 1}) == "2"


def test_a_templates_refusal_is_its_own_message() -> None:
    source = "{% if messages | length == 0 %}{{ raise_exception('No messages at all.') }}{% endif %}"
    assert failure(source) == "the model's chat template failed: No messages at all."
    assert rendered(source, [{}]) == ""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ raise_exception() }}", "failed"),
        ("{{ raise_exception('half \\ud800') }}", "half"),
        ("{{ '{' | from_json }}", "JSONDecodeError"),
        ("{% for x in y %}", "can't be compiled: TemplateSyntaxError"),
        ("{% include 'other' %}", "failed"),
        ("{{ x | no_such_filter }}", "can't be compiled"),
    ],
)
def test_every_failure_is_told(source: str, words: str) -> None:
    message = failure(source)
    assert words in message
    assert len(message) <= REFUSAL_LIMIT
    message.encode()


def test_long_refusals_are_cut() -> None:
    assert len(failure("{{ raise_exception('x' * 5000) }}")) == REFUSAL_LIMIT


def test_a_source_may_not_be_endless() -> None:
    assert rendered("x" * SOURCE_LIMIT) == "x" * SOURCE_LIMIT
    assert "too long" in failure("x" * (SOURCE_LIMIT + 1))
