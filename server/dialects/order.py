"""The rules of which parameters come, and in which order.

In any order, each at most once, required ones always, where they are few: a rule for each set of those that
are left (2**n). More of them come in the order of the schema, as the prompt shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from server.dialects.grammar import lark_string

ANY_ORDER = 7
"""The parameters that may come in any order."""
ANY_ORDER_RULES = 2_048
"""The rules that all tools of an answer may have for that, together."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """What stands before the first parameter, between two, after the last one, and where there is none."""

    before: str = ""
    between: str = ""
    last: str = ""
    empty: str = ""


def any_order_limit(objects: int) -> int:
    """How many parameters may come in any order where there are so many objects."""
    return min(ANY_ORDER, (ANY_ORDER_RULES // max(objects, 1)).bit_length() - 1)


def order_rules(name: str, required: Sequence[bool], free: str, gaps: Gaps, limit: int) -> Iterator[str]:
    """The rules of parameters whose own rules are ``NAME_0`` and so on; ``name`` is the first one's.
    ``free`` is the rule of a parameter that is not declared, empty where there is none."""
    in_order = _in_any_order if len(required) <= limit else _in_order
    return in_order(name, required, free, gaps)


def _in_any_order(name: str, required: Sequence[bool], free: str, gaps: Gaps) -> Iterator[str]:
    """``NAME_then_SET`` is what may come after a parameter while those of the set have not come, its bits
    those of their places."""
    everything = (1 << len(required)) - 1
    wanted = sum(1 << place for place, each in enumerate(required) if each)
    for left in range(everything + 1):
        onward = [
            f"{name}_{place} {name}_then_{left & ~(1 << place)}"
            for place in range(len(required))
            if left >> place & 1
        ]
        if free:
            onward.append(f"{free} {name}_then_{left}")
        if left == everything:
            yield _rule(name, gaps.empty if not wanted else None, gaps.before, onward)
        if left != everything or free:
            yield _rule(f"{name}_then_{left}", gaps.last if not left & wanted else None, gaps.between, onward)


def _in_order(name: str, required: Sequence[bool], free: str, gaps: Gaps) -> Iterator[str]:
    """``NAME_from_PLACE`` is what may come after a parameter, none before the place."""
    count = len(required)
    first = next((place for place, each in enumerate(required) if each), count)
    onward = [f"{name}_{place} {name}_from_{place + 1}" for place in range(min(first + 1, count))]
    others = [f"{free} {name}_from_{count}"] if free else []
    if first == count:
        yield _rule(name, gaps.empty, gaps.before, [*onward, *others])
    else:
        yield _rule(name, None, gaps.before, onward)
    for place in range(1, count):
        rest = f"{name}_from_{place + 1}"
        taken = _rule(f"{name}_from_{place}", None, gaps.between, [f"{name}_{place} {rest}"])
        yield taken if required[place] else f"{taken} | {rest}"
    yield _rule(f"{name}_from_{count}", gaps.last, gaps.between, others)


def _rule(name: str, end: str | None, gap: str, onward: Sequence[str]) -> str:
    """A rule for the end, where it may come, and for what goes on after the gap."""
    ends = [] if end is None else [lark_string(end)]
    goes_on = [f"{lark_string(gap)} ({' | '.join(onward)})"] if onward else []
    return f"{name}: {' | '.join([*ends, *goes_on])}"
