"""OpenAI's legacy completions over a socket: its official client, whole and streamed, and bodies to turns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import Serving, events, eventually, playing, serving

from server.api import limits
from server.api.completions_request import MAX_TOKENS, decode
from server.api.parts import Served
from server.errors import ToolspanError
from server.supervisor import RUNNER
from server.turn import RawPrompt, Turn

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWERS: list[dict[str, Any]] = [
    {"when": "Once", "text": " upon a time, <tool_call> é\n"},
    {"when": "Plan", "text": '{"city": "Oslo"}'},
    {"when": "dead end", "text": "x", "ended": "dead_end"},
    {"when": "Two", "text": "2"},
    {"when": "<|im_end|>", "text": "control"},
]
SERVED = Served(("m",), 1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("completions")
    with playing(folder, *ANSWERS, keepalive=0.1, ctx=2048, queue=2, slots=1) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def create(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(model="scripted", prompt=prompt, max_tokens=100, **fields)


def test_the_text_is_what_was_generated(client: OpenAI) -> None:
    answer = create(client, "Once")
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (" upon a time, <tool_call> é\n", "stop")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, len(choice.text))


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI) -> None:
    fields: Any = {"n": 2, "echo": True, "stop": ["time"]}
    whole = create(client, ["Once", "Two"], **fields)
    options = {"include_usage": True}
    *chunks, last = create(client, ["Once", "Two"], stream=True, stream_options=options, **fields)
    texts, reasons = ["", "", "", ""], ["", "", "", ""]
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] += choice.finish_reason or ""
    assert texts == [choice.text for choice in whole.choices] == ["Once upon a "] * 2 + ["Two2"] * 2
    assert reasons == [choice.finish_reason for choice in whole.choices] == ["stop"] * 4
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert last.choices == []
    assert last.usage == whole.usage
    assert whole.usage.prompt_tokens == len("Once" + "Two")


def test_control_tokens_of_a_text(server: Serving, client: OpenAI) -> None:
    assert create(client, "<|im_end|>").usage.prompt_tokens == 1
    plain = create(client, "<|im_end|>", extra_body={"parse_special": False})
    assert plain.usage.prompt_tokens == len("<|im_end|>")
    assert create(client, [257]).choices[0].text == "control"
    assert create(client, [[257], [79, 110, 99, 101]], echo=True).choices[1].text.startswith("Once upon")


def test_limits_of_tokens(client: OpenAI) -> None:
    cut = client.completions.create(model="scripted", prompt="Once")
    assert cut.usage is not None
    assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (MAX_TOKENS, "length")
    none = client.completions.create(model="scripted", prompt="Once", max_tokens=0, echo=True)
    assert (none.choices[0].text, none.choices[0].finish_reason) == ("Once", "length")


def test_a_schema_for_the_text(client: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA}}
    answer = create(client, "Plan", extra_body={"response_format": form})
    assert json.loads(answer.choices[0].text) == {"city": "Oslo"}
    with pytest.raises(openai.BadRequestError, match="lets no model say"):
        create(client, "Once", extra_body={"response_format": form})


def test_errors(server: Serving, client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, "long " * 1000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, "def f(", suffix="return 1")
    assert refused.value.param == "suffix"
    with pytest.raises(openai.RateLimitError):
        create(client, ["Two"] * 4)
    assert server.in_flight == 0
    body = {"prompt": ["Two", "dead end"], "stream": True, "max_tokens": 9}
    got = events(server.request("POST", "/completions", json=body).text)
    assert got[0]["choices"][0]["text"] == "2"
    assert got[-2]["error"]["code"] == "constraint_dead_end"
    assert got[-1] == "[DONE]"


def test_a_client_that_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    with playing(tmp_path, {"text": "slow", "delay_ms": 60_000}) as slow:
        with (
            OpenAI(base_url=slow.url + "/v1", api_key="none", max_retries=0, timeout=0.5) as hasty,
            pytest.raises(openai.APITimeoutError),
        ):
            hasty.completions.create(model="scripted", prompt=["a", "b"])
        assert eventually(lambda: slow.in_flight == 0)


# Bodies to turns.


def turns(prompt: Any = "Hi", **fields: Any) -> tuple[Turn, ...]:
    return decode({"model": "m", "prompt": prompt, **fields}, SERVED).turns


@pytest.mark.parametrize(
    ("prompt", "contents"),
    [
        ("Hi", ["Hi"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2.0], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_prompts(prompt: Any, contents: list[Any]) -> None:
    assert [each.raw and each.raw.content for each in turns(prompt)] == contents


def test_other_fields() -> None:
    (found,) = turns(
        suffix="end",
        parse_special=False,
        echo=True,
        n=2,
        best_of=2,
        stop="x",
        seed=7,
        temperature=0.5,
        top_k=5,
        max_tokens=3,
        logit_bias={"5": 1},
        user="me",
    )
    assert found.raw == RawPrompt("Hi", markup=False, suffix="end", echo=True)
    assert (found.choices, found.stop, found.max_tokens) == (2, ("x",), 3)
    assert (found.sampling.seed, found.sampling.temperature, found.sampling.top_k) == (7, 0.5, 5)
    assert turns(suffix="")[0].raw == RawPrompt("Hi")
    assert turns(logprobs=3)[0].sampling.top_logprobs == 3
    assert turns(logprobs=0)[0].sampling.top_logprobs == 0
    assert turns()[0].sampling.top_logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, 1000]}, "prompt[1]"),
        ({"prompt": [["a"]]}, "prompt[0][0]"),
        ({"prompt": ["a"] * (limits.PROMPTS + 1)}, "prompt"),
        ({"prompt": [1], "suffix": "a"}, "prompt"),
        ({"suffix": 1}, "suffix"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": limits.CHOICES + 1}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": limits.TOP_LOGPROBS + 1}, "logprobs"),
        ({"logprobs": 1, "echo": True, "suffix": "a"}, "logprobs"),
        ({"logprobs": 1, "response_format": {"type": "json_object"}}, "logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"model": "nobody"}, "model"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ToolspanError) as refused:
        turns(**fields)
    assert refused.value.param == param


# With a model.


@pytest.fixture(scope="module")
def coder(model_file: Callable[[str], Path]) -> Iterator[OpenAI]:
    path = model_file("qwen2.5-coder-0.5b")
    with (
        serving(command=RUNNER, model=str(path), ctx=1024) as running,
        OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=250) as made,
    ):
        yield made


def complete(coder: OpenAI, prompt: Any, **fields: Any) -> Any:
    given = {"model": "qwen2.5-coder-0.5b", "temperature": 0, "max_tokens": 12, **fields}
    return coder.completions.create(prompt=prompt, **given)


@pytest.mark.model
def test_a_suffix_is_what_the_model_writes_up_to(coder: OpenAI) -> None:
    answer = complete(coder, "def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n")
    assert answer.choices[0].text.startswith("a + b\n")

    def tokens(prompt: str, **fields: Any) -> int:
        return int(complete(coder, prompt, max_tokens=0, **fields).usage.prompt_tokens)

    texts = "x <|fim_suffix|> y", "z <|fim_middle|>"
    plain = [tokens(each, extra_body={"parse_special": False}) for each in texts]
    assert tokens(texts[0], suffix=texts[1]) == sum(plain) + 3
    assert tokens(texts[0]) < plain[0]


@pytest.mark.model
def test_logprobs_in_their_old_shape(coder: OpenAI) -> None:
    answer = complete(coder, "The capital of France is", logprobs=3, seed=1)
    (choice,) = answer.choices
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert told.text_offset == [len("".join(told.tokens[:at])) for at in range(len(told.tokens))]
    assert len(told.tokens) == answer.usage.completion_tokens
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert len(top) == 3
        assert top[token] == max(top.values()) == logprob
        assert sum(map(math.exp, top.values())) < 1.0001
    chunks = list(complete(coder, "The capital of France is", logprobs=3, seed=1, stream=True))
    shown = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for each in shown for token in each.tokens] == told.tokens
    assert [offset for each in shown for offset in each.text_offset] == told.text_offset


@pytest.mark.model
def test_an_echoed_prompt_has_logprobs(coder: OpenAI) -> None:
    prompt = "The capital of France is Paris.\nThe capital of Germany is"
    plain = complete(coder, prompt, logprobs=2, max_tokens=3)
    for count, stream in ((0, False), (3, False), (3, True)):
        asked: dict[str, Any] = {"logprobs": 2, "echo": True, "max_tokens": count, "n": 2}
        told = complete(coder, prompt, stream=stream, **asked)
        for choice in told.choices if not stream else joined_choices(list(told)):
            shown = choice.logprobs
            length = plain.usage.prompt_tokens
            assert "".join(shown.tokens) == choice.text
            assert choice.text == prompt + (plain.choices[0].text if count else "")
            assert shown.text_offset == [len("".join(shown.tokens[:at])) for at in range(length + count)]
            assert (shown.token_logprobs[0], shown.top_logprobs[0]) == (None, None)
            for at, token in enumerate(shown.tokens[1:], 1):
                assert len(shown.top_logprobs[at]) == 2
                assert shown.token_logprobs[at] <= max(shown.top_logprobs[at].values()) <= 0, token
            assert shown.tokens[length - 3 : length] == [" of", " Germany", " is"]
            assert shown.token_logprobs[length - 3] > -0.5  # said before
            generated = shown.token_logprobs[length:]
            assert generated == pytest.approx(plain.choices[0].logprobs.token_logprobs[:count], abs=0.2)


def joined_choices(chunks: list[Any]) -> list[Any]:
    """The choices of a stream with their texts and logprobs put together."""
    made: dict[int, Any] = {}
    for chunk in chunks:
        (choice,) = chunk.choices
        first = made.setdefault(choice.index, choice)
        if first is not choice:
            first.text += choice.text
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                getattr(first.logprobs, name).extend(getattr(choice.logprobs, name, None) or [])
    return list(made.values())


@pytest.mark.model
def test_a_prompt_computed_before_is_scored_as_well(coder: OpenAI) -> None:
    asked: dict[str, Any] = {"logprobs": 0, "echo": True, "max_tokens": 0}
    # Not one text again and again: there the last bits of this model's logits decide.
    prompt = " ".join(f"{number} plus {number} is {2 * number}." for number in range(1, 26))
    first, again = (complete(coder, prompt, **asked).choices[0].logprobs.token_logprobs for _ in range(2))
    assert len(first) > 150  # more than a batch has rows for
    assert first[0] is again[0] is None
    assert again[1:] == pytest.approx(first[1:], abs=0.2)


def test_the_logprobs_of_a_prompt_are_bounded(tmp_path: Path) -> None:
    with playing(tmp_path, *ANSWERS, ctx=8192) as large:
        asked = {"prompt": "x" * 4000, "echo": True, "logprobs": 20}
        reply = large.request("POST", "/v1/completions", json=asked)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
        assert "3120 tokens" in reply.json()["error"]["message"]


def test_an_echo_in_a_replay_comes_without_logprobs(client: OpenAI) -> None:
    (choice,) = create(client, "Once", echo=True, logprobs=1).choices
    assert choice.text == "Once upon a time, <tool_call> é\n"
    assert choice.logprobs.tokens == []


@pytest.mark.model
def test_markers_are_shown_and_ends_end(coder: OpenAI) -> None:
    """Who writes the template reads the calls as well."""
    told = complete(coder, "<|im_start|>assistant\n", max_tokens=2, logit_bias={"151658": 100})
    assert told.choices[0].text == "</tool_call></tool_call>"
    ended = complete(coder, "x", logit_bias={"151645": 100})
    assert (ended.choices[0].text, ended.choices[0].finish_reason) == ("", "stop")
