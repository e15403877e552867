"""Limits as clients meet them, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from engine.protocol.errors import Unavailable
from gateway.budgets.limits import Limits
from gateway.config import BudgetConfig, Config, LimitsConfig, Price, RouteConfig, Secret
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.serving import Gateway, Serve, post, scripted_config, until
from tests.gateway.faces.test_embeddings import Embedding

GREEDY: dict[str, Any] = {"temperature": 0}
SCRIPT: dict[str, Any] = {"steps": [{"text": "x", "repeat": 20}], "prompt_tokens": 60}
"""20 tokens of answer."""

SIXTY = [{"role": "user", "content": "word " * 62}]
"""A prompt of about 60 tokens, by our estimate and in the script."""


def limited(
    limits: Limits | None = None, *, store: str = "memory", cap: int | None = None, **more: Any
) -> Config:
    """One route with these limits."""
    config = scripted_config()
    budget = None if cap is None else BudgetConfig(cap)
    routes = {"chat": RouteConfig("one", budget, limits=limits)}
    return replace(config, routes=routes, limits=LimitsConfig(store=Secret(store), **more))


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "keys.sqlite3")
    yield store
    store.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def error_of(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


async def test_every_answer_says_what_is_left(serve: Serve) -> None:
    limits = Limits(requests_per_minute=3, tokens_per_minute=1000)
    gateway: Gateway = await serve(limited(limits, cap=50), SCRIPT)
    first = await gateway.chat(messages=SIXTY)
    assert first.status_code == 200
    told = {name: v for name, v in first.headers.items() if name.startswith("x-ratelimit")}
    reserved = 1000 - int(told["x-ratelimit-remaining-tokens"])
    assert 100 <= reserved <= 130
    assert told["x-ratelimit-limit-requests"] == "3"
    assert told["x-ratelimit-remaining-requests"] == "2"
    assert told["x-ratelimit-limit-tokens"] == "1000"
    assert told["x-ratelimit-reset-requests"].startswith("1m")
    second = await gateway.chat(messages=SIXTY, stream=True)
    # R37: what the first really used was settled before its last byte.
    assert second.headers["x-ratelimit-remaining-tokens"] == str(1000 - 80 - reserved)
    third = await gateway.chat(messages=SIXTY)
    assert third.headers["x-ratelimit-remaining-tokens"] == str(1000 - 160 - reserved)
    refused = await gateway.chat(messages=SIXTY)
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-remaining-tokens"] == str(1000 - 240)
    assert 0 < int(refused.headers["retry-after"]) <= 61
    assert "x-should-retry" not in refused.headers
    error = error_of(refused)
    assert (error["code"], error["param"]) == ("rate_limit_exceeded", "requests_per_minute")
    assert "the route chat" in error["message"]
    metrics = (await gateway.client.get("/metrics")).text
    line = 'fewer_limit_refusals_total{limit="requests_per_minute",subject="route"} 1.0'
    assert line in metrics
    # A page that costs nothing says nothing.
    assert "x-ratelimit-limit-requests" not in (await gateway.client.get("/v1/models")).headers


async def test_b27_parallel_requests_do_not_pass_together(serve: Serve, redis: RedisServer) -> None:
    """Six at once over two gateways on one Redis: admission reserves, so one gets in."""
    config = limited(Limits(tokens_per_minute=300), store=redis.url, deadline_ms=5000)
    gateways: list[Gateway] = [await serve(config, SCRIPT) for _ in range(2)]
    asked = [
        gateways[n % 2].chat(messages=SIXTY, max_tokens=100, stream=n % 4 < 2) for n in range(6)
    ]
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [200] + [429] * 5
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) > 0
            assert error_of(answer)["param"] == "tokens_per_minute"
    # What was not used came back: charged are the 60 + 20 that were produced.
    assert await used(gateways[0]) == 80
    assert (await gateways[1].chat(messages=SIXTY, max_tokens=100)).status_code == 200
    assert await used(gateways[1]) == 160


async def used(gateway: Gateway, limit: str = "tokens_per_minute") -> float:
    usage = (await gateway.client.get("/v1/admin/usage")).json()["data"]
    (found,) = [row["used"] for row in usage if row["limit"] == limit]
    return float(found)


async def test_b21_the_effective_cap_is_what_is_reserved(serve: Serve) -> None:
    gateway: Gateway = await serve(limited(Limits(tokens_per_minute=10_000), cap=5), SCRIPT)

    async def reserved(**fields: Any) -> int:
        response = await gateway.chat(messages=SIXTY, **fields)
        before = 65 * (len(gateway.scripted.calls) - 1)
        return 10_000 - before - int(response.headers["x-ratelimit-remaining-tokens"])

    prompt = await reserved(max_tokens=50) - 5
    assert 55 <= prompt <= 65
    assert await reserved(max_completion_tokens=5, max_tokens=50) == prompt + 5
    assert await reserved() == prompt + 5
    assert await reserved(n=3) <= prompt + 5


async def test_a_used_up_budget_says_that_waiting_is_of_no_use(
    serve: Serve, keys: KeyStore
) -> None:
    made = keys.create("acme", limits=Limits(budget_tokens=200))
    gateway: Gateway = await serve(limited(), SCRIPT, Tenants(keys))
    headers = bearer(made.text)
    for _ in range(2):
        answer = await gateway.chat(messages=SIXTY, max_tokens=30, headers=headers)
        assert answer.status_code == 200
    refused = await gateway.chat(messages=SIXTY, max_tokens=30, headers=headers)
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert refused.headers["x-ratelimit-remaining-tokens"] == "40"
    error = error_of(refused)
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert f"budget_tokens of the key {made.key.id}, 200, until" in error["message"]
    assert "40 are left" in error["message"]
    # OpenAI's client takes our word for it and does not try again.
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=made.text, max_retries=5
    )
    async with client, asyncio.timeout(5):
        with pytest.raises(openai.RateLimitError) as told:
            await client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "word " * 62}], max_tokens=30
            )
    assert told.value.code == "insufficient_quota"


async def test_what_never_fits_is_told_so(serve: Serve) -> None:
    gateway: Gateway = await serve(limited(Limits(tokens_per_minute=100)), SCRIPT)
    refused = await gateway.chat(messages=SIXTY, max_tokens=100)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    assert error_of(refused)["code"] == "rate_limit_exceeded"
    assert "Request too large" in error_of(refused)["message"]
    assert "smaller max_tokens" in error_of(refused)["message"]
    assert refused.headers["x-ratelimit-remaining-tokens"] == "100"
    assert not gateway.scripted.calls


async def test_money_is_counted_by_the_model_price(serve: Serve, keys: KeyStore) -> None:
    made = keys.create("acme", limits=Limits(budget_dollars=0.5, period="total"))
    config = limited()
    model = replace(config.models["one"], price=Price(input=1000, output=5000))
    gateway: Gateway = await serve(replace(config, models={"one": model}), SCRIPT, Tenants(keys))
    admin = bearer(keys.create("ops", admin=True).text)
    # 60 x $0.001 + 40 x $0.005 are reserved, and 60 x $0.001 + 20 x $0.005 spent.
    for paid in (0.16, 0.32):
        answer = await gateway.chat(messages=SIXTY, max_tokens=40, headers=bearer(made.text))
        assert answer.status_code == 200
        usage = (await gateway.client.get("/v1/admin/usage", headers=admin)).json()["data"]
        (row,) = usage
        assert (row["subject"], row["limit"], row["used"]) == ("key", "budget_dollars", paid)
        assert row["resets_in_s"] is None
    refused = await gateway.chat(messages=SIXTY, max_tokens=40, headers=bearer(made.text))
    assert refused.status_code == 429
    assert "budget_dollars" in error_of(refused)["message"]
    assert "$0.18 are left" in error_of(refused)["message"]


async def test_a_kept_answer_costs_a_request_and_no_tokens(serve: Serve) -> None:
    limits = Limits(requests_per_minute=10, tokens_per_minute=1000)
    gateway: Gateway = await serve(limited(limits, cap=50), SCRIPT)
    for found in ("miss", "hit", "hit"):
        answer = await gateway.chat(messages=SIXTY, **GREEDY)
        assert answer.headers["x-fewer-cache"] == found
    assert await used(gateway) == 80
    assert await used(gateway, "requests_per_minute") == 3


async def test_who_joins_pays_nothing_and_who_leads_all(serve: Serve) -> None:
    slow = {"steps": [{"delay_s": 0.005, "text": "x", "repeat": 20}], "prompt_tokens": 60}
    gateway: Gateway = await serve(limited(Limits(tokens_per_minute=1000), cap=50), slow)
    await asyncio.gather(*(gateway.chat(messages=SIXTY, **GREEDY) for _ in range(3)))
    assert len(gateway.scripted.calls) == 1
    assert await used(gateway) == 80


async def test_who_goes_on_after_the_leader_pays_for_the_rest(serve: Serve) -> None:
    steps = [{"text": "x", "repeat": 10}, {"delay_s": 0.3, "text": "x"}, {"text": "x", "repeat": 9}]
    halves = {"steps": [{"accepted": 60}, *steps], "prompt_tokens": 60}
    gateway: Gateway = await serve(limited(Limits(tokens_per_minute=1000), cap=50), halves)
    body = {"model": "chat", "messages": SIXTY, "stream": True} | GREEDY
    pair = [
        await gateway.raw(post("/v1/chat/completions", json.dumps(body).encode())) for _ in "12"
    ]
    for reader, _ in pair:
        for _ in range(10):
            await reader.readuntil(b'"content":"x"')
    pair[0][1].close()
    rest = await pair[1][0].readuntil(b"data: [DONE]")
    assert rest.count(b'"content":"x"') == 10
    assert len(gateway.scripted.calls) == 1
    assert await used(gateway) == 80
    (row,) = (await gateway.client.get("/v1/ledger")).json()["routes"]
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (2, 60, 20)
    assert row["reused_tokens"] == 70
    pair[1][1].close()


async def test_who_leaves_pays_for_what_was_made(serve: Serve) -> None:
    hanging = {"steps": [{"accepted": 60}, {"text": "x", "repeat": 5}, {"hang": True}]}
    gateway: Gateway = await serve(limited(Limits(tokens_per_minute=1000), cap=50), hanging)
    async with gateway.client.stream(
        "POST", "/v1/chat/completions", json={"messages": SIXTY, "stream": True}
    ) as response:
        async for line in response.aiter_lines():
            if line.count("x"):
                break
    async with asyncio.timeout(5):
        while await used(gateway) != 65:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.005)


NOT_YET = {"delay_s": 60.0, "refuse": {"code": "unavailable"}}


@pytest.mark.parametrize("step", [{"hang": True}, NOT_YET])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_before_the_first_word_pays_for_the_prompt(
    serve: Serve, step: dict[str, Any], stream: bool
) -> None:
    """Models read prompts before they say a word, and are paid for it."""
    limits = Limits(tokens_per_minute=1000)
    gateway: Gateway = await serve(limited(limits, cap=50), {"steps": [step]})
    body = json.dumps({"messages": SIXTY, "stream": stream}).encode()
    _, writer = await gateway.raw(post("/v1/chat/completions", body))
    await until(lambda: len(gateway.scripted.calls) == 1)
    writer.close()
    await until(lambda: not gateway.server.server_state.tasks)
    assert 60 <= await used(gateway) <= 80
    (row,) = (await gateway.client.get("/v1/ledger")).json()["routes"]
    assert (row["prompt_tokens"], row["estimated"]) == (await used(gateway), 1)


async def test_who_leaves_pays_for_what_is_embedded(serve: Serve) -> None:
    backend = Embedding("one", hang=True)
    config = limited(Limits(tokens_per_minute=1000))
    gateway: Gateway = await serve(config, {"one": backend})
    _, writer = await gateway.raw(post("/v1/embeddings", b'{"input": ["four", "tokens, or so"]}'))
    await until(lambda: len(backend.embeddings) == 1)
    writer.close()
    await until(lambda: not gateway.server.server_state.tasks)
    assert await used(gateway) == 5
    failing: Gateway = await serve(config, {"one": Embedding("one", Unavailable("Down."))})
    refused = await failing.client.post("/v1/embeddings", json={"input": "four"})
    assert (refused.status_code, await used(failing)) == (503, 0)


@pytest.mark.parametrize("refuse", ["unavailable", "context_length_exceeded"])
async def test_what_no_model_answers_costs_a_request_alone(serve: Serve, refuse: str) -> None:
    script = {"steps": [{"refuse": {"code": refuse, "message": "no"}}]}
    limits = Limits(requests_per_minute=10, tokens_per_minute=1000)
    gateway: Gateway = await serve(limited(limits, cap=50), script)
    answer = await gateway.chat(messages=SIXTY)
    assert answer.status_code in (400, 503)
    assert answer.headers["x-ratelimit-remaining-requests"] == "9"
    assert await used(gateway) == 0
    assert await used(gateway, "requests_per_minute") == 1


async def test_key_tenant_and_route_hold_together(serve: Serve, keys: KeyStore) -> None:
    """Nothing is taken of the others when one refuses; the tightest is shown."""
    one, other = (keys.create("acme", limits=Limits(requests_per_minute=2)) for _ in "12")
    stranger = keys.create("zeta")
    keys.limit_tenant("acme", Limits(requests_per_minute=3))
    config = limited(Limits(requests_per_minute=5), each_tenant=Limits(requests_per_minute=4))
    gateway: Gateway = await serve(config, SCRIPT, Tenants(keys))

    async def ask(text: str) -> tuple[int, str, str]:
        answer = await gateway.chat(headers=bearer(text))
        whose = "" if answer.status_code == 200 else error_of(answer)["message"]
        return answer.status_code, answer.headers["x-ratelimit-remaining-requests"], whose

    assert await ask(one.text) == (200, "1", "")
    assert await ask(one.text) == (200, "0", "")
    status, left, whose = await ask(one.text)
    assert (status, left) == (429, "0")
    assert f"the key {one.key.id}" in whose
    assert await ask(other.text) == (200, "0", "")
    assert "the tenant acme" in (await ask(other.text))[2]
    assert await ask(stranger.text) == (200, "1", "")
    assert await ask(stranger.text) == (200, "0", "")
    assert "the route chat" in (await ask(stranger.text))[2]


async def test_limits_hold_at_once_when_they_change(serve: Serve, keys: KeyStore) -> None:
    made = keys.create("acme")
    gateway: Gateway = await serve(limited(), SCRIPT, Tenants(keys))
    headers = bearer(made.text)
    free = await gateway.chat(headers=headers)
    assert "x-ratelimit-limit-requests" not in free.headers
    keys.limit(made.key.id, Limits(requests_per_minute=1))
    assert (await gateway.chat(headers=headers)).status_code == 200
    assert (await gateway.chat(headers=headers)).status_code == 429
    keys.limit(made.key.id, None)
    assert (await gateway.chat(headers=headers)).status_code == 200
    gateway.exchange(limited(Limits(requests_per_minute=1)))
    assert (await gateway.chat(headers=headers)).status_code == 200
    assert (await gateway.chat(headers=headers)).status_code == 429


async def test_revocation_wins_over_kept_answers_and_limits(serve: Serve, keys: KeyStore) -> None:
    made = keys.create("acme", limits=Limits(requests_per_minute=100))
    gateway: Gateway = await serve(limited(), SCRIPT, Tenants(keys))
    for found in ("miss", "hit"):
        answer = await gateway.chat(headers=bearer(made.text), **GREEDY)
        assert answer.headers["x-fewer-cache"] == found
    keys.revoke(made.key.id)
    assert (await gateway.chat(headers=bearer(made.text), **GREEDY)).status_code == 401


async def test_embeddings_are_limited_too(serve: Serve) -> None:
    script = SCRIPT | {"embedding": {"object": "list", "data": [], "usage": {"prompt_tokens": 7}}}
    limits = Limits(requests_per_minute=2, tokens_per_minute=1000)
    gateway: Gateway = await serve(limited(limits), script)

    async def embed() -> Any:
        body = {"model": "chat", "input": ["Guten Tag", "三十"]}
        return await gateway.client.post("/v1/embeddings", json=body)

    first = await embed()
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert await used(gateway) == 7
    assert (await embed()).status_code == 200
    assert (await embed()).status_code == 429
    assert len(gateway.scripted.embeddings) == 2


async def test_without_limits_no_store_is_made(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(config: Config) -> Any:
        raise AssertionError("a store was made")

    monkeypatch.setattr("gateway.app.store_of", made)
    gateway: Gateway = await serve(limited(), SCRIPT)
    answer = await gateway.chat()
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_a_stream_that_waits_to_be_read_is_settled_all_the_same(serve: Serve) -> None:
    gateway: Gateway = await serve(limited(Limits(tokens_per_minute=1000), cap=50), SCRIPT)
    body = json.dumps({"messages": SIXTY, "stream": True})
    response = await gateway.client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.text.endswith("data: [DONE]\n\n")
    assert await used(gateway) == 80
