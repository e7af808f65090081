"""How a request wants its tokens chosen, by OpenAI's names and llama.cpp's."""

from __future__ import annotations

import re
from typing import Any

from server.api import limits
from server.api.fields import Field
from server.api.parts import flag, integer, number
from server.errors import quoted
from server.turn import Sampling

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def sampling(root: Field, vocabulary: int, alternatives: int | None = None) -> Sampling:
    """``alternatives`` are the logprobs asked for at each token, None where there are to be none."""
    default = Sampling()
    seed = root.get("seed")
    return Sampling(
        temperature=number(root, "temperature", default.temperature, limits.TEMPERATURE),
        top_p=number(root, "top_p", default.top_p, limits.PROBABILITY),
        top_k=min(limits.TOKENS, max(0, integer(root, "top_k", default.top_k, -1))),
        min_p=number(root, "min_p", default.min_p, limits.PROBABILITY),
        frequency_penalty=number(root, "frequency_penalty", default.frequency_penalty, limits.PENALTY),
        presence_penalty=number(root, "presence_penalty", default.presence_penalty, limits.PENALTY),
        repeat_penalty=number(root, "repeat_penalty", default.repeat_penalty, limits.REPEAT_PENALTY),
        seed=seed.integer() % 2**32 if seed else None,
        logit_bias=_logit_bias(root, vocabulary),
        top_logprobs=alternatives,
    )


def _logit_bias(root: Field, vocabulary: int) -> tuple[tuple[int, float], ...]:
    field = root.get("logit_bias")
    if field is None:
        return ()
    biases = field.object()
    if len(biases) > limits.BIASES:
        raise field.wrong(f"has {len(biases)} entries, at most {limits.BIASES} are allowed")
    return tuple(_bias(field, key, value, vocabulary) for key, value in biases.items())


def _bias(field: Field, key: str, value: Any, vocabulary: int) -> tuple[int, float]:
    if not _TOKEN_ID.fullmatch(key) or int(key) >= vocabulary:
        raise field.wrong(f"has the key {quoted(key)}, which is no token id of this model")
    return int(key), Field(value, f"{field.path}.{key}").number(limits.BIAS)


def top_logprobs(root: Field) -> int | None:
    """As chat completions ask for them."""
    wanted = flag(root, "logprobs", False)
    top = root.get("top_logprobs")
    if top and not wanted and top.integer(0, limits.TOP_LOGPROBS):
        raise top.wrong("needs logprobs to be true")
    return integer(root, "top_logprobs", 0, 0, limits.TOP_LOGPROBS) if wanted else None
