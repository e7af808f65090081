"""What a row of the dialect table says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Segment:
    """Free text between markers. It ends with the turn where ``close`` is empty; ``onward``: calls or other
    text follow, and where ``close`` is empty, a call's opener ends it. Of two with one ``open`` the onward
    one comes last."""

    open: str
    close: str = ""
    onward: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """How a model writes calls and reasoning. Compared by identity.

    ``span`` names the rule of the grammar file that a span is. ``markers`` take the place of the file's
    terminals of the same name: a token where the vocabulary has one, and hidden in what clients send.
    ``keys`` do too, and are only text. ``inner`` are tokens that stand within the texts of markers, where the
    vocabulary has them. A gap that is not named in ``gaps`` is empty; those of a template are measured when
    it is loaded. ``separator`` stands between two spans. Where calls have ids in the text, they are nine
    letters and digits, or, ``indexed``, the running number of the call from ``first_index`` on. ``reasoning``
    is the pair of markers around a thought and ``after_reasoning`` what the model writes between a thought
    and a call. ``reasoning_cue`` is by what a template shows that it has thoughts, where that is not their
    opener. ``thoughtless`` says that a turn without a thought may begin with what closes one. ``text`` are
    the segments that free text stands in, none where it has no markers; with them thoughts, text and calls
    each begin with their marker. ``turn_end`` may stand after all of them. ``in_history`` is how templates
    write calls, where models of the dialect do it otherwise. ``unopened`` is the rule of a span whose opening
    marker the model has forgotten, where that happens. ``others`` are rules of spans such a model writes,
    too, one call each, by the terminals that they begin with, in a dialect whose text has segments.
    ``tools_in_template`` is False where the template knows no tools and the system text has to describe them.
    ``bare`` says that such a model may forget the markers around a call, or that it has none: then a call is
    known only at the start of an answer.
    """

    name: str
    grammar: str
    cues: tuple[str, ...]
    markers: Mapping[str, str]
    span: str = "span"
    keys: Mapping[str, str] = field(default_factory=dict)
    inner: tuple[str, ...] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)
    separator: str = ""
    indexed: bool = False
    first_index: int = 0
    reasoning: tuple[str, str] | None = None
    reasoning_cue: str = ""
    thoughtless: bool = False
    after_reasoning: str = ""
    text: tuple[Segment, ...] = ()
    turn_end: str = ""
    in_history: Dialect | None = None
    unopened: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    tools_in_template: bool = True
    parallel: bool = True
    bare: bool = False

    @property
    def opener(self) -> str:
        """The text that opens a span; empty where calls have no markers at all."""
        return self.markers.get("OPEN") or self.keys.get("OPEN", "")

    @property
    def other_openers(self) -> dict[str, str]:
        """The rules of ``others`` by the texts that they begin with."""
        texts = {**self.keys, **self.markers}
        return {texts[terminal]: rule for terminal, rule in self.others.items()}

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """Every marker of the dialect, those of reasoning and those within others included."""
        segments = [text for each in self.text for text in (each.open, each.close) if text]
        ends = (self.turn_end,) if self.turn_end else ()
        return (*self.markers.values(), *segments, *ends, *(self.reasoning or ()), *self.inner)

    @property
    def hidden_texts(self) -> tuple[str, ...]:
        """What the client's texts may not spell: markers, or the tokens within them."""
        whole = [each for each in self.marker_texts if not any(inner in each for inner in self.inner)]
        return (*whole, *self.inner)
