"""What templates need is found out by trying: small templates with one quirk each, then real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.dialects.dialect import Dialect
from server.dialects.table import GENERIC, HERMES
from server.prompt.mending import Arguments, Needs, System
from server.prompt.probe import Unusable, probe
from server.prompt.template import ChatTemplate

LENIENT = """\
{% if tools %}{{ tools | tojson }}
{% endif %}
{% for m in messages %}
<{{ m.role }}>{{ m.content }}
{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}
{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>
{% endfor %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}
"""
CALLS = "{% for c in m.tool_calls or [] %}"
ARGUMENTS = "{{ c.function.arguments | tojson }}"
EACH = "{% for m in messages %}\n"


def needs(source: str, dialect: Dialect = HERMES) -> Needs:
    return probe(ChatTemplate(source, "<s>", "</s>"), dialect)


def refusing(condition: str) -> str:
    """A refusal inside the loop over the messages."""
    return f"{EACH}{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}\n"


QUIRKS: dict[str, tuple[str, str, Needs]] = {
    "none": ("", "", Needs()),
    "developer": (
        "{{ m.role }}",
        "{{ m.role if m.role != 'developer' else 'ruler' }}",
        Needs(developer=True),
    ),
    "no tools": ("{{ tools | tojson }}", "", Needs(describe_tools=True)),
    "no null types": (
        "{{ tools | tojson }}",
        "{{ tools | tojson }}{{ tools[0].function.parameters.properties.key_probe.type.lower() }}",
        Needs(no_null_types=True),
    ),
    "first system only": (
        EACH,
        refusing("m.role == 'system' and not loop.first"),
        Needs(system=System.FIRST),
    ),
    "later system dropped": (
        EACH,
        EACH + "{% if m.role == 'system' and not loop.first %}{% continue %}{% endif %}\n",
        Needs(system=System.FIRST),
    ),
    "no system": (EACH, refusing("m.role == 'system'"), Needs(system=System.NOWHERE)),
    "system dropped": (EACH, "{% for m in messages if m.role != 'system' %}\n", Needs(system=System.NOWHERE)),
    "alternation": (
        EACH,
        refusing("m.role == 'user' and not loop.first and loop.previtem.role == 'user'"),
        Needs(alternate=True),
    ),
    "user first": (EACH, refusing("loop.first and m.role == 'assistant'"), Needs(alternate=True)),
    "empty answers": (
        EACH,
        refusing("m.role == 'assistant' and not m.content and not m.tool_calls"),
        Needs(no_empty_answers=True),
    ),
    "text arguments": (ARGUMENTS, "{{ c.function.arguments + '' }}", Needs(arguments=Arguments.TEXT)),
    "quoted object": (ARGUMENTS, "{{ c.function.arguments | string | tojson }}", Needs()),
    "python values": (
        ARGUMENTS,
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
        Needs(arguments=Arguments.WRITTEN_VALUES),
    ),
    "no calls": (CALLS, "{% for c in [] %}", Needs(write_calls=True)),
    "one call": (CALLS, "{% for c in (m.tool_calls or [])[:1] %}", Needs(one_call=True)),
    "one call at most": (
        EACH,
        refusing("m.tool_calls and m.tool_calls | length > 1"),
        Needs(one_call=True),
    ),
    "null content": (
        CALLS,
        "{% for c in (m.tool_calls if m.content is none else []) %}",
        Needs(null_content=True, write_beside_text=True),
    ),
    "text hides calls": (
        CALLS,
        "{% for c in (m.tool_calls if not m.content else []) %}",
        Needs(write_beside_text=True),
    ),
    "calls hide text": (
        "{{ m.content }}",
        "{{ m.content if not m.tool_calls else '' }}",
        Needs(write_beside_text=True),
    ),
    "short ids": (
        CALLS,
        CALLS + "{% if c.id | length != 9 %}{{ raise_exception('ids') }}{% endif %}",
        Needs(short_ids=True),
    ),
    "no results": (EACH, "{% for m in messages if m.role != 'tool' %}\n", Needs(results_as_user=True)),
    "user after result": (
        EACH,
        refusing("m.role == 'user' and not loop.first and loop.previtem.role == 'tool'"),
        Needs(bridge=""),
    ),
    "other thoughts": ("m.reasoning_content", "m.thinking", Needs(reasoning_key="thinking")),
    "thoughts apart": (
        EACH,
        refusing("m.reasoning_content and m.content and m.tool_calls"),
        Needs(one_thought=True),
    ),
}


@pytest.mark.parametrize("name", QUIRKS)
def test_each_quirk_is_found_and_nothing_else(name: str) -> None:
    old, new, expected = QUIRKS[name]
    assert old in LENIENT
    assert needs(LENIENT.replace(old, new)) == expected


def test_the_generic_dialect_describes_tools_and_writes_calls() -> None:
    found = needs(LENIENT, GENERIC)
    assert found == Needs(describe_tools=True, write_calls=True, results_as_user=True)


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('closed') }}", "{{ messages[0].content.parts[0] + 1 }}"]
)
def test_a_template_that_refuses_everything_is_unusable(source: str) -> None:
    with pytest.raises(Unusable, match="chat template failed"):
        needs(source)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", Needs()),
        ("Qwen-Qwen3-0.6B", Needs()),
        ("Qwen-QwQ-32B", Needs()),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Needs(write_beside_text=True, no_null_types=True)),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", Needs(write_beside_text=True, no_null_types=True)),
    ],
)
def test_real_templates(sdist_dir: Path, name: str, expected: Needs) -> None:
    path = sdist_dir / f"vendor/llama.cpp/models/templates/{name}.jinja"
    assert needs(path.read_text(encoding="utf-8")) == expected
