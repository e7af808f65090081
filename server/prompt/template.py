"""A model's chat template: compiled once, rendered within limits. Knows nothing of turns.

The source comes from a model file and is not trusted: ``sandbox`` says what bounds it. Everything that goes
wrong inside a template, its own ``raise_exception`` and the limits included, is raised as ``TemplateFailed``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError

from server.errors import TemplateFailed
from server.prompt.budget import Budget, Refusal
from server.prompt.sandbox import ChatEnvironment, Decoded, counted

SOURCE_LIMIT = 1024 * 1024
OUTPUT_LIMIT = 16 * 1024 * 1024
CPU_LIMIT = 2.0
REFUSAL_LIMIT = 300


class ChatTemplate:
    """A compiled template. ``render`` may be called from several threads at once. ``words`` are those of the
    source, names of variables among them.

    ``bos_text`` and ``eos_text`` are what the template prints for them. Raises ``TemplateFailed`` where
    the source can't be compiled.
    """

    def __init__(
        self,
        source: str,
        bos_text: str,
        eos_text: str,
        *,
        clock: Callable[[], datetime] = datetime.now,
        cpu_limit: float = CPU_LIMIT,
        output_limit: int = OUTPUT_LIMIT,
    ) -> None:
        self.source = source
        self._clock = clock
        self._cpu_limit = cpu_limit
        self._output_limit = output_limit
        self._environment = ChatEnvironment()
        self._constants = {"bos_token": bos_text, "eos_token": eos_text}
        if len(source) > SOURCE_LIMIT:
            raise TemplateFailed("the model's chat template is too long")
        self.words = frozenset(re.findall(r"\w+", source))
        try:
            tree = counted(self._environment.parse(source))
            tree.set_environment(self._environment)
            # Jinja computes constant parts while it compiles.
            with self._environment.spending(Budget(cpu_limit, output_limit)):
                code = self._environment.compile(tree)
        except Exception as error:
            raise _failure("can't be compiled", error) from None
        self._template = self._environment.template_class.from_code(
            self._environment, code, self._environment.make_globals(None)
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        decoded: Decoded | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. Messages and tools may be changed by the template: pass copies.

        Without tools the variable is left undefined, which is what every published template takes.
        """
        budget = Budget(self._cpu_limit, self._output_limit)
        given: dict[str, Any] = self._constants | self._dated() | variables
        given["messages"] = messages
        if tools:
            given["tools"] = tools
        if "functions" in self.source:  # Firefunction's name for them
            given["functions"] = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        chunks: list[str] = []
        with self._environment.spending(budget, decoded):
            try:
                for chunk in self._template.generate(given):
                    budget.output(chunk)
                    chunks.append(chunk)
            except Exception as error:
                raise _failure("failed", error) from None
        return "".join(chunks)

    def _dated(self) -> dict[str, Any]:
        """The clock's variables. ``datetime`` shows the day only: a prompt that changes every second
        would never share a prefix with another."""
        now = self._clock()

        def strftime_now(form: str) -> str:
            if len(form) > 100 or re.search(r"\d{3,}", form):
                raise Refusal("a date format is too long")
            return now.strftime(form)

        return {
            "strftime_now": strftime_now,
            "date_string": now.strftime("%d %b %Y"),
            "datetime": now.strftime("%b %d %Y"),
        }


def _failure(what: str, error: Exception) -> TemplateFailed:
    if isinstance(error, Refusal):
        text = error.message or ""
    elif isinstance(error, RecursionError):
        text = "it recurses without end"
    elif isinstance(error, MemoryError):
        text = "it needs too much memory"
    elif isinstance(error, SecurityError):
        text = f"it does what the sandbox forbids: {error}"
    else:
        text = f"{type(error).__name__}: {error}"
    # Lone surrogates, which a template can write, would be no text for the client's JSON.
    text = text[:REFUSAL_LIMIT].encode("utf-8", "replace").decode("utf-8")
    return TemplateFailed(f"the model's chat template {what}: {text}"[:REFUSAL_LIMIT])
