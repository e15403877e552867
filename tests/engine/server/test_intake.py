"""From frames to requests: what cannot fit is refused unread, and threads are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import engine.server.intake
from engine.protocol.errors import ContextLengthExceeded, InvalidRequest, Overloaded, TooLarge
from engine.protocol.frames import Event, Generate
from engine.server.intake import MAX_COUNT_CHARS, Intake
from tests.fakes.engine import ByteTemplate, PromptTokenizer
from tests.fakes.tokenizer import START

LONGEST = len(b"<start>")
"""Bytes of the fake vocabulary's longest token."""


class CountingTokenizer(PromptTokenizer):
    """Remembers what it was given, and can be held up."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()

    def encode_prompt(self, text: str) -> list[int]:
        self.texts.append(text)
        self.threads.add(threading.current_thread().name)
        self.go_on.wait(10)
        return super().encode_prompt(text)


@pytest.fixture
def tokenizer() -> CountingTokenizer:
    return CountingTokenizer()


@pytest.fixture
def intake(tokenizer: CountingTokenizer) -> Iterator[Intake]:
    intake = Intake(tokenizer, ByteTemplate(), max_model_len=1000)
    yield intake
    tokenizer.go_on.set()
    intake.close()


async def test_a_frame_becomes_a_request(intake: Intake) -> None:
    frame = Generate(
        "r", prompts=["ab", [1, 2]], n=3, max_tokens=5, salt="s", tenant="t", weight=2.0,
        priority=1, timeout_ms=1500, expected_tokens=7,
    )  # fmt: skip
    request = await intake.request(frame)
    assert [prompt.tolist() for prompt in request.prompts] == [[97, 98], [1, 2]]
    assert [str(prompt.dtype) for prompt in request.prompts] == ["int32", "int32"]
    assert (request.id, request.n, request.max_tokens, request.expected_tokens) == ("r", 3, 5, 7)
    assert (request.salt, request.tenant, request.weight, request.priority) == ("s", "t", 2.0, 1)
    assert request.deadline == pytest.approx(request.arrival + 1.5)
    assert (await intake.request(Generate("r", prompts=["x"]))).deadline is None


async def test_a_prediction_is_tokenised_and_cut_where_no_answer_reaches(intake: Intake) -> None:
    request = await intake.request(Generate("r", prompts=["x"], prediction="ab"))
    assert request.prediction is not None
    assert request.prediction.tolist() == [97, 98]
    assert str(request.prediction.dtype) == "int32"
    long = await intake.request(Generate("r", prompts=["x"], prediction="z" * 3_000_000))
    assert long.prediction is not None
    assert len(long.prediction) == 1000
    assert (await intake.request(Generate("r", prompts=["x"], prediction=""))).prediction is None


async def test_messages_are_rendered_with_their_tools(intake: Intake) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "hi"}]
    request = await intake.request(Generate("r", messages=messages, tools=tools))
    assert request.prompts[0].tolist() == [START, *b"f", START, *b"user:hi"]


@pytest.mark.parametrize("chars", [1000 * LONGEST, 1_000_000])
async def test_what_cannot_fit_is_refused_unread(
    intake: Intake, tokenizer: CountingTokenizer, chars: int
) -> None:
    """B17: by its size, before it costs anything, whether it is to be answered or counted."""
    at_least = -(-chars // LONGEST)
    for frame in (
        Generate("r", prompts=["x" * chars]),
        Generate("r", messages=[{"role": "user", "content": "x" * chars}]),
        Generate(
            "r", messages=[{"role": "user", "content": [{"type": "text", "text": "x" * chars}]}]
        ),
    ):
        with pytest.raises(ContextLengthExceeded, match=f"1000 tokens.* at least {at_least}"):
            await intake.request(frame)
        counted = intake.render(frame.messages) if frame.messages else intake.encode("x" * chars)
        with pytest.raises(ContextLengthExceeded):
            await counted
    assert tokenizer.texts == []


async def test_more_messages_than_tokens_are_refused_unread(intake: Intake) -> None:
    """80,000 empty ones took a template five seconds, with nothing in them to count."""
    empty = [{"role": "user", "content": ""}]
    with pytest.raises(ContextLengthExceeded, match="at least 80000"):
        await intake.render(empty * 80_000)
    assert await intake.render(empty)


async def test_refusals_name_the_field_that_was_too_long(intake: Intake) -> None:
    long = "x" * 1000 * LONGEST
    with pytest.raises(ContextLengthExceeded) as caught:
        await intake.request(Generate("r", prompts=[long]))
    assert caught.value.param == "prompt"
    with pytest.raises(ContextLengthExceeded) as caught:
        await intake.request(Generate("r", messages=[{"role": "user", "content": long}]))
    assert caught.value.param == "messages"
    assert (await intake.request(Generate("r", prompts=["x"]))).prompt_field == "prompt"


async def test_tools_of_keys_and_numbers_are_no_short_text(
    tokenizer: CountingTokenizer,
) -> None:
    """Templates write them out whole, which must not hold up the event loop."""
    seen: list[str] = []

    class Template:
        def render(self, messages: Any, tools: Any = None) -> list[int]:
            seen.append(threading.current_thread().name)
            return [1]

    intake = Intake(tokenizer, Template(), max_model_len=1000)
    tools = [{"function": {"name": "f", "parameters": {f"k{i}": i for i in range(1000)}}}]
    await intake.render([{"role": "user", "content": "hi"}], tools)
    assert seen != [threading.current_thread().name]
    intake.close()


async def test_what_might_fit_is_read(intake: Intake, tokenizer: CountingTokenizer) -> None:
    await intake.request(Generate("r", prompts=["x" * (1000 * LONGEST - LONGEST)]))
    assert len(tokenizer.texts) == 1


async def test_short_texts_are_read_in_place_and_long_ones_in_threads(
    intake: Intake, tokenizer: CountingTokenizer
) -> None:
    here = threading.current_thread().name
    await intake.encode("x" * 100)
    assert tokenizer.threads == {here}
    await intake.encode("x" * 5000)
    assert len(tokenizer.threads) == 2


async def test_waiting_texts_are_bounded(
    intake: Intake, tokenizer: CountingTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.server.intake, "_MAX_WAITING", 3)
    tokenizer.go_on.clear()
    asked = [asyncio.create_task(intake.encode("x" * 5000)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await intake.encode("x" * 5000)
    assert caught.value.retry_after_s
    tokenizer.go_on.set()
    assert [len(ids) for ids in await asyncio.gather(*asked)] == [5000] * 3
    assert len(await intake.encode("x" * 5000)) == 5000


async def test_counts_are_bounded(tokenizer: CountingTokenizer) -> None:
    """B17: a long context alone does not make a text worth seconds of a thread."""
    intake = Intake(tokenizer, ByteTemplate(), max_model_len=10**7)
    with pytest.raises(TooLarge):
        await intake.encode("x" * (MAX_COUNT_CHARS + 1))
    tools = [{"function": {"name": "f", "description": "x" * MAX_COUNT_CHARS}}]
    with pytest.raises(TooLarge):
        await intake.render([{"role": "user", "content": "hi"}], tools)
    intake.close()


@pytest.mark.parametrize("ids", [[258], [-1], [2**40], [1, 2, 2**70]])
async def test_ids_outside_the_vocabulary(intake: Intake, ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await intake.request(Generate("r", prompts=[ids]))
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest):
        await intake.decode(ids)


def test_echoes_are_the_prompts_own_text(intake: Intake) -> None:
    frame = Generate("r", prompts=["ab", [99], ""], n=2, echo=True)
    assert intake.echoes(frame) == [
        Event("r", choice=0, text="ab"),
        Event("r", choice=1, text="ab"),
        Event("r", choice=2, text="c"),
        Event("r", choice=3, text="c"),
    ]
    assert intake.echoes(Generate("r", prompts=["ab"])) == []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    assert intake.echoes(Generate("r", messages=messages, echo=True)) == []
