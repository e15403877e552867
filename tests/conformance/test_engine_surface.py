"""The engine's OpenAI surface, held to OpenAI's schema and to what vLLM's own tests expect.

The cases are those of `openai_surface_behaviours.json` that need no tool calls and no structured
output, by their ids there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conformance.openapi import OpenApi
from tests.fakes.engine import LETTERS, MODEL, Served, fake_engine, serve

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture
def openapi(shared_data: Callable[[str], Path]) -> OpenApi:
    return OpenApi(shared_data("openapi/openapi_chat_subset.json"))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


@pytest.fixture
async def session(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
        yield session


async def ask(session: httpx2.AsyncClient, page: str = CHAT, **fields: Any) -> Any:
    body: dict[str, Any] = {"messages": HI} if page == CHAT else {"prompt": "hi"}
    body |= {"max_tokens": 6, "allowed_token_ids": LETTERS} | fields
    return await session.post(page, json=body)


async def stream(session: httpx2.AsyncClient, page: str = CHAT, **fields: Any) -> list[Any]:
    """The chunks of a streamed answer, which must end with [DONE]."""
    answer = await ask(session, page, stream=True, **fields)
    assert answer.status_code == 200
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"n": 3, "temperature": 0.7},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 5},
    {"stop": ["a", "e", "i"]},
    {"seed": 5, "min_tokens": 2},
]


@pytest.mark.parametrize("fields", VARIANTS)
async def test_chat_answers_conform(
    session: httpx2.AsyncClient, openapi: OpenApi, fields: dict[str, Any]
) -> None:
    whole = (await ask(session, **fields)).json()
    assert openapi.faults("CreateChatCompletionResponse", whole) == []
    for chunk in await stream(session, stream_options={"include_usage": True}, **fields):
        assert openapi.faults("CreateChatCompletionStreamResponse", chunk) == []


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2, "prompt": ["a", "b"], "echo": True}, {"logprobs": 3}, {"stop": "a"}]
)
async def test_text_completions_conform(
    session: httpx2.AsyncClient, openapi: OpenApi, fields: dict[str, Any]
) -> None:
    whole = (await ask(session, TEXT, **fields)).json()
    assert openapi.faults("CreateCompletionResponse", whole) == []
    for chunk in await stream(session, TEXT, **fields):
        for choice in chunk["choices"]:
            # The schema is written for whole answers; OpenAI streams null until the end.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert openapi.faults("CreateCompletionResponse", chunk) == []


async def test_models_and_errors_conform(session: httpx2.AsyncClient, openapi: OpenApi) -> None:
    assert openapi.faults("ListModelsResponse", (await session.get("/v1/models")).json()) == []
    assert openapi.faults("Model", (await session.get(f"/v1/models/{MODEL}")).json()) == []
    for answer in (
        await session.get("/v1/models/other"),
        await session.get("/nowhere"),
        await session.get(CHAT),
        await ask(session, model="other"),
        await ask(session, messages=5),
        await session.post(CHAT, content=b"{"),
        await session.get("/v1/models", headers={"authorization": "Bearer x"}),
    ):
        assert 400 <= answer.status_code < 500
        assert openapi.faults("ErrorResponse", answer.json()) == []


# openai_surface_behaviours.json, by id -----------------------------------------------------------


async def test_logprobs_off(session: httpx2.AsyncClient) -> None:
    assert (await ask(session, logprobs=False)).json()["choices"][0]["logprobs"] is None


async def test_logprobs_five(session: httpx2.AsyncClient) -> None:
    answer = (await ask(session, logprobs=True, top_logprobs=5)).json()
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in tokens] == [5] * 6


async def test_session_usage(session: httpx2.AsyncClient) -> None:
    answer = (await ask(session, max_tokens=None, max_completion_tokens=5)).json()
    (choice,) = answer["choices"]
    usage = answer["usage"]
    assert choice["finish_reason"] == "length"
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    second = [*HI, choice["message"], {"role": "user", "content": "more"}]
    assert (await ask(session, messages=second)).status_code == 200


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": False}}])
async def test_usage_off(session: httpx2.AsyncClient, fields: dict[str, Any]) -> None:
    assert all("usage" not in chunk for chunk in await stream(session, **fields))


async def test_usage_on(session: httpx2.AsyncClient) -> None:
    *chunks, last = await stream(session, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("include_usage", [True, None])
async def test_usage_nonstream_400(session: httpx2.AsyncClient, include_usage: Any) -> None:
    answer = await ask(session, stream=False, stream_options={"include_usage": include_usage})
    assert answer.status_code == 400


async def test_rf_text(session: httpx2.AsyncClient) -> None:
    assert (await ask(session, response_format={"type": "text"})).status_code == 200


async def test_content_parts(session: httpx2.AsyncClient) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answers = [(await ask(session, messages=m, temperature=0)).json() for m in (HI, parts)]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]


async def test_system_parts(session: httpx2.AsyncClient) -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "be kind"}]}
    assert (await ask(session, messages=[system, *HI])).status_code == 200


@pytest.mark.parametrize("content", ["x", [{"type": "text", "text": "x"}]])
async def test_custom_role(session: httpx2.AsyncClient, content: Any) -> None:
    """Refused in both forms, as OpenAI does."""
    answer = await ask(session, messages=[{"role": "narrator", "content": content}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].role")


async def test_n_nonstream(session: httpx2.AsyncClient) -> None:
    choices = (await ask(session, n=3, temperature=0.7)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    texts = {choice["message"]["content"] for choice in choices}
    assert "" not in texts
    assert len(texts) > 1


async def test_n_seed(session: httpx2.AsyncClient) -> None:
    assert len((await ask(session, n=2, seed=1)).json()["choices"]) == 2


async def test_cache_salt(session: httpx2.AsyncClient) -> None:
    answer = await ask(session, cache_salt="")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


async def test_bias_ok(session: httpx2.AsyncClient) -> None:
    assert (await ask(session, logit_bias={"257": 1})).status_code == 200


async def test_bias_key(session: httpx2.AsyncClient) -> None:
    answer = await ask(session, logit_bias={"one": 1, "two": 2, "3": 3})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert "logit_bias" in message
    assert "'one', 'two'" in message
    assert "'3'" not in message
    assert "invalid literal" not in message


@pytest.mark.parametrize("choice", ["bogus", "auto"])
async def test_tool_choice_bogus(session: httpx2.AsyncClient, choice: str) -> None:
    assert (await ask(session, tool_choice=choice)).status_code == 400


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
async def test_content_type(session: httpx2.AsyncClient, kind: str) -> None:
    body = json.dumps({"messages": HI})
    answer = await session.post(CHAT, content=body, headers={"content-type": kind})
    assert answer.status_code == 400


async def test_health(session: httpx2.AsyncClient, served: Served) -> None:
    assert (await session.get("/health")).status_code == 200
    served.engine.core.stop(0.0)
    assert (await session.get("/health")).status_code == 503
    assert (await session.get("/health/live")).status_code == 200
    assert (await ask(session)).status_code == 503
