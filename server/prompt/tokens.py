"""Control tokens come from the template alone: client text never turns into markup.

``Markup`` knows the texts that mean something to the model (control and user-defined tokens, the markers
of the dialect). A request's ``Twins`` hide every occurrence of one in client text behind a single character
from Unicode's last private-use plane, before the template sees it; the client's own characters of that
plane are hidden the same way, so whatever of that plane is in a rendered text is a twin and nothing else.
``TokenWriter`` turns the rendered text to token ids: the template's markup with special tokens on, text
with twins, their originals back in place, as plain text.

A marker can also be put together from client text and what stands around it. So where a client's text
begins or ends with a part of a marker, or is one but for its punctuation, a twin that stands for nothing
keeps it apart from its neighbours.

Where a rendered text has no twins its tokens are those of one plain ``tokenize`` call. Where it has, they
may differ from that in one more way than intended: some vocabularies let a control token swallow the blanks
beside it, and here it does not swallow those of a text with twins.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from server.engine.protocol import Vocabulary
from server.errors import InvalidRequest

_FIRST, _LAST = 0x100000, 0x10FFFD
_PLANE = f"{chr(_FIRST)}-{chr(_LAST)}"
_NOTHING = ""


class Markup:
    """A set of texts to look for: the longest at each place, from left to right.

    Texts of a single character are left out: a character can't be kept from being itself.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(text for text in texts if len(text) > 1)
        self.longest = max(map(len, self.texts), default=0)
        lengths: dict[str, set[int]] = {}
        for text in self.texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._start = re.compile(_one_of(lengths) or r"(?!)")

    def occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Where markers begin and end, none overlapping another."""
        done = 0
        for begin, end in self.overlapping(text):
            if begin >= done:
                yield begin, end
                done = end

    def overlapping(self, text: str) -> Iterator[tuple[int, int]]:
        """The longest marker at each place that has one."""
        for found in self._start.finditer(text):
            begin = found.start()
            for length in self._lengths[found[0]]:
                if text[begin : begin + length] in self.texts:
                    yield begin, begin + length
                    break


class Edges:
    """Which texts could become a marker together with what stands around them."""

    def __init__(self, markup: Markup) -> None:
        self._reach = markup.longest
        self._heads = {text[:cut] for text in markup.texts for cut in range(1, len(text))}
        self._tails = {text[cut:] for text in markup.texts for cut in range(1, len(text))}
        self._cores = {core for text in markup.texts for core in _cores(text)}
        self._opens = re.compile(_one_of({text[0] for text in markup.texts}) or r"(?!)")
        self._closes = re.compile(_one_of({text[-1] for text in markup.texts}) or r"(?!)")

    def begins_inside(self, text: str) -> bool:
        """Whether some marker's end is how this text begins."""
        ends = self._closes.finditer(text, 0, self._reach)
        return any(text[: found.end()] in self._tails for found in ends)

    def ends_inside(self, text: str) -> bool:
        """Whether some marker's beginning is how this text ends, or the text lacks only the punctuation
        around a marker."""
        begins = self._opens.finditer(text, max(0, len(text) - self._reach))
        return text in self._cores or any(text[found.start() :] in self._heads for found in begins)


class Twins:
    """The stand-ins of one request. ``reserved`` are characters the template itself may write."""

    def __init__(self, markup: Markup, edges: Edges, reserved: Iterable[str] = ()) -> None:
        self._markup = markup
        self._edges = edges
        self._reserved = frozenset(map(ord, reserved))
        self._twins: dict[str, str] = {}
        self._originals: dict[int, str] = {}
        self._next = _FIRST

    def hide(self, text: str) -> str:
        """The text with every marker and every character of the twins' plane replaced. Raises
        ``InvalidRequest`` when the plane is used up, or for half a surrogate pair."""
        if not _is_unicode(text):
            raise InvalidRequest("a text has half of a surrogate pair", code="invalid_unicode")
        own_hidden = _OWN.sub(lambda found: self._twin(found[0]), text)
        parts: list[str] = []
        done = 0
        for begin, end in self._markup.occurrences(own_hidden):
            parts += own_hidden[done:begin], self._twin(own_hidden[begin:end])
            done = end
        parts.append(own_hidden[done:])
        return self._kept_apart("".join(parts), text.strip())

    def _kept_apart(self, hidden: str, core: str) -> str:
        """With a twin of nothing where the text begins or ends with part of a marker. Blanks around the
        ``core`` stay outside, since templates trim them."""
        if not core:
            return hidden
        begin = len(hidden) - len(hidden.lstrip())
        end = len(hidden.rstrip())
        before = self._twin(_NOTHING) if self._edges.begins_inside(core) else ""
        after = self._twin(_NOTHING) if self._edges.ends_inside(core) else ""
        return f"{hidden[:begin]}{before}{hidden[begin:end]}{after}{hidden[end:]}"

    def reveal(self, text: str) -> str:
        """The text with the originals back."""
        return text.translate(self._originals)

    def within(self, text: str) -> bool:
        """Whether the text has a twin."""
        return bool(self._originals) and any(
            ord(found[0]) in self._originals for found in _OWN.finditer(text)
        )

    def _twin(self, original: str) -> str:
        twin = self._twins.get(original)
        if twin is None:
            while self._next in self._reserved:
                self._next += 1
            if self._next > _LAST:
                raise InvalidRequest("the messages have too many different private-use characters")
            twin = chr(self._next)
            self._twins[original] = twin
            self._originals[self._next] = original
            self._next += 1
        return twin


class TokenWriter:
    """Rendered text to token ids of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._markup = Markup(vocabulary.markup_texts())

    def write(self, rendered: str, twins: Twins) -> list[int]:
        """Token ids, without BOS. No token of the vocabulary's markup comes from a text with twins."""
        tokens: list[int] = []
        for plain, run in itertools.groupby(self._stretches(rendered, twins), key=lambda each: each[1]):
            text = "".join(stretch for stretch, _ in run)
            shown = twins.reveal(text) if plain else text
            tokens += self._vocabulary.tokenize(shown, markup=not plain, continued=bool(tokens))
        return tokens

    def _stretches(self, rendered: str, twins: Twins) -> Iterator[tuple[str, bool]]:
        """The text in pieces: markers, and what is between them, with whether that has twins."""
        done = 0
        for begin, end in self._markup.occurrences(rendered) if twins.within(rendered) else ():
            between = rendered[done:begin]
            yield between, twins.within(between)
            yield rendered[begin:end], False
            done = end
        yield rendered[done:], twins.within(rendered[done:])


_OWN = re.compile(f"[{_PLANE}]")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_of(characters: Iterable[str]) -> str:
    joined = "".join(map(re.escape, sorted(characters)))
    return f"[{joined}]" if joined else ""


def _cores(text: str) -> Iterator[str]:
    """What is left of a marker without some of the punctuation before and after it."""
    first = next((at for at, each in enumerate(text) if each.isalnum()), 0)
    last = next((at for at in range(len(text), 0, -1) if text[at - 1].isalnum()), 0)
    for begin in range(1, first + 1):
        for end in range(last, len(text)):
            yield text[begin:end]
