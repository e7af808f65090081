"""How many tokens are evaluated at a time."""

from __future__ import annotations

SECONDS = 0.25
"""About how long a batch may take: streams stand still and cancelled requests go on for as long."""
LEAST, MOST, FIRST = 32, 2048, 128
_MEASURED = 16  # tokens below which a batch says little of how fast prompts go


class Pace:
    """The size of a batch in tokens, from the speed of earlier ones. Always a power of two, and slow to
    change its mind: how a prompt is cut up shows in its logits, so equal requests should be cut alike."""

    def __init__(self) -> None:
        self.tokens = FIRST
        self._speed: float | None = None

    def measured(self, count: int, seconds: float) -> None:
        """A batch of ``count`` tokens took that long."""
        if count < _MEASURED or seconds <= 0:
            return
        speed = count / seconds
        self._speed = speed if self._speed is None else (self._speed + speed) / 2
        ideal = self._speed * SECONDS
        while self.tokens > LEAST and ideal < 0.7 * self.tokens:
            self.tokens //= 2
        while self.tokens < MOST and ideal > 2.8 * self.tokens:
            self.tokens *= 2
