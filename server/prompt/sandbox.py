"""Jinja's sandbox with what chat templates expect, every operation charged to a budget.

Jinja's own sandbox keeps a template away from Python's internals; it is the mutable one, since some
published templates build lists with ``append``. On top of that every way in which a template can make
something large or go on for long passes by the ``Budget`` of the rendering:

- loop bodies, calls, filters, tests used per item, and operators: each is one step, and every few steps
  the thread's own CPU time is compared with the limit;
- what copies a text or a list is charged with its size: slices, filters, methods;
- ``+``, ``*``, ``**``, ``%``, ``~``, captured blocks, macros, padding, joining, replacing, formatting and
  JSON: the size is worked out before the value is made;
- ``range`` (100,000 by Jinja's sandbox).

What this does not catch is one single operation of the interpreter that takes long by itself, such as the
comparison of two lists nested in themselves. A rendering that does not come back is a hang, and hangs are
the case of the watchdog over the runner process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import string
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment

from server.prompt.budget import Budget, Refusal, affordable, length, operator_size, replaced_size

_UNBOUNDED_FILTERS = ("batch", "center", "random", "slice", "urlize", "wordwrap", "xmlattr")

Decoded = Callable[[Any], Any]
"""What ``from_json`` does to what it decodes."""


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def counted(tree: nodes.Template) -> nodes.Template:
    """The tree with a step at the start of each loop body, and ``~`` and slices as calls."""
    for loop in list(tree.find_all(nodes.For)):
        loop.body.insert(0, nodes.ExprStmt(_called("step", []), lineno=loop.lineno))
    _replace_within(tree)
    return tree


def _replace_within(node: nodes.Node) -> None:
    for name, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_replaced(each) for each in value]
        else:
            setattr(node, name, _replaced(value))


def _replaced(value: Any) -> Any:
    if not isinstance(value, nodes.Node):
        return value
    _replace_within(value)
    match value:
        case nodes.Concat():
            return _called("joined", value.nodes)
        case nodes.Getitem(arg=nodes.Slice() as cut):
            bounds = [each or nodes.Const(None) for each in (cut.start, cut.stop, cut.step)]
            return _called("sliced", [value.node, *bounds])
    return value


def _called(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """A call of one of the environment's own methods."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


class ChatEnvironment(SandboxedEnvironment):
    """Jinja's mutable sandbox with what chat templates expect, every operation charged to a budget."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=self._shown,
        )
        self._current = threading.local()
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise_exception
        for name in _UNBOUNDED_FILTERS:
            self.filters.pop(name)
        self.filters |= {
            "format": self._format,
            "from_json": self._from_json,
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "safe": _identity,
            "string": self._string,
            "tojson": self._tojson,
        }
        self.filters = {name: self._charged(each) for name, each in self.filters.items()}
        self.globals["dict"] = self._charged(_dict)

    @contextlib.contextmanager
    def spending(self, budget: Budget, decoded: Decoded | None = None) -> Iterator[None]:
        """While this thread renders or compiles: whose costs are counted."""
        self._current.budget, self._current.decoded = budget, decoded or _identity
        try:
            yield
        finally:
            del self._current.budget, self._current.decoded

    @property
    def _budget(self) -> Budget:
        budget: Budget = self._current.budget
        return budget

    # Jinja's hooks.

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self._budget
        budget.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes | list | dict | int):
            args = affordable(budget, owner, __obj.__name__, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_test(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._budget.step()
        return super().call_test(name, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._budget.made(operator_size(self._budget, operator, left, right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def checked(*args: Any, **kwargs: Any) -> str:
            fields = 1
            for _, _, form, _ in string.Formatter().parse(value.__self__):
                fields += 1
                if form and ("{" in form or re.search(r"\d{5,}", form)):
                    raise Refusal("a format is too wide")
            filled = self._budget.weigh(list(args) + list(kwargs.values()))
            self._budget.made(len(value.__self__) + fields * filled)
            return wrapped(*args, **kwargs)

        return checked

    def _charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self._budget.made(max(map(length, args), default=0))
            return function(*args, **kwargs)

        return charged

    # What the changed tree calls.

    def step(self) -> None:
        """Nothing: that it is called is what counts."""

    def joined(self, *parts: Any) -> str:
        self._budget.made(sum(map(self._budget.weigh, parts)))
        return "".join(map(str, parts))

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        self._budget.made(length(value))
        return value[start:stop:step]

    def concat(self, parts: Iterable[str], /) -> str:
        known = list(parts)
        self._budget.made(sum(map(len, known)))
        return "".join(known)

    def _shown(self, value: Any) -> Any:
        if not isinstance(value, str):
            self._budget.made(self._budget.weigh(value))
        return value

    # Filters: Jinja's own, or transformers', with their size worked out first.

    def _string(self, value: Any) -> str:
        self._budget.made(self._budget.weigh(value))
        return str(value)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            value = [self.getitem(each, attribute) for each in value]
        parts = list(value)
        self._budget.made(sum(map(self._budget.weigh, parts)) + len(d) * len(parts))
        return str(d).join(map(str, parts))

    def _replace(self, value: str, old: str, new: str, count: int = -1) -> str:
        text, old, new = str(value), str(old), str(new)
        self._budget.made(replaced_size(text, old, new))
        return text.replace(old, new, -1 if count is None else count)

    def _format(self, value: str, *args: Any, **kwargs: Any) -> str:
        filling: Any = kwargs or args
        self._budget.made(operator_size(self._budget, "%", str(value), filling))
        return str(str(value) % filling)

    def _indent(self, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        margin = len(width) if isinstance(width, str) else width
        self._budget.made(len(s) + (s.count("\n") + 1) * max(margin, 0))
        return do_indent(s, width, first, blank)

    def _from_json(self, value: str) -> Any:
        self._budget.made(len(value))
        return self._current.decoded(json.loads(value))

    def _tojson(
        self,
        value: Any,
        indent: int | None = None,
        ensure_ascii: bool = False,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as Python writes it, nothing escaped for HTML. ``ensure_ascii`` is not followed: no
        model needs it, and private-use characters have to pass as they are."""
        if isinstance(indent, int) and not 0 <= indent <= 16:
            raise Refusal("a JSON indent is too wide")
        self._budget.made(self._budget.weigh(value))
        pair = (separators[0], separators[1]) if separators else None
        return json.dumps(
            value,
            ensure_ascii=False,
            indent=indent,
            separators=pair,
            sort_keys=sort_keys,
            default=_jsonable,
        )


def _identity(value: Any) -> Any:
    return value


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any = "") -> NoReturn:
    raise Refusal(str(message))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Undefined):
        return None
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
