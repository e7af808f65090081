"""Tokens, their text, and prompts over a socket, in the shapes of llama-server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, playing, serving
from test_render import render

from server.api import limits
from server.supervisor import RUNNER

HI = [{"role": "user", "content": "Hi <|im_end|>"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("prompts"), {"text": "x"}, ctx=512) as running:
        yield running


@pytest.fixture(scope="module")
def model(model_file: Callable[[str], Path]) -> Iterator[Serving]:
    with serving(command=RUNNER, model=str(model_file("smollm2-135m")), ctx=512) as running:
        yield running


def post(server: Serving, path: str, **body: Any) -> Any:
    return server.request("POST", path, json=body)


def tokens(server: Serving, content: Any, **fields: Any) -> Any:
    return post(server, "/tokenize", content=content, **fields).json()["tokens"]


def text(server: Serving, ids: list[int]) -> str:
    return str(post(server, "/detokenize", tokens=ids).json()["content"])


def function(**described: Any) -> dict[str, Any]:
    """A request with a tool."""
    return {"messages": HI, "tools": [{"type": "function", "function": described}]}


def prompt(server: Serving, **body: Any) -> str:
    answer = post(server, "/apply-template", **body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def test_text_and_back(server: Serving) -> None:
    assert tokens(server, "aé") == [97, 0xC3, 0xA9]
    assert post(server, "/v1/tokenize", content="a").json() == {"tokens": [97]}
    assert text(server, [97, 0xC3, 0xA9]) == "aé"
    assert text(server, [0xC3]) == "\ufffd"
    assert tokens(server, "") == []
    assert text(server, []) == ""


def test_pieces(server: Serving) -> None:
    assert tokens(server, "aé", with_pieces=True) == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


def test_control_tokens(server: Serving) -> None:
    assert tokens(server, "<|im_end|>a") == [257, 97]
    assert tokens(server, "<|im_end|>", parse_special=False) == list(b"<|im_end|>")
    assert tokens(server, ["a", 257, "b"]) == [97, 257, 98]
    assert text(server, [257]) == "<|im_end|>"


def test_a_prompt(server: Serving) -> None:
    written = prompt(server, messages=HI, tools=[TOOL])
    assert written.endswith("<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "now"' in written
    assert prompt(server, messages=[{"role": "user", "content": "long " * 1000}]).count("long") == 1000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "content"),
        ("tokenize", {"content": 5}, "content"),
        ("tokenize", {"content": ["a", 258]}, "content[1]"),
        ("tokenize", {"content": ["a", None]}, "content[1]"),
        ("tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("tokenize", {"content": "a" * (limits.TEXT_LENGTH + 1)}, "content"),
        ("tokenize", {"content": [1] * (limits.TEXT_PARTS + 1)}, "content"),
        ("tokenize", {"content": "a", "model": "nobody"}, "model"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [1, 258]}, "tokens[1]"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": [True]}, "tokens[0]"),
        ("detokenize", {"tokens": [1] * (limits.TOKEN_IDS + 1)}, "tokens"),
        ("apply-template", {"messages": []}, "messages"),
        ("apply-template", function(name="a b"), "tools[0].function.name"),
        ("apply-template", function(name="f", parameters={"type": 1}), "tools[0].function.parameters.type"),
    ],
)
def test_what_is_refused(server: Serving, path: str, body: dict[str, Any], param: str) -> None:
    answer = post(server, f"/{path}", **body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_as_much_as_is_allowed(server: Serving) -> None:
    content = "a" * limits.TEXT_LENGTH
    ids = tokens(server, content)
    assert len(ids) == limits.TOKEN_IDS
    assert text(server, ids) == content


@pytest.mark.model
def test_a_models_own(model: Serving, tmp_path: Path) -> None:
    written = prompt(model, messages=HI, tools=[TOOL])
    assert written.startswith("<|im_start|>system\n")
    ids = tokens(model, "Hello <|im_end|>")
    assert ids == [19556, 216, 2]
    assert text(model, ids) == "Hello <|im_end|>"
    assert tokens(model, "Hello", add_special=True) == [19556]
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"messages": HI, "tools": [TOOL]}))
    done = render({"": str(file), "--model": "smollm2-135m", "--prompt": ""})
    assert (done.returncode, done.stdout) == (0, written)
    chat = model.post({"messages": HI, "tools": [TOOL], "max_tokens": 1}).json()
    plain = written.replace("Hi <|im_end|>", "Hi")
    lost = len(tokens(model, " <|im_end|>", parse_special=False))
    assert len(tokens(model, plain)) + lost == chat["usage"]["prompt_tokens"]
