"""A turn to the prompt that a model reads: history mended, template rendered, text tokenized.

All that is known of the template is found out when a ``Prompter`` is made. Prompts are deterministic for a
given clock, so that equal beginnings of conversations are equal tokens. Tools are shown whatever
``tool_choice`` says, for the same reason: which of them may be called is the grammar's business.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from server.dialects.dialect import Dialect
from server.engine.protocol import Vocabulary
from server.errors import TemplateFailed
from server.prompt.history import Rendered, conversation, mapped
from server.prompt.mending import Needs, mended
from server.prompt.probe import Unusable, probe
from server.prompt.template import ChatTemplate
from server.prompt.thinking import template_variables
from server.prompt.tokens import Edges, Markup, TokenWriter, Twins
from server.prompt.tools import format_text, shown_tools, tools_text
from server.turn import Message, Tool, ToolCall, Turn

_log = logging.getLogger("toolspan.prompt")

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""For a model without a template whose vocabulary has ChatML's tokens."""

PLAIN = """\
{% for message in messages %}
{{ message.role|capitalize + ': ' + message.content|trim + '\\n\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ 'Assistant:' }}
{%- endif %}
"""
"""For any other model without a template, a base model as a rule: roles written out."""


PROBE_TOOL = "probe_tool"


def probe_call(number: int, *values: str) -> ToolCall:
    """A call to see how a template writes calls, with these texts as arguments."""
    arguments = {f"probe_key{place or ''}": value for place, value in enumerate(values)}
    return ToolCall(f"probe{number:04d}", PROBE_TOOL, json.dumps(arguments))


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. ``text`` is for people; ``reasoning_open``: it ends inside a thought;
    ``reasoning_over``: it ended where text begins, so that none may come."""

    tokens: tuple[int, ...]
    text: str
    reasoning_open: bool
    reasoning_over: bool = False


class Prompter:
    """The prompts of one loaded model. ``prompt`` may be called from several threads at once.

    ``needs`` is what the template was found to need; ``warnings`` are for the operator. A template that
    can't be used at all is replaced by a built-in one, with a warning.
    """

    def __init__(
        self,
        template_source: str | None,
        dialect: Dialect,
        vocabulary: Vocabulary,
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.dialect = dialect
        self._vocabulary = vocabulary
        self._clock = clock
        warnings: list[str] = []
        self._template, self.needs = self._usable(template_source, warnings)
        if dialect.tools_in_template and self.needs.describe_tools:
            warnings.append("the chat template shows no tools: they are described in the system text")
        self.warnings = tuple(warnings)
        self._markup = Markup((*vocabulary.markup_texts(), *dialect.hidden_texts))
        self._edges = Edges(self._markup)
        self._writer = TokenWriter(vocabulary)

    def prompt(self, turn: Turn) -> Prompt:
        """The prompt for a turn. Raises ``InvalidRequest`` for a history that can't be made sense of,
        ``TemplateFailed`` for one that the template refuses."""
        twins = self._twins()
        text = self._rendered(turn, twins, generation=True)
        begun = self._begun(text)
        text = text.removesuffix(begun)
        bos = self._vocabulary.bos_text
        if self._vocabulary.adds_bos and bos:
            text = text.removeprefix(bos)
        tokens = self._writer.write(text, twins)
        if self._vocabulary.adds_bos and self._vocabulary.bos is not None:
            tokens.insert(0, self._vocabulary.bos)
        return Prompt(tuple(tokens), twins.reveal(text), self._reasoning_open(text), bool(begun))

    def rendered_calls(self, calls: tuple[ToolCall, ...]) -> str:
        """What the template writes for an assistant's turn of these calls (see ``probe_call``), from the end
        of the user's message on; where the generation prompt is how such a turn begins, from the end of
        that. Raises ``TemplateFailed``."""
        tool = Tool(PROBE_TOOL, "a probe", '{"type": "object", "properties": {"probe_key": {}}}')
        asked = Turn((Message("user", "probe_question"),), tools=(tool,))
        answered = Turn((*asked.messages, Message("assistant", tool_calls=calls)), tools=(tool,))
        text = self._rendered(answered, self._twins(), generation=False)
        for generation in (True, False):
            before = self._rendered(asked, self._twins(), generation=generation)
            before = before.removesuffix(self._begun(before))
            if text.startswith(before):
                return text[len(before) :]
        return text.rpartition("probe_question")[2]

    def _usable(self, source: str | None, warnings: list[str]) -> tuple[ChatTemplate, Needs]:
        if source is not None:
            try:
                template = self._compiled(source)
                return template, probe(template, self.dialect)
            except (TemplateFailed, Unusable) as error:
                _log.warning("%s", error)
                warnings.append(f"a built-in chat template is used: {error}")
        else:
            warnings.append("the model has no chat template: a built-in one is used")
        chatml = self._vocabulary.single_token("<|im_start|>") is not None
        template = self._compiled(CHATML if chatml else PLAIN)
        return template, probe(template, self.dialect)

    def _compiled(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self._vocabulary.bos_text, self._vocabulary.eos_text, clock=self._clock)

    def _twins(self) -> Twins:
        return Twins(self._markup, self._edges, self._template.source)

    def _rendered(self, turn: Turn, twins: Twins, *, generation: bool) -> str:
        needs = self.needs
        tools = shown_tools(turn.tools, twins.hide, null_types=not needs.no_null_types)
        described = tools if needs.describe_tools else []
        messages = mended(
            conversation(turn.messages, twins.hide, self.dialect.reasoning),
            needs,
            self.dialect,
            self._instructions(turn, described, twins),
        )
        offered: list[Rendered] = [] if needs.describe_tools else tools
        decoded = functools.partial(mapped, change=twins.hide)
        variables = template_variables(turn, self._template.words)
        try:
            return self._template.render(
                messages, offered, decoded=decoded, add_generation_prompt=generation, **variables
            )
        except TemplateFailed as error:
            raise TemplateFailed(twins.reveal(error.message)) from None

    def _instructions(self, turn: Turn, described: list[Rendered], twins: Twins) -> list[str]:
        may_call = bool(turn.tools) and turn.tool_choice.mode != "none"
        form = format_text(turn.response_format, twins.hide, calls=may_call)
        return [
            *([tools_text(described, self.dialect)] if described else ()),
            *([form] if form else ()),
        ]

    def _begun(self, text: str) -> str:
        """What a prompt ends with that the answer itself begins with, where answers have marked parts; a
        thought that the prompt opens stays open."""
        dialect = self.dialect
        if not dialect.text or (dialect.reasoning and text.endswith(dialect.reasoning[0])):
            return ""
        openers = (dialect.opener, *(each.open for each in dialect.text))
        return max((each for each in openers if text.endswith(each)), key=len, default="")

    def _reasoning_open(self, text: str) -> bool:
        """Whether a thought was opened at the text's end: nothing but plain text follows the marker.
        Client text can't tell, its markers are hidden."""
        if self.dialect.reasoning is None:
            return False
        opener, _ = self.dialect.reasoning
        _, found, after = text.rpartition(opener)
        return bool(found) and next(self._markup.occurrences(after), None) is None
