import json

import pytest
from schemas import holds, matcher, walk

from server.schema.cache import Cache
from server.schema.formats import NATIVE, PATTERNS
from server.schema.patterns import translated

TYPICAL = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["08:30:06Z", "23:59:59.25+05:30"],
    "date-time": ["2024-02-29T08:30:06Z"],
    "duration": ["P1DT2H", "PT30M"],
    "email": ["ada.lovelace@example.com", "a+b@x-y.org"],
    "hostname": ["localhost", "www.example-site.org"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::1", "2001:db8::8a2e:370:7334"],
    "uri": ["https://example.com/a?b=c#d", "mailto:a@b.c"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"],
}
WRONG = {
    "date": ["2023-02-29", "2024-13-01", "1900-02-29", "24-01-01"],
    "time": ["24:00:00Z", "08:30:06", "08:30:60Z"],
    "date-time": ["2024-02-30T08:30:06Z", "2024-02-29 08:30:06Z"],
    "duration": ["P", "1D"],
    "email": ["a", "a@b..c", ".a@b.c", f"{'a' * 65}@b.c", f"a@{'b' * 64}.c"],
    "hostname": ["-a", "a..b", "xn--X", "a" * 64, ".".join(["a" * 60] * 5)],
    "ipv4": ["256.1.1.1", "1.1.1", "01.1.1.1"],
    "ipv6": ["12345::", "1::2::3"],
    "uri": ["//no.scheme", "a b:c"],
    "uuid": ["2eb8aa08"],
}


@pytest.mark.parametrize("name", sorted({*NATIVE, *PATTERNS}))
def test_what_is_generated_for_a_format_is_of_it(name: str) -> None:
    made = Cache().prepared(json.dumps({"type": "string", "format": name}), "p", False)
    assert made.lowered.exact
    start = matcher(made.lowered)
    for seed in range(40):
        text = walk(start, seed, hurry=10 * (1 + seed % 8))
        assert text is None or made.verifier.failure(text) is None, text
    for text in TYPICAL[name]:
        assert holds(start, json.dumps(text)), text
    for text in WRONG[name]:
        assert not holds(start, json.dumps(text)), text
        assert made.verifier.failure(json.dumps(text)) is not None, text


def test_every_pattern_is_one_the_engine_reads_alike() -> None:
    assert all(translated(each) for patterns in PATTERNS.values() for each in patterns)
