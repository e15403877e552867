"""How answers end under a tight budget: the figures of docs/policies.md, on a few prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.landing import Answer, Pair, answer_of, pairs, read_prompts, report
from engine.assembly import open_engine
from engine.protocol.frames import Event
from engine.protocol.settings import EngineSettings


def said(*texts: str, landed: bool = False) -> list[Event]:
    events = [Event("r", text=text, tokens=1) for text in texts]
    return [*events, Event("r", finish="length", tokens=0, landed=landed)]


def test_an_answer_knows_where_its_soft_limit_is() -> None:
    answer = answer_of(said("One", ". ", "Two", ". ", "Three"), 3)
    assert answer == Answer("One. Two. Three", 5, "length", False, 6, False, False)
    assert answer_of(said("One"), 3).earliest is None
    # A character of two tokens comes with the second.
    held = [Event("r", text="A", tokens=1), Event("r", text="好", tokens=2)]
    assert answer_of([*held, Event("r", finish="length")], 2).earliest == 2


@pytest.mark.parametrize(
    ("soft", "right"),
    [
        (said("One", ". ", "Two", ". ", landed=True), True),
        (said("One", ". ", landed=True), False),
        (said("One", ". ", "Two", ". ", "Three", landed=True), False),
        (said("One", ". ", "Two", ". "), False),
    ],
)
def test_a_pair_is_right_only_where_the_second_ends_at_the_first_place(
    soft: list[Event], right: bool
) -> None:
    plain = answer_of(said("One", ". ", "Two", ". ", "Three"), 3)
    assert Pair(plain, answer_of(soft, 3)).is_right is right


def test_without_a_place_both_must_be_the_same() -> None:
    plain, other = answer_of(said("One", " two"), 1), answer_of(said("One"), 1)
    assert Pair(plain, plain).is_right
    assert not Pair(plain, other).is_right


def test_prompts_are_taken_evenly_and_reported_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(10)))
    assert read_prompts(path, 5) == ["0", "2", "4", "6", "8"]
    code = answer_of(said("```\n", "x."), 1)
    report([Pair(code, code)])
    assert "0 of 1 could land; 1 ended where they should" in capsys.readouterr().out


@pytest.mark.model
def test_real_answers_end_at_the_first_place_after_the_soft_limit(
    model_path: Path, shared_data: Callable[[str], Path]
) -> None:
    prompts = read_prompts(shared_data("arena_hard") / "question_v0.1.jsonl", 500)
    settings = EngineSettings(threads=1, max_model_len=2048, kv_cache_mb=128, executor="cpu")
    engine = open_engine(model_path, settings, name="small")
    try:
        found = list(pairs(engine, sorted(prompts, key=len)[:12], 64, 30))
    finally:
        engine.core.stop(0)
    assert all(pair.is_right for pair in found)
    assert all(pair.soft.tokens >= 30 or pair.soft.finish == "stop" for pair in found)
    outside = [pair for pair in found if not pair.soft.in_code]
    assert sum(pair.soft.clean for pair in outside) > sum(pair.plain.clean for pair in outside)
