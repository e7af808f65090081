"""Embeddings over a socket, by OpenAI's client, of tiny models with random weights."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
from llama_cpp import Llama
from openai import OpenAI
from serving import Serving, eventually, playing, serving
from test_render import render
from tiny import tiny_model

from server.api import limits
from server.api.embeddings import decode
from server.api.parts import Served
from server.engine.embedder import Embedder
from server.engine.protocol import EmbeddingJob, Model, SequenceId
from server.errors import StartupFailed, ToolspanError
from server.runner.model import load_model
from server.settings import Settings
from server.supervisor import RUNNER

CLS, MEAN, LAST, RANK = 2, 1, 3, 4
TEXTS = ["Hello world, how are you?", "x", "[CLS] <s> Größe 東京", "word " * 100]


@pytest.fixture(scope="module")
def embedding_model(sdist_dir: Path) -> Callable[[str, int | None], Path]:
    """The file of a tiny model with the vocabulary of that name, and that pooling."""

    def made(vocabulary: str, pooling: int | None) -> Path:
        source = sdist_dir / f"vendor/llama.cpp/models/ggml-vocab-{vocabulary}.gguf"
        return tiny_model(source, (), pooling)

    return made


@pytest.fixture(scope="module", params=[("bert-bge", CLS), ("bert-bge", MEAN), ("llama-spm", LAST)])
def path(request: pytest.FixtureRequest, embedding_model: Callable[[str, int], Path]) -> Path:
    return embedding_model(*request.param)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Serving]:
    with serving(command=RUNNER, model=str(path), alias=("embedder",), ctx=512) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def test_vectors_are_those_of_llama_cpp_python(client: OpenAI, path: Path) -> None:
    other = Llama(str(path), embedding=True, verbose=False, n_ctx=512, n_batch=512, n_ubatch=512)
    answer = client.embeddings.create(model="embedder", input=TEXTS)
    assert [each.index for each in answer.data] == list(range(len(TEXTS)))
    tokens = 0
    for text, each in zip(TEXTS, answer.data, strict=True):
        expected = other.embed(text, normalize=True)
        np.testing.assert_allclose(each.embedding, expected, atol=1e-3)
        tokens += len(other.tokenize(text.encode(), special=False))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == tokens
    other.close()


def test_neighbours_and_forms_change_nothing(server: Serving, client: OpenAI) -> None:
    together = client.embeddings.create(model="embedder", input=TEXTS * 20).data
    for number, text in enumerate(TEXTS):
        (alone,) = client.embeddings.create(model="embedder", input=text, encoding_format="float").data
        assert np.linalg.norm(alone.embedding) == pytest.approx(1, abs=1e-5)
        for each in together[number :: len(TEXTS)]:
            np.testing.assert_allclose(each.embedding, alone.embedding, atol=1e-3)
    ids = server.request("POST", "/tokenize", json={"content": TEXTS[0], "add_special": True}).json()[
        "tokens"
    ]
    by_ids = client.embeddings.create(model="embedder", input=[ids, ids]).data
    np.testing.assert_allclose(by_ids[1].embedding, together[0].embedding, atol=1e-3)
    body = {"input": ids, "encoding_format": "base64"}
    (raw,) = server.request("POST", "/embeddings", json=body).json()["data"]
    np.testing.assert_allclose(
        struct.unpack("<32f", base64.b64decode(raw["embedding"])), together[0].embedding, atol=1e-3
    )


def test_what_an_embedding_model_refuses(server: Serving, client: OpenAI) -> None:
    assert client.embeddings.create(model="embedder", input="x", dimensions=32).data[0].index == 0
    for fields, param in (
        ({"input": "x", "dimensions": 16}, "dimensions"),
        ({"input": ["x", "word " * 600]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="embedder", **fields)  # type: ignore[arg-type]
        assert refused.value.param == param
    hello: Any = [{"role": "user", "content": "Hi"}]
    with pytest.raises(openai.BadRequestError, match="makes embeddings"):
        client.chat.completions.create(model="embedder", messages=hello)
    with pytest.raises(openai.BadRequestError, match="makes embeddings"):
        client.completions.create(model="embedder", prompt="Hi", stream=True)
    with pytest.raises(openai.BadRequestError, match="makes embeddings"):
        client.responses.create(model="embedder", input="Hi")
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError, match="makes embeddings"),
    ):
        claude.messages.count_tokens(model="embedder", messages=hello)
    assert server.get("/v1/models/embedder").json()["embedding"] == 32
    assert server.runner is not None


def test_a_model_that_generates_says_so(tmp_path: Path) -> None:
    with (
        playing(tmp_path, {"text": "x"}) as generating,
        OpenAI(base_url=generating.url + "/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="generates text") as refused,
    ):
        client.embeddings.create(model="scripted", input="x")
    assert refused.value.code == "unsupported_model"


def test_a_client_that_leaves_is_forgotten(server: Serving) -> None:
    with (
        OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=0.01) as hasty,
        pytest.raises(openai.APITimeoutError),
    ):
        hasty.embeddings.create(model="embedder", input=["word " * 400] * limits.EMBEDDINGS)
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as patient:
        assert patient.embeddings.create(model="embedder", input="x").data
    assert eventually(lambda: server.in_flight == 0)


def test_there_is_no_prompt_to_be_rendered(path: Path, tmp_path: Path) -> None:
    messages = tmp_path / "messages.json"
    messages.write_text('[{"role": "user", "content": "Hi"}]')
    done = render({"": str(messages), "--model": str(path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("makes embeddings and reads no messages\n")


@pytest.mark.parametrize(("vocabulary", "pooling"), [("bert-bge", None), ("bert-bge", RANK)])
def test_what_makes_neither_text_nor_embeddings_is_not_served(
    embedding_model: Callable[[str, int | None], Path], vocabulary: str, pooling: int | None
) -> None:
    with pytest.raises(StartupFailed, match="bert"):
        load_model(Settings(model=str(embedding_model(vocabulary, pooling))))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": ["a"] * (limits.EMBEDDINGS + 1)}, "input"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [1000]}, "input[0]"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "model": "nobody"}, "model"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ToolspanError) as refused:
        decode(fields, Served(("m",), 1000))
    assert refused.value.param == param


# Batches.


class Recorder:
    """In place of a model: keeps the lengths of the texts of each batch."""

    context, sequences, width, pooling = 10, 3, 1, "mean"

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def embedded(self, texts: Any) -> Any:
        self.batches.append([len(text) for text in texts])
        return [np.array([len(text)], np.float32) for text in texts]

    def close(self) -> None: ...


def test_texts_of_all_requests_share_batches_in_their_order() -> None:
    llama = Recorder()
    embedder = Embedder(llama, None, Model("fake", 10, 10, 1, None))  # type: ignore[arg-type]
    for request, lengths in ((1, (4, 7)), (2, (10,)), (3, (1, 1)), (4, (1, 1))):
        embedder.submit(EmbeddingJob(request, tuple((0,) * length for length in lengths)))
    embedder.cancel(2)
    assert (embedder.load.waiting, embedder.busy) == (3, True)
    made = [each for _ in range(4) for each in embedder.step()]
    assert llama.batches == [[4], [7, 1, 1], [1, 1]]
    assert [each.sequence for each in made] == [
        SequenceId(1, 0),
        *[SequenceId(1, 1), SequenceId(3, 0), SequenceId(3, 1)],
        *[SequenceId(4, 0), SequenceId(4, 1)],
    ]
    assert np.frombuffer(made[1].vector, "<f4") == [7]
    assert not embedder.busy
