"""Records as clients meet them, over real sockets: asked for behind the answer, and used after."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends.scripted import ScriptedBackend
from gateway.budgets.limits import Limits
from gateway.config import (
    Config,
    DedupConfig,
    HistoryConfig,
    LimitsConfig,
    RouteConfig,
    RoutingConfig,
    RuleConfig,
    Secret,
)
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from policies.record import told
from tests.fakes.conversations import Message, said, user
from tests.fakes.serving import Gateway, Serve, scripted_config, until

HISTORY = HistoryConfig(1500, 700, "summary", summary_tokens=64, holdout=0.0)
LONG = "word " * 95
"""100 tokens."""

RECORD = "She flies to 北京."
SCRIPT: dict[str, Any] = {"steps": [{"text": RECORD}]}


def config(history: HistoryConfig = HISTORY, **route: Any) -> Config:
    made = scripted_config("one", "two")
    return replace(made, routes={"chat": RouteConfig("one", history=history, **route)})


def talk(turns: int) -> list[Message]:
    made = [each for i in range(turns) for each in (user(f"{LONG}{i}"), said(f"{LONG}{i}"))]
    return [*made, user(LONG + LONG)]


def metric(text: str, line: str) -> float:
    found = [each for each in text.splitlines() if each.startswith(line)]
    return float(found[0].split()[-1]) if found else 0.0


class Talking:
    """A client's turns, and what the models were asked."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    @property
    def backend(self) -> ScriptedBackend:
        return self.gateway.scripted

    async def turn(self, messages: list[Message], key: str = "none") -> str:
        """Answered; the reason that `history` gave."""
        headers = {"x-fewer-debug": "true", "authorization": f"Bearer {key}"}
        response = await self.gateway.chat(messages=messages, headers=headers)
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["content"] == RECORD
        decisions = json.loads(response.headers["x-fewer-decisions"])
        reason: str = next(each["reason"] for each in decisions if each["policy"] == "history")
        return reason

    def has_asked(self, times: int) -> bool:
        """Have models been asked so often, and is all of it over?"""
        return len(self.backend.calls) >= times and not self.backend.running

    async def metrics(self) -> str:
        text: str = (await self.gateway.client.get("/metrics")).text
        return text

    async def finished(self, result: str, count: int = 1) -> None:
        """Wait until so many children have come to this."""
        line = f'fewer_child_generations_total{{result="{result}",route="chat"}}'
        async with asyncio.timeout(10):
            while metric(await self.metrics(), line) < count:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.005)

    @property
    def prompts(self) -> list[list[Message]]:
        return [call.request.messages for call in self.backend.calls]


async def test_a_record_is_written_behind_the_answer_and_told_when_it_is_needed(
    serve: Serve,
) -> None:
    talking = Talking(await serve(config(), SCRIPT))
    assert "a record is asked for" in await talking.turn(talk(7))
    await talking.finished("kept")
    child = talking.backend.calls[1]
    assert child.request.messages[:-1] == talk(7)[: len(child.request.messages) - 1]
    assert (child.request.max_tokens, child.priority) == (64, -1)
    assert child.tenant == "open"
    assert child.salt == talking.backend.calls[0].salt
    assert child.deadline_s is not None
    assert child.id != talking.backend.calls[0].id
    assert "messages left out" in await talking.turn(talk(9))
    cut = talking.prompts[2]
    assert cut[:2] == told(RECORD)
    # Until the next cut the prompts begin with those before.
    await talking.turn(talk(10))
    assert talking.prompts[3][: len(cut) - 1] == cut[:-1]


