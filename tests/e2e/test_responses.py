"""`/v1/responses` over the real model, with OpenAI's package as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.stack import JAPAN, Stack

pytestmark = pytest.mark.model

BRIEF = "You are a helpful assistant who answers each question in one short sentence."


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.gateway}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_streamed_and_whole_are_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="chat", input=JAPAN, temperature=0, max_output_tokens=9)
    with client.responses.stream(
        model="chat", input=JAPAN, temperature=0, max_output_tokens=9
    ) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
    assert "Tokyo" in whole.output_text
    assert "".join(deltas) == whole.output_text
    assert len(deltas) > 5


def test_what_goes_on_is_found_in_the_prefix_cache(client: openai.OpenAI) -> None:
    """All blocks of what was sent before are there: nothing of it has changed."""
    previous, sent_tokens = None, 0
    for text in (JAPAN, "How many people live there?", "用中文说再见。"):
        response = client.responses.create(
            model="chat", instructions=BRIEF, input=text, temperature=0, max_output_tokens=16,
            previous_response_id=previous,
        )  # fmt: skip
        assert response.usage is not None
        cached_tokens = response.usage.input_tokens_details.cached_tokens
        assert cached_tokens >= sent_tokens // 16 * 16
        assert response.usage.input_tokens > sent_tokens
        previous, sent_tokens = response.id, response.usage.input_tokens
    assert cached_tokens >= 64


def test_our_engine_refuses_by_name_what_it_cannot(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model="chat",
            input=JAPAN,
            tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}],
            tool_choice="required",
        )
    assert caught.value.param == "tool_choice"


async def test_a_warm_up_has_the_prompt_read_before_it_is_needed(stack: Stack) -> None:
    instructions = f"{BRIEF} The rules of this house, all of which hold: " + "be kind; " * 40
    async with (
        openai.AsyncOpenAI(base_url=f"{stack.gateway}/v1", api_key="none") as client,
        client.responses.connect() as connection,
    ):
        fields: dict[str, Any] = {
            "model": "chat", "instructions": instructions, "temperature": 0, "store": False,
        }  # fmt: skip
        create: Any = {"type": "response.create", "input": JAPAN, **fields}
        await connection.send(create | {"generate": False})
        warm = await _completed(connection)
        assert warm.output == []
        await connection.send(create)
        answered = await _completed(connection)
    assert warm.usage is not None
    assert answered.usage is not None
    read_tokens = answered.usage.input_tokens_details.cached_tokens
    assert read_tokens >= (warm.usage.input_tokens - 1) // 16 * 16
    assert "Tokyo" in answered.output_text


async def _completed(connection: Any) -> Any:
    async for event in connection:
        assert event.type not in ("error", "response.failed")
        if event.type == "response.completed":
            return event.response
    raise AssertionError("The socket was closed.")
