"""A real server that is stopped and started again, with the prefixes it keeps on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launch import Launched, eventually, launched

pytestmark = pytest.mark.model

LOG = "".join(f"On day {day} the ship sailed {day * 7 % 13} miles. " for day in range(50))
MESSAGES: list[Any] = [
    {"role": "system", "content": LOG},
    {"role": "user", "content": "How far did the ship sail on day 3?"},
]


def told(server: Launched) -> tuple[str, int, int]:
    """How the answer begins (further on, a prompt that is computed in other pieces may turn a near tie), the
    tokens of its prompt, and how many of them were not computed."""
    answer = server.create(messages=MESSAGES, temperature=0, max_tokens=12)
    usage = answer.usage
    begins = answer.choices[0].message.content.split()[:3]
    return " ".join(begins), usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def test_a_restart_computes_a_long_prefix_but_once(tmp_path: Path) -> None:
    flags = ("--model", "smollm2-135m", "--ctx", "2048", "--snapshot-folder", str(tmp_path))
    with launched(*flags, "--snapshots") as server:
        said, prompt, cached = told(server)
        assert said == "The ship sailed"
        assert prompt > 512
        assert cached == 0
        assert eventually(lambda: [each.suffix for each in tmp_path.iterdir()] == [".prefix"])
    with launched(*flags, "--snapshots") as server:
        again, _, cached = told(server)
        assert again == said
        assert cached > prompt - 40  # all but the question
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1000])
    with launched(*flags, "--snapshots") as server:
        assert told(server) == (said, prompt, 0)
        assert eventually(lambda: path.exists())  # it was removed, and is written again
