"""The exact cache and shared answers as clients see them, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends.openai import OpenAIBackend
from gateway.backends.scripted import ScriptedBackend
from gateway.config import (
    CacheConfig,
    CoalesceConfig,
    Config,
    ExactCacheConfig,
    RouteCacheConfig,
    RouteConfig,
    RoutingConfig,
    RuleConfig,
    SamplingConfig,
    Secret,
)
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import CHAT_BODY, Gateway, Serve, post, scripted_config, until
from tests.fakes.upstream import Reply, ScriptedUpstream, chat_chunk, sse

LOGPROB = {"token": "Hel", "id": 5, "logprob": -0.25, "bytes": [72], "top": []}
TOOL = {"index": 0, "id": "call_1", "name": "look", "arguments": '{"at":'}
RICH: dict[str, Any] = {
    "steps": [
        {"accepted": 9},
        {"started": 4},
        {"reasoning": "Hm. "},
        {"text": "Hel", "logprobs": [LOGPROB]},
        {"text": "lo\u2028", "repeat": 40},
        {"tool": TOOL},
        {"tool": {"index": 0, "arguments": "1}"}},
        {"finish": "tool_calls"},
        {"usage": {"prompt_tokens": 9, "completion_tokens": 45, "cached_tokens": 4}},
    ]
}
SLOW: dict[str, Any] = {"steps": [{"delay_s": 0.005, "text": "x", "repeat": 30}]}
HANGING: dict[str, Any] = {"steps": [{"text": "a"}, {"hang": True}]}
GREEDY: dict[str, Any] = {"temperature": 0}


def with_route(config: Config | None = None, **settings: Any) -> Config:
    config = config or scripted_config()
    return replace(config, routes={"chat": replace(config.routes["chat"], **settings)})


def exact(**settings: Any) -> RouteCacheConfig:
    return RouteCacheConfig(ExactCacheConfig(**settings))


async def source(gateway: Gateway, **fields: Any) -> str:
    """Where the answer came from."""
    response = await gateway.chat(**fields)
    assert response.status_code == 200
    found: str = response.headers["x-fewer-cache"]
    return found


async def told(gateway: Gateway, line: str) -> str:
    """The metrics, once `line` is in them."""
    while line not in (text := (await gateway.client.get("/metrics")).text):
        pass
    return str(text)


def unnamed(text: str) -> str:
    """Without what differs between any two answers."""
    return re.sub(r'"id":"(chatcmpl|cmpl)-[0-9a-f-]+"|"created":\d+', "", text)


SHAPES: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
]


@pytest.mark.parametrize("asked", [{}, {"logprobs": True, "top_logprobs": 1}, {"n": 2}])
async def test_a_hit_has_the_shape_that_its_reader_asked_for(
    serve: Serve, asked: dict[str, Any]
) -> None:
    """Whichever shape came first, every other one is what a model's answer would have been."""
    asked = asked | GREEDY
    cold: Gateway = await serve(with_route(cache=exact(mode="disabled")), RICH)
    expected = [(await cold.chat(**asked, **shape)).text for shape in SHAPES]
    assert len(cold.scripted.calls) == len(SHAPES)
    for first in SHAPES:
        gateway: Gateway = await serve(backends=RICH)
        assert await source(gateway, **asked, **first) == "miss"
        for shape, answer in zip(SHAPES, expected, strict=True):
            response = await gateway.chat(**asked, **shape)
            assert response.headers["x-fewer-cache"] == "hit"
            assert response.headers["x-fewer-tokens-saved"] == "54"
            assert response.headers["x-fewer-model"] == "one"
            assert unnamed(response.text) == unnamed(answer)
        assert len(gateway.scripted.calls) == 1


async def test_a_completion_hits_completions_only(serve: Serve) -> None:
    gateway: Gateway = await serve(backends={"steps": [{"text": "a"}]})
    body = {"model": "chat", "prompt": "Hi", "temperature": 0}
    answers = [await gateway.client.post("/v1/completions", json=body) for _ in range(2)]
    assert [answer.headers["x-fewer-cache"] for answer in answers] == ["miss", "hit"]
    assert unnamed(answers[0].text) == unnamed(answers[1].text)
    assert await source(gateway, **GREEDY) == "miss"


