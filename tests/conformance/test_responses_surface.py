"""`/v1/responses` of the gateway, held to OpenAI's schema, and to the types of OpenAI's package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.conformance.openapi import OpenApi
from tests.fakes.serving import running

STEPS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": "Hel"}, {"text": "lo"}],
    "logprobs": [
        {
            "text": "A",
            "logprobs": [
                {
                    "token": "A",
                    "id": 1,
                    "logprob": -0.5,
                    "bytes": [65],
                    "top": [{"token": "B", "id": 2, "logprob": -1.5, "bytes": [66]}],
                }
            ],
        }
    ],
    "thought": [{"reasoning": "Hm."}, {"text": "Yes."}, {"finish": "length"}],
    "filtered": [{"text": "Well"}, {"finish": "content_filter"}],
    "calls": [
        {"tool": {"index": 0, "id": "call_1", "name": "f", "arguments": "{"}},
        {"tool": {"index": 0, "arguments": "}"}},
        {"finish": "tool_calls"},
    ],
    "failed": [{"text": "Hel"}, {"fail": {"code": "unavailable"}}],
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
BODY = {
    "model": "chat",
    "input": "Hi",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "instructions": "Be brief.",
    "metadata": {"a": "b"},
}


@pytest.fixture(scope="module")
def openapi(shared_data: Callable[[str], Path]) -> OpenApi:
    return OpenApi(shared_data("openapi/openapi.yaml.gz"))


async def streamed(steps: list[dict[str, Any]], body: dict[str, Any]) -> list[dict[str, Any]]:
    async with running(backends={"steps": steps}) as gateway:
        answer = await gateway.client.post("/v1/responses", json=body | {"stream": True})
    lines = [frame.split("\n")[1] for frame in answer.text.split("\n\n") if frame]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("name", STEPS)
async def test_every_event_is_of_openais_types(name: str) -> None:
    for event in await streamed(STEPS[name], BODY):
        assert type(EVENTS.validate_python(event)).__name__.startswith("Response")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("body", [BODY, {"input": "Hi"}], ids=["much", "little"])
async def test_every_event_conforms_to_openais_schema(
    openapi: OpenApi, name: str, body: dict[str, Any]
) -> None:
    for event in await streamed(STEPS[name], body):
        assert openapi.faults("ResponseStreamEvent", event) == []


async def test_whole_responses_and_lists_conform(openapi: OpenApi) -> None:
    async with running() as gateway:
        response = (await gateway.client.post("/v1/responses", json=BODY)).json()
        page = f"/v1/responses/{response['id']}"
        assert (await gateway.client.get(page)).json() == response
        items = (await gateway.client.get(f"{page}/input_items")).json()
    assert openapi.faults("Response", response) == []
    assert openapi.faults("ResponseItemList", items) == []
    Response.model_validate(response)
