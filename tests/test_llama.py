"""llama.cpp itself, where the engine relies on its behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.cores import available_memory, physical_cores
from server.engine.llama import DecodeFailed, Llama, Options, Weights
from server.engine.llama_chain import Candidates, Chain
from server.errors import StartupFailed

TEXT = list(range(300, 340))


@pytest.fixture(scope="module")
def llama(model_file: Callable[[str], Path]) -> Iterator[Llama]:
    loaded = Llama(Weights(model_file("smollm2-135m")), Options(context=256, slots=2, cached=2, threads=1))
    yield loaded
    loaded.close()


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"llama", "windowed"} & set(request.fixturenames):
        loaded = request.getfixturevalue(name)
        for sequence in range(loaded.sequences):
            loaded.drop(sequence)


def evaluate(llama: Llama, sequence: int, position: int, tokens: list[int]) -> np.ndarray:
    llama.batch.clear()
    row = llama.batch.add(sequence, position, tokens, output=True)
    assert llama.decode()
    return llama.logits(row).copy()


@pytest.mark.model
def test_a_copied_prefix_goes_on_like_its_source(llama: Llama) -> None:
    whole = evaluate(llama, 0, 0, TEXT)
    llama.copy(0, 1, 30)
    llama.drop(0)
    rest = evaluate(llama, 1, 30, TEXT[30:])
    assert rest.argmax() == whole.argmax()
    assert np.abs(rest - whole).max() < 1.0


@pytest.mark.model
def test_what_was_removed_is_forgotten(llama: Llama) -> None:
    assert llama.partial
    whole = evaluate(llama, 0, 0, TEXT)
    assert llama.remove(0, 30)
    evaluate(llama, 0, 30, [7] * 10)
    assert llama.remove(0, 30)
    assert np.abs(evaluate(llama, 0, 30, TEXT[30:]) - whole).max() < 1.0


@pytest.mark.model
@pytest.mark.parametrize(
    "options",
    [
        {"cache_type": "q8_0"},
        {"cache_type": "q4_0", "flash_attention": "on"},
        {"flash_attention": "off"},
        {"batch": 128, "micro_batch": 4096},
    ],
)
def test_settings_of_the_context(
    llama: Llama, model_file: Callable[[str], Path], options: dict[str, Any]
) -> None:
    """They change how a model computes, and hardly what."""
    other = Llama(
        Weights(model_file("smollm2-135m")), Options(context=256, slots=2, cached=2, threads=1, **options)
    )
    assert other.batch.capacity == options.get("batch", 256)
    expected = evaluate(llama, 0, 0, TEXT)
    assert np.corrcoef(evaluate(other, 0, 0, TEXT), expected)[0, 1] > 0.98
    assert other.remove(0, 30)
    assert evaluate(other, 0, 30, TEXT[30:]).argmax() == evaluate(other, 1, 0, TEXT).argmax()
    other.close()


@pytest.mark.model
def test_quantised_values_need_flash_attention(model_file: Callable[[str], Path]) -> None:
    with pytest.raises(StartupFailed, match="V cache"):
        Llama(
            Weights(model_file("smollm2-135m")),
            Options(context=256, cache_type="q8_0", flash_attention="off"),
        )


@pytest.mark.model
def test_smaller_cells_take_less(llama: Llama) -> None:
    sizes = [llama.weights.cell_bytes(each) for each in ("f16", "q8_0", "q4_0")]
    assert sizes[0] == 2 * 2 * 64 * 3 * 30  # keys and values of 3 heads of 64, 30 layers, 16 bits
    assert sizes[1] == sizes[0] * 8.5 / 16
    assert sizes[2] == sizes[0] * 4.5 / 16


@pytest.mark.model
def test_sequences_do_not_see_each_other(llama: Llama) -> None:
    alone = evaluate(llama, 0, 0, TEXT)
    evaluate(llama, 1, 0, [9] * 50)
    llama.drop(0)
    assert np.abs(evaluate(llama, 0, 0, TEXT) - alone).max() < 1.0


@pytest.mark.model
def test_all_cells_can_be_used_and_no_more(llama: Llama) -> None:
    evaluate(llama, 0, 0, [5] * 200)
    llama.copy(0, 1, 200)  # shared cells count once
    evaluate(llama, 1, 200, [6] * (llama.context - 200))
    llama.batch.clear()
    llama.batch.add(0, 200, [7], output=True)
    assert not llama.decode()
    llama.drop(1)
    assert llama.decode()


@pytest.mark.model
def test_a_mistake_is_an_error_and_not_the_end(llama: Llama) -> None:
    evaluate(llama, 0, 0, TEXT)
    llama.batch.clear()
    llama.batch.add(0, 0, TEXT, output=True)
    with pytest.raises(DecodeFailed, match="positions"):
        llama.decode()


@pytest.fixture(scope="module")
def windowed(model_file: Callable[[str], Path]) -> Iterator[Llama]:
    loaded = Llama(Weights(model_file("gemma3-270m")), Options(context=2048, slots=2, cached=2, threads=1))
    yield loaded
    loaded.close()


@pytest.mark.model
def test_a_restored_state_goes_on_like_its_source(llama: Llama) -> None:
    evaluate(llama, 0, 0, TEXT[:-1])
    state = llama.state(0, 1 << 30)
    assert state is not None
    assert llama.state(0, len(state) - 1) is None
    whole = evaluate(llama, 0, len(TEXT) - 1, TEXT[-1:])
    llama.drop(0)
    assert not llama.restore(1, len(TEXT), state)
    assert llama.restore(1, len(TEXT) - 1, state)
    assert llama.shortest(1) == 0
    assert np.abs(evaluate(llama, 1, len(TEXT) - 1, TEXT[-1:]) - whole).max() < 0.1


@pytest.mark.model
def test_a_state_beyond_a_sliding_window(windowed: Llama) -> None:
    llama, length = windowed, 700
    text = llama.weights.tokens.tokenize(STORY.encode(), special=False)[: length + 1]
    evaluate(llama, 0, 0, [*text[:-1], *text[:300]])
    llama.copy(0, 2, length)  # the prefix of a longer one: its own window has to be saved
    state = llama.state(2, 1 << 30)
    assert state is not None
    whole = evaluate(llama, 2, length, text[-1:])
    llama.drop(0)
    llama.drop(2)
    assert llama.restore(1, length, state)
    assert length - 1 <= llama.shortest(1) <= length  # only the window was saved
    restored = evaluate(llama, 1, length, text[-1:])
    assert restored.argmax() == whole.argmax()
    assert np.abs(restored - whole).max() < 2.0


STORY = "".join(f"On day {day} the ship sailed {day * 7} miles and then rested. " for day in range(90))


@pytest.mark.model
def test_a_prefix_beyond_a_sliding_window_is_whole_or_not_offered(windowed: Llama) -> None:
    llama, length = windowed, 600
    text = llama.weights.tokens.tokenize(STORY.encode(), special=False)[:1500]
    assert llama.weights.window == 512
    evaluate(llama, 1, 0, text[:length])
    alone = evaluate(llama, 1, length, text[length : length + 1])
    llama.drop(1)
    evaluate(llama, 1, 0, text[:100])
    evaluate(llama, 0, 0, text)
    assert llama.shortest(0) == 0
    llama.copy(0, 2, length)
    copied = evaluate(llama, 2, length, text[length : length + 1])
    # Where a sequence's cells lie moves the logits of this model by up to 1.5, its likeliest tokens by less.
    assert copied.argmax() == alone.argmax()
    llama.drop(1)
    llama.drop(2)
    evaluate(llama, 3, 0, text[:400])  # finds room among the cells that are out of the long one's window
    assert llama.shortest(0) > length


@pytest.mark.parametrize("temperature", [1e-45, 1e-6, 1.0])
def test_a_chain_survives_any_scores(temperature: float) -> None:
    chain = Chain(top_k=0, top_p=0.0, min_p=1.0, temperature=temperature, seed=1)
    candidates = Candidates(3)
    candidates.ids[:] = [10, 11, 12]
    candidates.logits[:] = [-3.0e38, 0.0, -np.inf]
    assert chain.pick(candidates, 3) == 11
    chain.close()
    chain.close()


def test_the_machine() -> None:
    assert physical_cores() >= 1
    assert available_memory() is None or available_memory() > 0  # type: ignore[operator]
