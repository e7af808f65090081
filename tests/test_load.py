"""Real models behind the engine: what only real weights and vocabularies can show."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driving import Said, answer, run, step

from server.dialects.constrain import AnswerForm, CallableTool, compose
from server.dialects.detect import bind
from server.dialects.table import ALL_MARKERS, HERMES
from server.engine.load import load_engine
from server.engine.protocol import Ended, Engine, Job, SequenceId
from server.errors import StartupFailed
from server.events import Source
from server.runner.model import load_model
from server.settings import Settings
from server.turn import Sampling

pytestmark = pytest.mark.model

ModelFile = Callable[[str], Path]
CONTEXT = 1024
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    }
)
QUESTION = (
    "<|im_start|>system\nYou can call get_weather(city, unit).<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
PARIS = QUESTION.format("What is the weather in Paris?")
_requests = itertools.count(1)


def loaded(path: Path, **settings: object) -> Engine:
    return load_engine(Settings(ctx=CONTEXT, threads=1, **settings), path, ALL_MARKERS)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine(model_file: ModelFile) -> Iterator[Engine]:
    loaded_engine = loaded(model_file("smollm2-135m"))
    yield loaded_engine
    assert loaded_engine.load.active == loaded_engine.load.waiting == loaded_engine.load.used_cells == 0
    loaded_engine.close()


def constraint(engine: Engine, *, must_call: bool = False, parallel: bool = False) -> str:
    bound = bind(HERMES, engine.vocabulary.single_token)
    tools = (CallableTool("get_weather", SCHEMA),)
    return compose(bound, AnswerForm(tools=tools, must_call=must_call, parallel=parallel))


def job(
    engine: Engine,
    prompt: str = PARIS,
    grammar: str = "start: /(?s:.*)/",
    *,
    max_tokens: int = 12,
    choices: int = 1,
    reuse_prefix: bool = True,
    drafts: bool = True,
    **sampling: object,
) -> Job:
    return Job(
        request=next(_requests),
        prompt=tuple(engine.vocabulary.tokenize(prompt, markup=True)),
        matcher=engine.vocabulary.matcher(grammar),
        sampling=Sampling(**({"temperature": 0.0} | sampling)),  # type: ignore[arg-type]
        max_tokens=max_tokens,
        choices=choices,
        reuse_prefix=reuse_prefix,
        drafts=drafts,
    )


def call(engine: Engine, **options: object) -> Job:
    return job(engine, grammar=constraint(engine, must_call=True), **({"max_tokens": 80} | options))  # type: ignore[arg-type]


def arguments(text: str) -> dict[str, object]:
    body = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    found = json.loads(body)
    assert found["name"] == "get_weather"
    assert set(found["arguments"]) == {"city", "unit"}
    return dict(found["arguments"])


def test_what_is_told_of_the_model(engine: Engine) -> None:
    model = engine.model
    assert (model.architecture, model.context, model.context_train, model.slots) == (
        "llama",
        CONTEXT,
        8192,
        4,
    )
    assert model.template is not None
    assert "im_start" in model.template
    assert model.device.layers == 31


def test_a_call_with_its_forced_tokens(engine: Engine) -> None:
    each = call(engine)
    said = answer(engine, each)
    assert said.ended is Ended.STOP
    assert arguments(said.text)["unit"] in ("c", "f")
    tally = engine.tally(each.request)
    assert tally.sampled_tokens == len(said.of(Source.SAMPLED)) < 12
    assert tally.forced_tokens == len(said.of(Source.FORCED)) > 20
    # The ids are those the model would have written itself.
    first = list(itertools.takewhile(lambda piece: piece.source is Source.FORCED, said.pieces))
    text = b"".join(piece.data for piece in first).decode()
    assert [piece.token for piece in first] == engine.vocabulary.tokenize(text, markup=True)


def test_greedy_and_seeded_answers_repeat(engine: Engine) -> None:
    for sampling in ({}, {"temperature": 1.5, "seed": 4}):
        first, second = (answer(engine, job(engine, reuse_prefix=False, **sampling)) for _ in range(2))
        assert first == second
    other = answer(engine, job(engine, reuse_prefix=False, temperature=1.5, seed=5))
    assert other.text != first.text


def test_choices_are_the_seeds_that_follow(engine: Engine) -> None:
    said = run(engine, [job(engine, choices=3, temperature=1.5, seed=4)])
    assert len({each.text for each in said.values()}) == 3


def test_four_at_once_begin_as_each_alone(engine: Engine) -> None:
    """Where the likeliest token leads clearly; rounding differs between batch shapes."""
    prompts = [f"{words} " * 8 for words in ("one two three", "a b c d", "red green blue", "7 5 3 1")]
    alone = [answer(engine, job(engine, each, top_logprobs=2, reuse_prefix=False)) for each in prompts]
    together = run(engine, [job(engine, each, top_logprobs=2, reuse_prefix=False) for each in prompts])
    compared = 0
    for single, batched in zip(alone, together.values(), strict=True):
        for left, right in zip(single.pieces, batched.pieces, strict=True):
            assert left.logprob is not None
            if left.logprob.top[0].logprob - left.logprob.top[1].logprob < 1.0:
                break
            assert left.token == right.token
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize("key", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_a_copy_is_drafted_and_is_what_it_would_be(model_file: ModelFile, key: str) -> None:
    """Where the likeliest token leads clearly; rounding differs between batch shapes."""
    engine = loaded(model_file(key), slots=1)
    prompt = "Red, green, blue, yellow, black, white, pink, " * 5 + "Red, green,"
    for sampling in ({"temperature": 0.0}, {"temperature": 0.5, "seed": 7}):
        made = [
            job(engine, prompt, max_tokens=30, top_logprobs=2, reuse_prefix=False, drafts=drafts, **sampling)
            for drafts in (True, False)
        ]
        drafted, plain = (answer(engine, each) for each in made)
        tally = engine.tally(made[0].request)
        assert tally.drafted_tokens == len(drafted.of(Source.DRAFTED)) > 10
        assert engine.tally(made[1].request).drafted_tokens == 0
        compared = 0
        for left, right in zip(drafted.pieces, plain.pieces, strict=False):
            assert right.logprob is not None
            assert left.logprob is not None
            if left.token != right.token:
                assert right.logprob.top[0].logprob - right.logprob.top[1].logprob < 1.0
                break
            assert left.logprob.logprob == pytest.approx(right.logprob.logprob, abs=0.5)
            compared += 1
        assert compared >= 10
    assert engine.load.used_cells == 0
    engine.close()


def test_a_prompt_is_reused(engine: Engine) -> None:
    prompt = QUESTION.format("How are you?")
    first, again = (job(engine, prompt, top_logprobs=2) for _ in range(2))
    said = [answer(engine, each) for each in (first, again)]
    assert engine.tally(again.request).cached_tokens == len(again.prompt) - 1
    assert said[0].pieces[0].token == said[1].pieces[0].token


def test_logprobs_are_the_models_own_under_any_constraint(engine: Engine) -> None:
    free = answer(engine, job(engine, max_tokens=1, top_logprobs=20, reuse_prefix=False)).pieces[0].logprob
    biased = job(
        engine,
        grammar='start: "No" | "Yes"',
        max_tokens=1,
        top_logprobs=20,
        reuse_prefix=False,
        logit_bias=((5, 50.0),),
    )
    held = answer(engine, biased).pieces[0].logprob
    assert free is not None
    assert held is not None
    assert held.top == free.top
    assert free.logprob == free.top[0].logprob
    assert held.logprob < free.logprob
    assert held.token in ("No", "Yes", "N", "Y", "Ye")


def test_sampled_again_a_call_stays_one(engine: Engine) -> None:
    each = call(engine, temperature=2.0, seed=1)
    engine.submit(each)
    sequence = SequenceId(each.request, 0)
    texts = []
    for _ in range(3):
        said = Said()
        while engine.busy:
            for progress in engine.step():
                said.pieces += progress.pieces
        texts.append(said.text)
        assert set(arguments(said.text)) == {"city", "unit"}
        engine.rewind(sequence, 0)
    engine.finish(sequence)
    assert len(set(texts)) > 1


def test_answers_move_on_while_a_long_prompt_is_computed(engine: Engine) -> None:
    said: dict[SequenceId, Said] = {}
    running = job(engine, max_tokens=60, grammar="start: /(?s:.){500}/")
    engine.submit(running)
    step(engine, said)
    arriving = job(engine, "word " * 150, max_tokens=1, reuse_prefix=False)
    engine.submit(arriving)
    moved = 0
    while SequenceId(arriving.request, 0) not in said:
        moved += SequenceId(running.request, 0) in step(engine, said)
    assert moved >= 2
    engine.cancel(running.request)


def test_control_tokens_cannot_be_said(engine: Engine) -> None:
    """Not even by a model that wants nothing else."""
    vocabulary = engine.vocabulary
    control = [vocabulary.single_token(text) for text in vocabulary.markup_texts()]
    ends = {vocabulary.single_token(text) for text in ("<|im_end|>", "<|endoftext|>")}
    wanted = tuple((token, 100.0) for token in control if token is not None and token not in ends)
    said = answer(engine, job(engine, temperature=1.0, logit_bias=wanted))
    assert not set(said.tokens) & {token for token, _ in wanted}


@pytest.mark.parametrize("key", ["qwen2.5-coder-0.5b", "gemma3-270m"])
def test_calls_of_other_models(model_file: ModelFile, key: str) -> None:
    engine = loaded(model_file(key), slots=1)
    called = answer(engine, call(engine))
    assert called.ended is Ended.STOP
    arguments(called.text)
    opener = engine.vocabulary.single_token("<tool_call>")
    assert (called.pieces[0].token == opener) == key.startswith("qwen")
    engine.close()


def test_the_prefix_of_a_sliding_window_model_is_reused(model_file: ModelFile) -> None:
    engine = loaded(model_file("gemma3-270m"), slots=1)
    common = "Red, green, blue, yellow, black, white. " * 4
    answer(engine, job(engine, common + "word " * 20, max_tokens=1))
    ending = "Red, green, blue,"
    reused, anew = (
        job(engine, common + ending, max_tokens=3, top_logprobs=1, reuse_prefix=reuse)
        for reuse in (True, False)
    )
    said = [answer(engine, each) for each in (reused, anew)]
    assert engine.tally(reused.request).cached_tokens > 40
    assert engine.tally(anew.request).cached_tokens == 0
    for left, right in zip(said[0].pieces, said[1].pieces, strict=True):
        assert left.logprob is not None
        assert right.logprob is not None
        assert left.token == right.token
        assert left.logprob.logprob == pytest.approx(right.logprob.logprob, abs=0.5)
    engine.close()


def test_a_context_beyond_memory_is_refused(model_file: ModelFile) -> None:
    with pytest.raises(StartupFailed, match=r"set --ctx to \d+ or less"):
        load_engine(Settings(ctx=2**30, threads=1), model_file("smollm2-135m"), ())


@pytest.mark.parametrize(("context", "told"), [(8192, 0), (8448, 1)])
def test_a_context_beyond_the_models_own_is_told(model_file: ModelFile, context: int, told: int) -> None:
    model = load_model(Settings(model=str(model_file("smollm2-135m")), ctx=context, threads=1))
    assert sum("8192" in warning for warning in model.facts.warnings) == told
    model.engine.close()


def test_a_gpu_that_is_not_there(model_file: ModelFile) -> None:
    from server.engine.llama_devices import gpus

    if gpus():
        pytest.skip("there is a GPU")
    with pytest.raises(StartupFailed, match="--gpu-layers 7"):
        load_engine(Settings(gpu_layers=7), model_file("smollm2-135m"), ())


def test_a_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(StartupFailed, match="cannot load"):
        load_engine(Settings(), file, ())
