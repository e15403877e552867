"""How long answers are when they are asked to be short: the figures of docs/policies.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.brevity import answers, concise, report
from benchmarks.landing import Answer
from engine.assembly import open_engine
from engine.protocol.settings import EngineSettings
from policies.shape import CONCISE, CONCISE_CHINESE


def told(tokens: int, finish: str = "stop") -> Answer:
    return Answer("", tokens, finish, False, None, True, False)  # type: ignore[arg-type]


def test_the_prompt_is_as_the_policy_makes_it() -> None:
    assert concise("Hi") == [
        {"role": "system", "content": CONCISE},
        {"role": "user", "content": "Hi"},
    ]
    assert concise("你好吗")[0]["content"] == CONCISE_CHINESE


def test_the_saving_is_told_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    plain = [told(tokens, "length" if tokens > 150 else "stop") for tokens in range(100, 200)]
    report(plain, [told(each.tokens // 2) for each in plain])
    printed = capsys.readouterr().out
    assert "149.5 tokens, 51 of 100 ended by themselves" in printed
    assert "saved: 50.2% of the tokens (4" in printed
    report(plain[:1], plain[:1])
    assert "saved" not in capsys.readouterr().out


@pytest.mark.model
def test_the_same_prompts_are_answered_the_same(model_path: Path) -> None:
    settings = EngineSettings(executor="cpu", threads=1, max_model_len=1024)
    engine = open_engine(model_path, settings, name="smollm2-135m")
    prompts = [concise("Say hi."), concise("说你好。")]
    first, again = (answers(engine, prompts, 8) for _ in range(2))
    engine.core.stop(0)
    assert first == again
    assert all(0 < answer.tokens <= 8 for answer in first)
