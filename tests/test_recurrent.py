"""Models whose memory is a state, which can be had whole only: what is kept of it is right, and is reused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from driving import run
from tiny_recurrent import write_recurrent_model

from server.engine.llama import Llama, Options, Weights
from server.engine.protocol import Job, Model, SequenceId
from server.engine.scheduler import Scheduler
from server.engine.vocabulary import LlamaVocabulary
from server.turn import Sampling

TEXT = list(range(300, 380))


@pytest.fixture(scope="module", params=["mamba", "jamba"])
def path(request: pytest.FixtureRequest, sdist_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    vocabulary = sdist_dir / "vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf"
    write_recurrent_model(vocabulary, path, request.param)
    return path


@pytest.fixture
def llama(path: Path) -> Iterator[Llama]:
    loaded = Llama(Weights(path), Options(context=2048, slots=2, cached=4, threads=1))
    yield loaded
    loaded.close()


def evaluate(llama: Llama, sequence: int, position: int, tokens: list[int]) -> np.ndarray:
    llama.batch.clear()
    row = llama.batch.add(sequence, position, tokens, output=True)
    assert llama.decode()
    return llama.logits(row).copy()


def test_a_copy_goes_on_like_its_source_whatever_that_does(llama: Llama) -> None:
    assert not llama.partial
    evaluate(llama, 0, 0, TEXT[:50])
    alone = evaluate(llama, 0, 50, TEXT[50:])
    llama.drop(0)
    evaluate(llama, 0, 0, TEXT[:50])
    assert llama.shortest(0) == 50
    llama.copy(0, 1, 50)
    llama.copy(1, 2, 50)
    evaluate(llama, 0, 50, [999] * 30)
    evaluate(llama, 1, 50, [777] * 10)
    assert llama.shortest(2) == 50
    assert np.abs(evaluate(llama, 2, 50, TEXT[50:]) - alone).max() < 1e-3
    assert np.abs(evaluate(llama, 0, 80, TEXT[50:]) - alone).max() > 1e-2


def test_a_state_comes_back(llama: Llama) -> None:
    evaluate(llama, 0, 0, TEXT[:50])
    state = llama.state(0, 1 << 30)
    assert state is not None
    alone = evaluate(llama, 0, 50, TEXT[50:])
    assert llama.restore(1, 50, state)
    assert np.abs(evaluate(llama, 1, 50, TEXT[50:]) - alone).max() < 1e-3
    assert not llama.restore(2, 49, state)
    assert llama.shortest(2) == 0


def test_requests_with_a_common_first_turn_compute_it_once(llama: Llama) -> None:
    vocabulary = LlamaVocabulary(llama.weights.tokens)
    engine = Scheduler(llama, vocabulary, Model("tiny", llama.context, llama.context, llama.slots, None))
    (end, *_) = vocabulary.ends
    system, first, second = [*TEXT, end], [400, 401, end], [500, 501, 502, end]

    def asked(request: int, *turns: list[int], reuse_prefix: bool = True) -> Job:
        prompt = tuple(token for turn in (system, *turns, [600]) for token in turn)
        matcher = vocabulary.matcher(r"start: /(?s:.*)/")
        return Job(request, prompt, matcher, Sampling(temperature=0.0), 12, reuse_prefix=reuse_prefix)

    def answered(*jobs: Job) -> list[tuple[list[int], int]]:
        said = run(engine, jobs)
        return [
            (said[SequenceId(each.request, 0)].tokens, engine.tally(each.request).cached_tokens)
            for each in jobs
        ]

    ((alone, none),) = answered(asked(1, second, reuse_prefix=False))
    engine._cache.clear()
    (_, at_once), (together, cached) = answered(asked(2, first), asked(3, second))
    assert (none, at_once, cached) == (0, 0, len(system))
    assert together == alone
    ((again, cached),) = answered(asked(4, second))
    assert (again, cached) == (alone, len(system) + len(second))
    more = [*second, 600, *alone]
    ((_, cached),) = answered(asked(5, more, [end], first))
    assert cached == len(system) + len(more) - 1  # the last token was never computed
