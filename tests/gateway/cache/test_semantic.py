"""Requests in other words, as clients see them: drafted, answered, and never another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import ConfigError, SetupError
from gateway import embedding
from gateway.cache.answers import Answers
from gateway.cache.semantic import SimilarAnswers
from gateway.config import (
    Config,
    ExactCacheConfig,
    RouteCacheConfig,
    SemanticCacheConfig,
    load,
)
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.stores.keys import KeyStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenants
from tests.fakes.serving import Gateway, Serve, scripted_config

pytest.importorskip("wordllama")

ASKED = "How do I delete my account in the app?"
SAME = "Please, how do I remove my account in the app?"
CLOSE = "How do I create my account in the app?"
GREEDY: dict[str, Any] = {"temperature": 0}
SAYS: dict[str, Any] = {"steps": [{"text": "In the "}, {"text": "settings."}]}


def config(**settings: Any) -> Config:
    settings = {"holdout": 0.0} | settings
    exact = ExactCacheConfig(requests=settings.pop("requests", "deterministic"))
    cache = RouteCacheConfig(exact, SemanticCacheConfig(**settings))
    plain = scripted_config()
    return replace(plain, routes={"chat": replace(plain.routes["chat"], cache=cache)})


def verifying(gateway: Gateway) -> None:
    backend = gateway.scripted
    backend.capabilities = replace(backend.capabilities, prediction=True)


async def ask(
    gateway: Gateway, text: str, headers: dict[str, str] | None = None, **fields: Any
) -> Any:
    messages = [{"role": "user", "content": text}]
    fields = {"messages": messages} | GREEDY | fields
    response = await gateway.chat(headers=headers, **fields)
    assert response.status_code == 200
    return response


async def source(gateway: Gateway, text: str, **fields: Any) -> str:
    found: str = (await ask(gateway, text, **fields)).headers["x-fewer-cache"]
    return found


def drafts(gateway: Gateway) -> list[str | None]:
    """Of each call that a model got."""
    parameters = [call.request.parameters for call in gateway.scripted.calls]
    return [(each.get("prediction") or {}).get("content") for each in parameters]


async def test_the_same_in_other_words_is_answered_where_the_route_says_so(serve: Serve) -> None:
    gateway = await serve(config(use="answer"), SAYS)
    assert await source(gateway, ASKED) == "miss"
    near = await ask(gateway, SAME)
    assert near.headers["x-fewer-cache"] == "similar"
    assert 0.7 < float(near.headers["x-fewer-similarity"]) < 1
    assert int(near.headers["x-fewer-tokens-saved"]) > 0
    assert near.json()["choices"][0]["message"]["content"] == "In the settings."
    assert await source(gateway, CLOSE) == "miss"
    assert await source(gateway, ASKED) == "hit"
    assert len(gateway.scripted.calls) == 2
    metrics = (await gateway.client.get("/metrics")).text
    assert 'fewer_cache_requests_total{result="similar",route="chat"} 1.0' in metrics


async def test_chinese_is_compared_by_its_own_measure(serve: Serve) -> None:
    gateway = await serve(config(use="answer"), SAYS)
    assert await source(gateway, "北京的护照三十天内能办好吗？") == "miss"
    assert await source(gateway, "请问北京的护照30天内可以办好吗？") == "similar"
    assert await source(gateway, "北京的护照三十天内不能办好吗？") == "miss"
    assert await source(gateway, "上海的护照三十天内能办好吗？") == "miss"


async def test_an_earlier_answer_is_the_draft_of_a_similar_request(serve: Serve) -> None:
    gateway = await serve(config(), SAYS)
    verifying(gateway)
    assert await source(gateway, ASKED) == "miss"
    near = await ask(gateway, "How do I delete my account in the browser?")
    assert near.headers["x-fewer-cache"] == "draft"
    assert "x-fewer-tokens-saved" not in near.headers
    assert drafts(gateway) == [None, "In the settings."]


async def test_a_draft_is_no_part_of_the_request(serve: Serve) -> None:
    """Its answer is kept under the request as it came."""
    gateway = await serve(config(), SAYS)
    verifying(gateway)
    for text in (ASKED, SAME):
        await ask(gateway, text)
    assert await source(gateway, SAME) == "hit"


async def test_what_the_client_predicts_stays(serve: Serve) -> None:
    gateway = await serve(config(), SAYS)
    verifying(gateway)
    await ask(gateway, ASKED)
    own = {"type": "content", "content": "mine"}
    assert await source(gateway, SAME, prediction=own) == "miss"
    assert drafts(gateway) == [None, "mine"]


async def test_without_a_model_that_verifies_there_is_no_draft_and_it_is_said(
    serve: Serve,
) -> None:
    gateway = await serve(config(), SAYS)
    await ask(gateway, ASKED)
    near = await ask(gateway, SAME, {"x-fewer-debug": "true"})
    assert near.headers["x-fewer-cache"] == "miss"
    assert "verifies no prediction" in near.headers["x-fewer-decisions"]
    assert drafts(gateway) == [None, None]


async def test_a_call_of_a_tool_is_no_draft(serve: Serve) -> None:
    calls = {"steps": [{"tool": {"index": 0, "id": "c", "name": "f", "arguments": "{}"}}]}
    gateway = await serve(config(), calls)
    verifying(gateway)
    await ask(gateway, ASKED)
    assert await source(gateway, SAME) == "miss"


VARIANTS: list[dict[str, Any]] = [
    {"max_tokens": 16},
    {"top_p": 0.5},
    {"seed": 1},
    {"response_format": {"type": "json_object"}},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    {"some_new_field": 1},
]


@pytest.mark.parametrize("variant", VARIANTS)
async def test_everything_but_the_last_text_must_be_the_same(
    serve: Serve, variant: dict[str, Any]
) -> None:
    gateway = await serve(config(use="answer"), SAYS)
    await ask(gateway, ASKED)
    assert await source(gateway, SAME, **variant) == "miss"
    assert await source(gateway, ASKED.replace("How", "Please, how"), **variant) == "similar"


async def test_earlier_turns_must_be_the_same(serve: Serve) -> None:
    def turns(system: str, last: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": system}, {"role": "user", "content": last}]

    gateway = await serve(config(use="answer"), SAYS)
    assert await source(gateway, "", messages=turns("Rhyme.", ASKED)) == "miss"
    assert await source(gateway, "", messages=turns("Shout.", SAME)) == "miss"
    assert await source(gateway, "", messages=turns("Rhyme.", SAME)) == "similar"


async def test_two_tenants_are_never_compared(serve: Serve, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite3")
    headers = {
        name: {"authorization": f"Bearer {keys.create(name).text}"} for name in ("ada", "bob")
    }
    gateway = await serve(config(use="answer"), SAYS, Tenants(keys))
    assert await source(gateway, ASKED, headers=headers["ada"]) == "miss"
    assert await source(gateway, SAME, headers=headers["bob"]) == "miss"
    assert await source(gateway, f"{SAME} ", headers=headers["ada"]) == "similar"


async def test_what_clients_forbid_is_not_done(serve: Serve) -> None:
    gateway = await serve(config(use="answer"), SAYS)
    assert await source(gateway, ASKED, headers={"cache-control": "no-store"}) == "miss"
    assert await source(gateway, SAME) == "miss"
    assert await source(gateway, f"{SAME} ", headers={"cache-control": "no-cache"}) == "bypass"
    assert await source(gateway, ASKED, headers={"cache-control": "max-age=0"}) == "miss"


async def test_a_shadow_counts_and_answers_nothing(serve: Serve) -> None:
    gateway = await serve(config(use="answer", mode="shadow"), SAYS)
    await ask(gateway, ASKED)
    near = await ask(gateway, SAME)
    assert near.headers["x-fewer-cache"] == "miss"
    assert float(near.headers["x-fewer-similarity"]) > 0.7
    metrics = (await gateway.client.get("/metrics")).text
    assert 'fewer_cache_shadow_total{result="similar",route="chat"} 1.0' in metrics


async def test_the_control_arm_touches_nothing(serve: Serve) -> None:
    gateway = await serve(config(use="answer", holdout=1.0), SAYS)
    for text in (ASKED, SAME):
        near = await ask(gateway, text)
        assert near.headers["x-fewer-cache"] == "miss"
        assert "x-fewer-similarity" not in near.headers


async def test_a_higher_similarity_can_be_asked_for(serve: Serve) -> None:
    gateway = await serve(config(use="answer", min_similarity=1.0), SAYS)
    await ask(gateway, ASKED)
    assert await source(gateway, SAME) == "miss"


async def test_code_is_never_answered_from_another_text(serve: Serve) -> None:
    gateway = await serve(config(use="answer"), SAYS)
    fenced = "Explain:\n```python\nprint(1)\n```"
    assert await source(gateway, fenced) == "miss"
    assert await source(gateway, f"{fenced}\n") == "miss"


def test_it_says_how_much_it_knows() -> None:
    answers = Answers(MemoryCacheStore(1), Metrics(), 1)
    assert repr(SimilarAnswers(answers)) == (
        "<SimilarAnswers <Neighbours 0 texts in 0 partitions>>"
    )


async def test_old_requests_make_room(serve: Serve) -> None:
    gateway = await serve(config(use="answer", max_entries=1), SAYS)
    for text in (ASKED, CLOSE):
        await ask(gateway, text)
    assert await source(gateway, SAME) == "miss"


async def test_an_answer_that_is_gone_is_no_answer(serve: Serve) -> None:
    """The store forgot it: there is room for one."""
    small = config(use="answer")
    small = replace(small, cache=replace(small.cache, max_mb=1, max_answer_kb=900))
    gateway = await serve(small, {"steps": [{"text": "x" * 1000, "repeat": 600}]})
    for text in (ASKED, CLOSE):
        assert await source(gateway, text) == "miss"
    assert await source(gateway, SAME) == "miss"


def written(tmp_path: Path, semantic: str, exact: str = "active") -> Path:
    path = tmp_path / "fewer.yaml"
    path.write_text(
        "models: {one: {openai: 'http://127.0.0.1:1/v1'}}\n"
        "routes: {chat: {model: one, cache: {exact: {mode: "
        f"{exact}}}, semantic: {{{semantic}}}}}}}}}\n"
    )
    return path


def test_it_rests_on_the_exact_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"routes.chat.cache.semantic.*cache.exact.mode"):
        load(written(tmp_path, "use: answer", exact="shadow"), {})
    loaded = load(written(tmp_path, "mode: disabled", exact="shadow"), {})
    assert loaded.routes["chat"].cache.semantic == SemanticCacheConfig(mode="disabled")


def test_a_missing_embedding_is_found_when_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise SetupError("pip install 'fewer[semantic]'")

    monkeypatch.setattr(embedding, "bundled", missing)
    with pytest.raises(ConfigError, match=r"routes.chat.cache.semantic.*pip install"):
        load(written(tmp_path, "use: draft"), {})