async def test_tenants_share_no_record(serve: Serve, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.sqlite3")
    keys = [store.create(tenant).text for tenant in ("a", "b")]
    talking = Talking(await serve(config(), SCRIPT, Tenants(store)))
    for number, key in enumerate(keys):
        assert "a record is asked for" in await talking.turn(talk(7), key)
        await until(partial(talking.has_asked, 2 * (number + 1)))
        assert talking.backend.calls[-1].tenant == "ab"[number]
    salts = [call.salt for call in talking.backend.calls]
    assert salts[0] == salts[1] != salts[2] == salts[3]
    store.close()


async def test_nor_is_one_told_to_another_tenant(serve: Serve, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.sqlite3")
    keys = [store.create(tenant).text for tenant in ("a", "b")]
    talking = Talking(await serve(config(), SCRIPT, Tenants(store)))
    await talking.turn(talk(7), keys[0])
    await until(partial(talking.has_asked, 2))
    await talking.turn(talk(9), keys[0])
    assert talking.prompts[-1][:2] == told(RECORD)
    assert "the cut waits for its record" in await talking.turn(talk(9), keys[1])
    assert talk(9) in talking.prompts
    store.close()


@pytest.mark.parametrize(
    "history", [replace(HISTORY, mode="shadow"), replace(HISTORY, holdout=1.0)]
)
async def test_neither_a_shadow_nor_the_control_arm_asks_for_anything(
    serve: Serve, history: HistoryConfig
) -> None:
    talking = Talking(await serve(config(history), SCRIPT))
    for turns in (7, 9, 12):
        assert "a record is asked for" in await talking.turn(talk(turns))
    assert talking.prompts == [talk(7), talk(9), talk(12)]


async def test_a_child_that_fails_fails_no_client_and_is_not_asked_again_at_once(
    serve: Serve,
) -> None:
    broken = [{"fail": {"code": "upstream_failed"}}]
    scripts = [SCRIPT["steps"], broken, SCRIPT["steps"]]
    backends = {name: ScriptedBackend(name, {"scripts": scripts}) for name in ("one", "two")}
    made = config()
    alone = replace(made, models=made.models | {"one": replace(made.models["one"], fallback=())})
    talking = Talking(await serve(alone, backends))
    await talking.turn(talk(7))
    await talking.finished("failed")
    assert "the cut waits for its record" in await talking.turn(talk(9))
    assert len(talking.backend.calls) == 3


async def test_an_answer_without_text_is_no_record(serve: Serve) -> None:
    silence = [{"reasoning": "Hm."}, {"finish": "stop"}]
    silent = {"scripts": [SCRIPT["steps"], silence, SCRIPT["steps"]]}
    talking = Talking(await serve(config(), silent))
    await talking.turn(talk(7))
    await talking.finished("useless")
    assert "the cut waits for its record" in await talking.turn(talk(9))


async def test_a_child_is_under_the_limits_of_whose_it_is(serve: Serve) -> None:
    counted = replace(
        config(limits=Limits(tokens_per_minute=20_000)), limits=LimitsConfig(store=Secret("memory"))
    )
    talking = Talking(await serve(counted, SCRIPT | {"prompt_tokens": 19_900}))
    await talking.turn(talk(7))
    await talking.finished("failed")
    assert len(talking.backend.calls) == 1


async def test_a_child_that_breaks_off_in_the_middle_is_no_record(serve: Serve) -> None:
    broken = {"scripts": [SCRIPT["steps"], [{"text": "She"}, {"fail": {"code": "cancelled"}}]]}
    backends = {name: ScriptedBackend(name, broken) for name in ("one", "two")}
    talking = Talking(await serve(config(), backends))
    await talking.turn(talk(7))
    await talking.finished("cancelled")


async def test_an_answer_that_fails_has_no_child(serve: Serve) -> None:
    gateway = await serve(config(), {"steps": [{"fail": {"code": "internal_error"}}]})
    assert (await gateway.chat(messages=talk(7))).status_code == 500
    assert len(gateway.scripted.calls) == 1


async def test_a_model_of_its_own_may_write_the_record(serve: Serve) -> None:
    backends = {name: ScriptedBackend(name, SCRIPT) for name in ("one", "two")}
    talking = Talking(await serve(config(replace(HISTORY, model="two")), backends))
    await talking.turn(talk(7))
    await talking.finished("kept")
    assert len(backends["one"].calls) == len(backends["two"].calls) == 1


async def test_else_the_one_that_has_answered_writes_it(serve: Serve) -> None:
    """The conversation is in its prefix cache, not in that of the route's own model."""
    backends = {name: ScriptedBackend(name, SCRIPT) for name in ("one", "two")}
    routing = RoutingConfig(rules=(RuleConfig("two"),), holdout=0.0)
    talking = Talking(await serve(config(route=routing), backends))
    await talking.turn(talk(7))
    await talking.finished("kept")
    assert (len(backends["one"].calls), len(backends["two"].calls)) == (0, 2)


async def test_the_prompt_of_a_child_is_made_as_that_of_its_parent(serve: Serve) -> None:
    pasted = "\n\n".join(["Look at this.", "```", LONG, "```", "What is it?"])
    messages = [user(pasted), said("It is text."), user(pasted + "?"), said("Again."), *talk(6)]
    talking = Talking(await serve(config(dedup=DedupConfig(holdout=0.0)), SCRIPT))
    await talking.turn(messages)
    await talking.finished("kept")
    parent, child = talking.prompts
    assert parent[2] != messages[2]
    assert child[:-1] == parent[: len(child) - 1]


async def test_tiers_are_told_facts_behind_the_turn_that_was_the_last(serve: Serve) -> None:
    text = "She flies.\nFACTS:\n- name: Ana\n- 城市: 北京"
    history = replace(HISTORY, strategy="tiered", facts=4, low_tokens=800)
    gateway = await serve(config(history), {"steps": [{"text": text}]})
    await gateway.chat(messages=talk(7))
    await until(lambda: len(gateway.scripted.calls) == 2)
    await gateway.chat(messages=talk(9))
    last = gateway.scripted.calls[2].request.messages
    (place,) = (
        i for i, each in enumerate(last) if "- name: Ana\n- 城市: 北京\n" in str(each["content"])
    )
    assert last[place + 2 :] == talk(9)[-len(last[place + 2 :]) :]
    assert last[-1] == user(LONG + LONG)


async def test_the_drain_ends_children_and_begins_none(serve: Serve) -> None:
    slow = {"scripts": [SCRIPT["steps"], [{"hang": True}]]}
    backends = {name: ScriptedBackend(name, slow) for name in ("one", "two")}
    talking = Talking(await serve(config(), backends))
    await talking.turn(talk(7))
    await until(lambda: bool(talking.backend.running))
    talking.gateway.server.lifespan.state["drain"].start()
    await until(lambda: len(talking.backend.cancelled) == 1)


async def test_a_child_is_booked_on_its_conversation_as_the_policys_own(serve: Serve) -> None:
    talking = Talking(await serve(config(replace(HISTORY, holdout=1e-6)), SCRIPT))
    await talking.turn(talk(7))
    await talking.finished("kept")
    report = (await talking.gateway.client.get("/v1/ledger")).json()
    (route,) = report["routes"]
    assert (route["requests"], route["children"]) == (1, 1)
    assert route["completion_tokens"] == 2
    decisions = {row["policy"]: row["requests"] for row in report["policies"]}
    assert decisions["history"] == 1
    (arms,) = (each["conversations"] for each in report["savings"] if each["policy"] == "history")
    assert arms == {"control": 0, "treated": 1}
    metrics = await talking.metrics()
    assert 'fewer_generation_tokens_total{model="one",route="chat:history"} 1.0' in metrics
