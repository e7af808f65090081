"""What an answer is held to beyond its grammar: which values are verified, and what follows if they
fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.dialects.bound import BoundDialect
from server.dialects.constrain import ReasoningState
from server.schema.parameters import UNKNOWN, Parameters
from server.schema.verify import Verifier


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A value with a schema: a tool's arguments, or the text of a response format.

    ``exact`` says that the constraint decides the whole schema, so that the value may stream. A value
    that ``must_be_valid`` never leaves otherwise; any other leaves with a warning. ``parameters`` are
    those of a tool.
    """

    verifier: Verifier
    exact: bool
    must_be_valid: bool
    parameters: Parameters = UNKNOWN


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """How many tokens thoughts may have, and the tokens that then close one."""

    tokens: int
    closing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How to read one answer. ``tools`` are those that may be called, by name. ``stop`` strings end free
    text; a value with a schema is never cut by them. ``thoughts`` is None where they have no limit;
    ``thought_calls``: a call may end one."""

    bound: BoundDialect
    tools: Mapping[str, HeldValue] = field(default_factory=dict)
    response: HeldValue | None = None
    reasoning: ReasoningState = ReasoningState.NONE
    must_call: bool = False
    bare: bool = False
    thought_calls: bool = True
    stop: tuple[str, ...] = ()
    thoughts: ThoughtLimit | None = None
    repeats: bool = False
