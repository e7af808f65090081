"""Templates are not trusted: none gets out, and none goes on for long or makes something huge."""

from __future__ import annotations

import threading

import pytest

from server.errors import TemplateFailed
from server.prompt.template import ChatTemplate

ENDLESS = {
    "nested loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "growing list": "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "filters": "{{ range(99999) | map('string') | map('upper') | map('lower') | list | length }}",
    "tests": "{{ range(99999) | select('odd') | reject('even') | select('odd') | list | length }}",
}
HUGE = {
    "product": "{% set _ = 'x' * 9999999 %}",
    "list product": "{% set _ = ([0] * 9999999) %}",
    "constant": "{% set x = 'x' * 9999999 %}",
    "sum": "{% set n = namespace(t='xx') %}{% for i in range(40) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "tilde": "{% set n = namespace(t='xx') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "block": "{% set n = namespace(t='xxxxxxxx') %}{% for i in range(40) %}"
    "{% set t %}{{ n.t }}{{ n.t }}{% endset %}{% set n.t = t %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ messages[0] }}{% endfor %}",
    "power": "{% set _ = 9 ** (9 ** 9) %}",
    "number": "{% set n = namespace(t=9) %}{% for i in range(99) %}{% set n.t = n.t * n.t %}{% endfor %}",
    "percent": "{% set _ = '%9999999d' % 1 %}",
    "star": "{% set _ = '%*d' % (9999999, 1) %}",
    "format filter": "{% set _ = '%9999999d' | format(1) %}",
    "format": "{% set _ = '{:>9999999}'.format(1) %}",
    "nested format": "{% set _ = '{:>{}}'.format(1, 9999999) %}",
    "ljust": "{% set _ = 'x'.ljust(9999999) %}",
    "zfill": "{% set _ = 'x'.zfill(9999999) %}",
    "expandtabs": "{% set _ = '\t'.expandtabs(9999999) %}",
    "replace": "{% set t = 'x' * 1999 %}{% set _ = t | replace('x', t) %}",
    "replace method": "{% set t = 'x' * 1999 %}{% set _ = t.replace('x', t) %}",
    "join": "{% set t = 'x' * 1999 %}{% set _ = range(1999) | join(t) %}",
    "join method": "{% set t = 'x' * 1999 %}{% set _ = t.join(t) %}",
    "indent": "{% set _ = ('\n' * 99999) | indent(9999) %}",
    "json indent": "{{ [[1]] | tojson(indent=9999999) }}",
    "itself": "{% set l = [] %}{% set _ = l.append(l) %}{% set _ = l.append(l) %}{{ l | tojson }}",
    "itself as text": "{% set l = [] %}{% for i in range(99) %}{% set l = [l, l] %}{% endfor %}"
    "{% set n = namespace(l=[1]) %}{% for i in range(40) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
    "extend": "{% set l = [1] %}{% for i in range(40) %}{% set _ = l.extend(l) %}{% endfor %}",
    "slices": "{% set l = [] %}{% set t = 'x' * 999999 %}"
    "{% for i in range(30) %}{% set _ = l.append(t[1:]) %}{% endfor %}",
    "copies": "{% set l = [] %}{% set t = [0] * 99999 %}"
    "{% for i in range(30) %}{% set _ = l.append(t | list) %}{% endfor %}",
    "upper": "{% set l = [] %}{% set t = 'x' * 999999 %}"
    "{% for i in range(30) %}{% set _ = l.append(t.lower()) %}{% endfor %}",
    "upper filter": "{% set l = [] %}{% set t = 'x' * 999999 %}"
    "{% for i in range(30) %}{% set _ = l.append(t | upper) %}{% endfor %}",
    "date": "{% set _ = strftime_now('%9999999Y') %}",
    "range": "{% set _ = range(999999999) %}",
}
FORBIDDEN = (
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ ('x' | attr('__class__')).__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('x') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ 'x'.format_map({}).__class__.__base__ }}",
    "{{ lipsum(9) }}",
    "{{ (1).to_bytes(99, 'big') }}",
    "{{ 'a'.translate({97: 'x' * 99}) }}",
    "{% import 'os' as os %}",
)


def refusal(source: str, cpu_limit: float) -> str:
    with pytest.raises(TemplateFailed) as failed:
        ChatTemplate(source, "", "", cpu_limit=cpu_limit, output_limit=1_000_000).render(["x" * 99])  # type: ignore[list-item]
    return failed.value.message.removeprefix("the model's chat template ")


@pytest.mark.parametrize("name", ENDLESS)
def test_nothing_goes_on_for_long(name: str) -> None:
    words = "recurses without end" if "recursi" in name else "takes too long"
    assert words in refusal(ENDLESS[name], cpu_limit=0.02)


@pytest.mark.parametrize("name", HUGE)
def test_nothing_huge_is_made(name: str) -> None:
    message = refusal(HUGE[name], cpu_limit=60)
    expected = (
        "too much text",
        "output is too long",
        "format is too",
        "too wide",
        "too large",
        "Range too big",
    )
    assert any(words in message for words in expected), message


@pytest.mark.parametrize("source", FORBIDDEN)
def test_nothing_gets_out(source: str) -> None:
    try:
        text = ChatTemplate(source, "", "").render([])
    except TemplateFailed:
        return
    assert text == ""


def test_ordinary_work_is_within_the_limits() -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 == messages | length - 1 %}last{% endif %}"
        "{{ '<|' + m.role + '|>' + (m.content | trim) + (messages[loop.index0:] | first).role }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 1000}] * 1000
    assert len(ChatTemplate(source, "", "").render(messages)) > 1_000_000


def test_each_thread_has_its_own_budget() -> None:
    template = ChatTemplate(
        "{% for i in range(200) %}{{ messages[0] }}{% endfor %}", "", "", output_limit=1000
    )
    results: dict[str, object] = {}

    def work(word: str) -> None:
        try:
            results[word] = [template.render([word]) == word * 200 for _ in range(20)]  # type: ignore[list-item]
        except TemplateFailed as error:
            results[word] = error.message

    threads = [threading.Thread(target=work, args=(word,)) for word in ("a", "b", "cc", "toolong")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[word] for word in ("a", "b", "cc")] == [[True] * 20] * 3
    assert "too long" in str(results["toolong"])
