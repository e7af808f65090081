"""How many tokens are evaluated at a time, and when those of prompts are."""

from __future__ import annotations

ALONE_S, BESIDE_S = 1.5, 0.25
"""About how long a batch of prompts may take. A cancelled request goes on for as long and a new one waits for
as long, and where answers run beside, their streams stand still. Long batches are the faster ones: on two
cores 256 tokens at a time go a quarter faster than 32."""
LEAST, MOST = 32, 2048
_MEASURED = 16  # tokens below which a batch says little of how fast prompts go


class _Size:
    """Of a batch in tokens: about ``seconds`` long. Always a power of two, and slow to change its mind: how a
    prompt is cut up shows in its logits, so equal requests should be cut alike."""

    def __init__(self, seconds: float, first: int) -> None:
        self.tokens = first
        self._seconds = seconds

    def adapt(self, speed: float) -> None:
        """``speed`` is in tokens per second."""
        ideal = speed * self._seconds
        while self.tokens > LEAST and ideal < 0.6 * self.tokens:
            self.tokens //= 2
        while self.tokens < MOST and ideal > 2.0 * self.tokens:
            self.tokens *= 2


class Pace:
    """The size of a batch, from the speed of earlier ones.

    Answers keep half their speed beside prompts: for each batch that they shared with prompts they get as
    long without. (Long batches and pauses between them cost less than many short batches would.)
    """

    def __init__(self) -> None:
        self._alone, self._beside = _Size(ALONE_S, 256), _Size(BESIDE_S, 64)
        self._speed: float | None = None
        self._owed = 0.0

    def tokens(self, *, answers: bool) -> int:
        """How many a batch may have, with answers in it or without."""
        return (self._beside if answers else self._alone).tokens

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
            speed = prompts / seconds
            self._speed = speed if self._speed is None else (self._speed + speed) / 2
            self._alone.adapt(self._speed)
            self._beside.adapt(self._speed)