VARIANTS: list[dict[str, Any]] = [
    {"max_tokens": 16},
    {"max_tokens": 400},
    {"stop": ["zzz"]},
    {"top_p": 0.5},
    {"n": 2},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"},
    {"response_format": {"type": "json_object"}},
    {"seed": 1},
    {"logit_bias": {"5": 1}},
    {"presence_penalty": 0.5},
    {"logprobs": True},
    {"model": "other"},
    {"messages": [{"role": "system", "content": "Rhyme."}, *CHAT_BODY["messages"]]},
]


async def test_b09_every_variant_is_an_answer_of_its_own(serve: Serve) -> None:
    config = scripted_config("one", "two")
    config = replace(config, routes=config.routes | {"other": RouteConfig("two")})
    gateway: Gateway = await serve(config, {"steps": [{"text": "a"}]})
    assert await source(gateway, **GREEDY) == "miss"
    for variant in VARIANTS:
        assert await source(gateway, **(GREEDY | variant)) == "miss", variant
        assert await source(gateway, **(GREEDY | variant)) == "hit", variant
    turned = json.dumps(dict(reversed((CHAT_BODY | GREEDY).items())), indent=3).encode()
    headers = {"content-type": "application/json"}
    response = await gateway.client.post("/v1/chat/completions", content=turned, headers=headers)
    assert response.headers["x-fewer-cache"] == "hit"
    for _ in range(2):
        assert await source(gateway) == "bypass"


async def test_two_names_of_one_route_share_and_two_models_do_not(serve: Serve) -> None:
    """R11."""
    config = replace(scripted_config("one", "two"), aliases={"a": "chat", "b": "one", "c": "two"})
    gateway: Gateway = await serve(config, {"steps": [{"text": "a"}]})
    found = [await source(gateway, model=name, **GREEDY) for name in ("chat", "a", "b", "c", "c")]
    assert found == ["miss", "hit", "hit", "miss", "hit"]


