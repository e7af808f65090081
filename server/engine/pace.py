"""How many tokens are evaluated at a time, and when those of prompts are."""

from __future__ import annotations

SECONDS = 0.25
"""About how long a batch may take: streams stand still and cancelled requests go on for as long."""
LEAST, MOST, FIRST = 32, 2048, 128
_MEASURED = 16  # tokens below which a batch says little of how fast prompts go


class Pace:
    """The size of a batch in tokens, from the speed of earlier ones. Always a power of two, and slow to
    change its mind: how a prompt is cut up shows in its logits, so equal requests should be cut alike.

    Answers keep half their speed beside prompts: for each batch that they shared with prompts they get as
    long without. (Long batches and pauses between them cost less than many short batches would.)
    """

    def __init__(self) -> None:
        self.tokens = FIRST
        self._speed: float | None = None
        self._owed = 0.0

    @property
    def prompts_wait(self) -> bool:
        """Whether running answers are to go on without prompts."""
        return self._owed > 0

    def measured(self, prompts: int, seconds: float, *, answers: bool = False) -> None:
        """A batch with so many tokens of prompts, and with answers or without, took that long."""
        if not answers:
            self._owed = 0.0
        elif prompts:
            self._owed += seconds
        else:
            self._owed -= min(seconds, self._owed)
        if prompts >= _MEASURED and seconds > 0:
            self._adapt(prompts / seconds)

    def _adapt(self, speed: float) -> None:
        self._speed = speed if self._speed is None else (self._speed + speed) / 2
        ideal = self._speed * SECONDS
        while self.tokens > LEAST and ideal < 0.7 * self.tokens:
            self.tokens //= 2
        while self.tokens < MOST and ideal > 2.8 * self.tokens:
            self.tokens *= 2
