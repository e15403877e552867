"""Answers of a set form over HTTP, from an engine whose tokens are hashes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.engine.grammar.schemas import PERSON, TREE
from tests.fakes.engine import MODEL, TOKEN, Served, fake_engine, serve

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key=TOKEN) as client:
        yield client


def formed(schema: object) -> dict[str, Any]:
    named = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


async def ask(client: Any, **fields: Any) -> Any:
    told = {"model": MODEL, "messages": HI, "seed": 1, "max_tokens": 40} | fields
    return await client.chat.completions.create(**told)


async def test_an_answer_under_a_schema_is_whole_and_streams_the_same(client: Any) -> None:
    whole = await ask(client, **formed(PERSON))
    value = json.loads(whole.choices[0].message.content)
    assert set(value) == {"name", "age"}
    chunks = [chunk async for chunk in await ask(client, stream=True, **formed(PERSON))]
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content


async def test_every_choice_has_a_form_of_its_own(client: Any) -> None:
    answer = await ask(client, n=3, response_format={"type": "json_object"})
    values = [json.loads(choice.message.content) for choice in answer.choices]
    assert all(isinstance(value, dict) for value in values)


async def test_other_names_of_a_form(client: Any) -> None:
    regex = await ask(client, extra_body={"guided_regex": "[ab]{5}"})
    assert set(regex.choices[0].message.content) <= {"a", "b"}
    choice = await ask(client, extra_body={"structured_outputs": {"choice": ["是", "否"]}})
    assert choice.choices[0].message.content in {"是", "否"}
    assert choice.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_honoured_is_refused_by_name(client: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="#/properties/x/not") as refused:
        await ask(client, stream=stream, **formed({"properties": {"x": {"not": {}}}}))
    assert refused.value.param == "response_format.json_schema.schema"


async def test_a_cap_that_no_answer_fits_is_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="shortest answer") as refused:
        await ask(client, max_tokens=10, **formed(PERSON))
    assert refused.value.param == "max_tokens"


async def test_those_that_leave_while_it_compiles_disturb_nobody(client: Any) -> None:
    leaving = [asyncio.create_task(ask(client, **formed(TREE))) for _ in range(3)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    answer = await ask(client, **formed(TREE))
    json.loads(answer.choices[0].message.content)