ENDLESS = sse(chat_chunk("Hel"))
FORGETFUL = sse(chat_chunk("Hel"), "[DONE]")
FAILING = sse(chat_chunk("Hel"), {"error": {"message": "no", "type": "server_error"}}, "[DONE]")
BUSY = Reply(
    [b'{"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit"}}'],
    status=429,
)
BROKEN = Reply([b'{"error": {"message": "oops", "type": "server_error"}}'], status=500)
GOOD = Reply(sse(chat_chunk("Hello"), chat_chunk(finish="stop"), "[DONE]"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "bad", [Reply(ENDLESS), Reply(FORGETFUL), Reply(FAILING), BUSY, BROKEN], ids=str
)
async def test_b11_what_broke_off_is_never_kept(serve: Serve, bad: Reply, stream: bool) -> None:
    async with ScriptedUpstream([bad, GOOD, GOOD]) as upstream:
        backend = OpenAIBackend("one", upstream.url, model="gpt")
        gateway: Gateway = await serve(backends={"one": backend})
        await gateway.chat(stream=stream, **GREEDY)
        good = await gateway.chat(stream=stream, **GREEDY)
        assert good.headers["x-fewer-cache"] == "miss"
        assert "Hello" in good.text
        assert await source(gateway, stream=stream, **GREEDY) == "hit"
        await backend.aclose()


async def test_b11_what_its_client_left_is_not_kept(serve: Serve) -> None:
    scripts = {"scripts": [HANGING["steps"], [{"text": "b"}]]}
    gateway: Gateway = await serve(backends=scripts)
    body = json.dumps(CHAT_BODY | GREEDY | {"stream": True}).encode()
    reader, writer = await gateway.raw(post("/v1/chat/completions", body))
    await reader.readuntil(b'"content":"a"')
    writer.close()
    await until(lambda: not gateway.scripted.running)
    assert len(gateway.scripted.cancelled) == 1
    assert await source(gateway, **GREEDY) == "miss"


async def test_b05_a_cut_answer_is_cut_as_a_hit_too(serve: Serve) -> None:
    script = {"steps": [{"text": "x", "repeat": 40}]}
    gateway: Gateway = await serve(backends=script)
    for expected in ("miss", "hit"):
        response = await gateway.chat(max_tokens=5, **GREEDY)
        assert response.headers["x-fewer-cache"] == expected
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == 5
    wary: Gateway = await serve(with_route(cache=exact(cut_answers="dropped")), script)
    assert [await source(wary, max_tokens=5, **GREEDY) for _ in "12"] == ["miss", "miss"]


async def test_two_tenants_never_share(serve: Serve, tmp_path: Any) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite3")
    headers = [
        {"authorization": f"Bearer {keys.create(tenant).text}"} for tenant in ("a", "b", "a")
    ]
    gateway: Gateway = await serve(backends=SLOW, tenants=Tenants(keys))
    together = [gateway.chat(headers=header, **GREEDY) for header in headers]
    found = [answer.headers["x-fewer-cache"] for answer in await asyncio.gather(*together)]
    assert sorted(found) == ["joined", "miss", "miss"]
    assert len(gateway.scripted.calls) == 2
    again = [(await gateway.chat(headers=each, **GREEDY)).headers for each in headers]
    assert [each["x-fewer-cache"] for each in again] == ["hit"] * 3
    keys.close()


async def test_clients_narrow_by_cache_control(serve: Serve) -> None:
    """R11."""
    gateway: Gateway = await serve(backends={"steps": [{"text": "a"}]})

    async def asked(control: str, **fields: Any) -> str:
        response = await gateway.chat(headers={"cache-control": control}, **fields)
        return str(response.headers["x-fewer-cache"])

    assert await asked("no-store", **GREEDY) == "miss"
    assert await asked("", **GREEDY) == "miss"
    assert await asked("no-cache", **GREEDY) == "bypass"
    assert await asked("max-age=0", **GREEDY) == "miss"
    assert await asked("max-age=60", **GREEDY) == "hit"
    assert await asked("only-if-cached") == "bypass"


async def test_a_sampled_answer_is_kept_where_the_route_says_so(serve: Serve) -> None:
    gateway: Gateway = await serve(
        with_route(cache=exact(requests="all")), {"steps": [{"text": "a"}]}
    )
    assert [await source(gateway) for _ in "12"] == ["miss", "hit"]


async def test_the_same_at_once_is_one_generation(serve: Serve) -> None:
    gateway: Gateway = await serve(backends=SLOW)
    shapes = [SHAPES[n % 3] for n in range(9)]
    answers = await asyncio.gather(*(gateway.chat(**GREEDY, **shape) for shape in shapes))
    assert len(gateway.scripted.calls) == 1
    found = sorted(answer.headers["x-fewer-cache"] for answer in answers)
    assert found == ["joined"] * 8 + ["miss"]
    for first in range(3):
        alike = {unnamed(answer.text) for answer in answers[first::3]}
        assert len(alike) == 1
    cold: Gateway = await serve(with_route(cache=exact(mode="disabled")), SLOW)
    for answer, shape in zip(answers[:3], SHAPES, strict=True):
        assert unnamed(answer.text) == unnamed((await cold.chat(**GREEDY, **shape)).text)
    # Each is counted when its last byte is out.
    await told(gateway, 'fewer_cache_saved_tokens_total{kind="completion",route="chat"} 240.0')
    text = await told(gateway, 'fewer_generation_tokens_total{model="one",route="chat"} 30.0')
    assert 'fewer_cache_stored_total{route="chat"} 1.0' in text


@pytest.mark.parametrize("leaving", [0, 1])
async def test_a_client_that_leaves_ends_nobody_elses_stream(serve: Serve, leaving: int) -> None:
    gateway: Gateway = await serve(backends=SLOW)
    body = post("/v1/chat/completions", json.dumps(CHAT_BODY | GREEDY | {"stream": True}).encode())
    pair = [await gateway.raw(body) for _ in range(2)]
    for reader, _ in pair:
        await reader.readuntil(b'"content":"x"')
    pair[leaving][1].close()
    rest = await pair[1 - leaving][0].readuntil(b"data: [DONE]")
    assert rest.count(b'"content":"x"') == 29
    assert len(gateway.scripted.calls) == 1
    assert not gateway.scripted.cancelled
    pair[1 - leaving][1].close()


async def test_the_last_client_that_leaves_cancels(serve: Serve) -> None:
    gateway: Gateway = await serve(backends=HANGING)
    body = post("/v1/chat/completions", json.dumps(CHAT_BODY | GREEDY).encode())
    connections = [await gateway.raw(body) for _ in range(5)]
    await told(gateway, 'result="joined",route="chat"} 4.0')
    for _, writer in connections[:-1]:
        writer.close()
    await until(lambda: len(gateway.server.server_state.tasks) == 1)
    assert gateway.scripted.running
    connections[-1][1].close()
    async with asyncio.timeout(2):
        await until(lambda: not gateway.scripted.running)
    assert len(gateway.scripted.cancelled) == 1


async def test_a_failure_before_the_first_word_is_everybodys(serve: Serve) -> None:
    refusing = {"steps": [{"delay_s": 0.05, "refuse": {"code": "overloaded"}}]}
    gateway: Gateway = await serve(backends=refusing)
    answers = await asyncio.gather(*(gateway.chat(**GREEDY) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [503] * 4
    assert len(gateway.scripted.calls) == 1


async def test_a_deadline_is_everybodys_who_joined(serve: Serve) -> None:
    config = scripted_config()
    hasty = replace(config.models["one"], timeout_s=0.2)
    gateway: Gateway = await serve(replace(config, models={"one": hasty}), HANGING)
    answers = await asyncio.gather(*(gateway.chat(**GREEDY) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [504] * 3
    assert len(gateway.scripted.calls) == 1
    assert not gateway.scripted.running


async def test_coalescing_needs_no_cache_and_can_be_switched_off(serve: Serve) -> None:
    uncached: Gateway = await serve(with_route(cache=exact(mode="disabled")), SLOW)
    found = await asyncio.gather(*(source(uncached, **GREEDY) for _ in range(3)))
    assert sorted(found) == ["joined", "joined", "miss"]
    assert await source(uncached, **GREEDY) == "miss"
    alone: Gateway = await serve(with_route(coalesce=CoalesceConfig("disabled")), SLOW)
    found = await asyncio.gather(*(source(alone, **GREEDY) for _ in range(3)))
    assert found == ["miss"] * 3
    assert len(alone.scripted.calls) == 3


async def test_shadows_only_count(serve: Serve) -> None:
    config = with_route(cache=exact(mode="shadow"), coalesce=CoalesceConfig("shadow"))
    gateway: Gateway = await serve(config, SLOW)
    found = await asyncio.gather(*(source(gateway, **GREEDY) for _ in range(3)))
    assert found == ["bypass"] * 3
    assert await source(gateway, **GREEDY) == "bypass"
    assert len(gateway.scripted.calls) == 4
    text = (await gateway.client.get("/metrics")).text
    assert 'fewer_cache_shadow_total{result="joined",route="chat"} 2.0' in text
    assert 'fewer_cache_shadow_total{result="hit",route="chat"} 1.0' in text
    assert "fewer_cache_stored_total{" not in text


async def test_a_shadow_of_the_one_leaves_the_other_at_work(serve: Serve, tmp_path: Any) -> None:
    config = replace(
        with_route(cache=exact(mode="shadow")),
        cache=CacheConfig(store=Secret("sqlite"), deadline_ms=5000),
        store=tmp_path / "fewer.sqlite3",
    )
    gateway: Gateway = await serve(config, SLOW)
    found = await asyncio.gather(*(source(gateway, **GREEDY) for _ in range(4)))
    assert sorted(found) == ["joined", "joined", "joined", "miss"]
    assert await source(gateway, **GREEDY) == "miss"
    await told(gateway, 'fewer_cache_shadow_total{result="hit",route="chat"} 1.0')


async def test_the_control_arm_touches_no_cache(serve: Serve) -> None:
    """Show 6: neither read, written nor joined, by the one arm or from the other."""
    config = with_route(cache=exact(holdout=0.5), coalesce=CoalesceConfig(holdout=0.5))
    gateway: Gateway = await serve(config, {"steps": [{"text": "a"}]})

    async def asked(conversation: int) -> tuple[dict[str, str], str]:
        response = await gateway.chat(
            metadata={"thread_id": str(conversation)}, headers={"x-fewer-debug": "true"}, **GREEDY
        )
        decided = json.loads(response.headers["x-fewer-decisions"])
        arms = {each["policy"]: each["arm"] for each in decided}
        return arms, response.headers["x-fewer-cache"]

    for conversation in range(40):
        arms, found = await asked(conversation)
        calls = len(gateway.scripted.calls)
        if arms == {"cache": "control", "coalesce": "control"}:
            assert found == "bypass"
        elif arms["cache"] == "control":
            assert found == "miss"
        assert (await asked(conversation))[0] == arms
        again = len(gateway.scripted.calls) - calls
        assert again == (arms["cache"] == "control")


async def test_a_fallbacks_answer_is_not_kept_for_the_first(serve: Serve) -> None:
    backends: dict[str, dict[str, Any]] = {
        "one": {"scripts": [[{"refuse": {"code": "unavailable"}}], [{"text": "first"}]]},
        "two": {"steps": [{"text": "second"}]},
    }
    gateway: Gateway = await serve(
        scripted_config("one", "two"),
        {name: ScriptedBackend(name, script) for name, script in backends.items()},
    )
    texts = [(await gateway.chat(**GREEDY)).json() for _ in range(3)]
    said = [text["choices"][0]["message"]["content"] for text in texts]
    assert said == ["second", "first", "first"]


async def test_answers_outlast_an_exchange_and_a_changed_model_has_its_own(serve: Serve) -> None:
    gateway: Gateway = await serve(backends=SLOW)
    flying = asyncio.create_task(source(gateway, **GREEDY))
    await until(lambda: len(gateway.scripted.calls) == 1)
    gateway.exchange(with_route(max_model_len=100))
    assert await source(gateway, **GREEDY) == "joined"
    assert await flying == "miss"
    assert await source(gateway, **GREEDY) == "hit"
    changed = replace(gateway.config.models["one"], model="another")
    gateway.exchange(replace(gateway.config, models={"one": changed}))
    assert await source(gateway, **GREEDY) == "miss"


async def test_two_routes_of_one_model_do_not_share(serve: Serve) -> None:
    """What a route is set to may change its answers in ways that no field of a request says."""
    routes = {name: RouteConfig("one") for name in ("chat", "other")}
    gateway: Gateway = await serve(replace(scripted_config(), routes=routes), SLOW)
    found = [await source(gateway, model=name, **GREEDY) for name in ("chat", "other", "chat")]
    assert found == ["miss", "miss", "hit"]


async def test_the_sampling_of_whichever_model_answers_is_in_the_key(serve: Serve) -> None:
    """The request holds that of the route's own model, and a rule may have chosen another."""
    rules = RoutingConfig(rules=(RuleConfig("two"),), holdout=0.0)
    config = with_route(scripted_config("one", "two"), model="one", route=rules)
    backends = {name: ScriptedBackend(name, SLOW) for name in ("one", "two")}
    gateway: Gateway = await serve(config, backends)
    assert [await source(gateway, **GREEDY) for _ in range(2)] == ["miss", "hit"]
    changed = replace(config.models["two"], sampling=SamplingConfig(repetition_penalty=1.3))
    gateway.exchange(replace(config, models=config.models | {"two": changed}))
    assert await source(gateway, **GREEDY) == "miss"


async def test_a_budget_that_fills_the_limit_is_in_the_key(serve: Serve) -> None:
    """B21: the limit that holds, whoever set it."""
    script = {"steps": [{"text": "x", "repeat": 40}]}
    gateway: Gateway = await serve(scripted_config(budget=5), script)
    assert await source(gateway, metadata={"thread_id": "1"}, **GREEDY) == "miss"
    assert await source(gateway, max_tokens=5, **GREEDY) in ("miss", "hit")
    gateway.exchange(scripted_config(budget=7))
    response = await gateway.chat(**GREEDY)
    assert response.headers["x-fewer-cache"] == "miss"
    assert response.json()["usage"]["completion_tokens"] == 7


async def test_a_route_that_no_cache_of_its_own_names_is_bounded(serve: Serve) -> None:
    config = replace(scripted_config(), cache=CacheConfig(max_mb=1, max_answer_kb=4))
    gateway: Gateway = await serve(config, {"steps": [{"text": "x" * 1000, "repeat": 5}]})
    assert [await source(gateway, **GREEDY) for _ in "12"] == ["miss", "miss"]
    assert await source(gateway, max_tokens=2, **GREEDY) == "miss"
    assert await source(gateway, max_tokens=2, **GREEDY) == "hit"
