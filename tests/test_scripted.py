"""The scripted engine keeps the engine's contract, so that tests over it say something."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from server.engine.protocol import Ended, Job, SequenceId
from server.engine.scripted import ByteVocabulary, Script, ScriptedEngine, load_script
from server.errors import StartupFailed
from server.turn import Sampling


def engine(*answers: dict[str, object], slots: int = 2) -> ScriptedEngine:
    return ScriptedEngine(msgspec.convert({"answers": answers}, Script), context=1000, slots=slots)


def job(request: int, prompt: str = "hi", *, grammar: str = "start: /(?s:.*)/", **fields: object) -> Job:
    vocabulary = ByteVocabulary()
    tokens = tuple(vocabulary.tokenize(prompt, markup=True))
    limits = {"max_tokens": 100} | fields
    return Job(request, tokens, vocabulary.matcher(grammar), Sampling(), **limits)  # type: ignore[arg-type]


def played(machine: ScriptedEngine, request: int, choice: int = 0) -> tuple[str, Ended | None]:
    text, ended = "", None
    while ended is None and machine.busy:
        for progress in machine.step():
            if progress.sequence == SequenceId(request, choice):
                text += "".join(piece.data.decode() for piece in progress.pieces)
                ended = progress.ended or ended
    return text, ended


def test_the_answer_whose_cue_comes_last_is_played() -> None:
    machine = engine({"text": "default"}, {"when": "a", "text": "A"}, {"when": "b", "text": "B"})
    for number, (prompt, text) in enumerate([("xyz", "default"), ("a b", "B"), ("b a", "A")]):
        machine.submit(job(number, prompt))
        assert played(machine, number) == (text, Ended.STOP)
        machine.finish(SequenceId(number, 0))


def test_submit_says_whether_the_script_keeps_to_the_constraint() -> None:
    machine = engine({"text": "yes"})
    assert machine.submit(job(1))
    assert not machine.submit(job(2, grammar='start: "no"'))


def test_a_job_waits_for_a_slot() -> None:
    machine = engine({"text": "x"}, slots=1)
    machine.submit(job(1))
    machine.submit(job(2))
    assert played(machine, 1) == ("x", Ended.STOP)
    assert machine.load.waiting == 1
    machine.finish(SequenceId(1, 0))
    assert played(machine, 2) == ("x", Ended.STOP)


def test_more_choices_than_slots_take_turns() -> None:
    machine = engine({"text": "x"}, slots=1)
    machine.submit(job(1, choices=3))
    for choice in range(3):
        assert played(machine, 1, choice) == ("x", Ended.STOP)
        machine.finish(SequenceId(1, choice))
    assert machine.tally(1).sampled_tokens == 3
    assert not machine.busy


def test_max_tokens_cuts() -> None:
    machine = engine({"text": "abcdef"})
    machine.submit(job(1, max_tokens=3))
    assert played(machine, 1) == ("abc", Ended.LENGTH)
    assert machine.tally(1).sampled_tokens == 3


def test_a_rewound_sequence_plays_the_next_take() -> None:
    machine = engine({"takes": ["abX", "abY", "abZ"]})
    machine.submit(job(1))
    assert played(machine, 1) == ("abX", Ended.STOP)
    machine.rewind(SequenceId(1, 0), 2)
    assert played(machine, 1) == ("Y", Ended.STOP)


def test_a_cancelled_request_is_forgotten() -> None:
    machine = engine({"text": "x", "delay_ms": 10_000})
    machine.submit(job(1))
    machine.step()
    machine.cancel(1)
    machine.cancel(2)
    assert not machine.busy


def test_markup_is_two_tokens_in_prompts_only() -> None:
    vocabulary = ByteVocabulary()
    assert vocabulary.tokenize("<|im_start|>a<|im_end|>", markup=True) == [256, 97, 257]
    assert max(vocabulary.tokenize("<|im_start|>", markup=False)) < 256


@pytest.mark.parametrize(
    "text", ["", "[]", '{"answers": [{"txt": 1}]}', json.dumps({"answers": [{"text": 1}]})]
)
def test_a_script_that_is_none_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.json").write_text(text)
    with pytest.raises(StartupFailed, match="cannot read the script"):
        load_script(str(tmp_path / "script.json"))
