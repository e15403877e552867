"""Backends from a configuration: which kind for which model, where, and with whose key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.protocol.errors import ConfigError, ModelNotFound
from engine.protocol.frames import Event, Events, Generate, Usage
from gateway.backends.pool import Backends, Engines
from gateway.config import Config, ModelConfig, Secret
from tests.fakes.calls import chat_call, drain, text_of
from tests.fakes.engine_link import TOKEN, FakeEngine
from tests.fakes.upstream import Reply, ScriptedUpstream, chat_stream


def backends(engine_port: int = 1, token: str = TOKEN, **models: ModelConfig) -> Backends:
    return Backends.from_config(Config(models=models), engine_port, token)


async def test_an_upstream_with_its_own_name_and_key() -> None:
    async with ScriptedUpstream([Reply(chat_stream("hi"))]) as upstream:
        pool = backends(
            large=ModelConfig(openai=upstream.url, model="theirs", api_key=Secret("sk-1")),
            plain=ModelConfig(openai=upstream.url, images="refused", max_concurrency=3),
        )
        for name in ("large", "plain"):
            assert text_of(await drain(await pool.get(name).generate(chat_call()))) == "hi"
        assert [r.json["model"] for r in upstream.requests] == ["theirs", "plain"]
        assert upstream.requests[0].headers["authorization"] == "Bearer sk-1"
        assert "authorization" not in upstream.requests[1].headers
        assert [pool.get(name).capabilities.images for name in pool.all()] == [True, False]
        assert repr(pool.get("plain")) == "<LimitedBackend plain 0/3 running, 0 waiting>"
        await pool.aclose()
        assert not await pool.get("plain").ready()


async def test_engines_of_ours_by_port_and_by_address() -> None:
    async with FakeEngine() as first:
        pool = backends(
            first.port - 1,
            zero=ModelConfig(gguf="zero"),
            small=ModelConfig(gguf="small"),
            remote=ModelConfig(engine=first.url),
            keyed=ModelConfig(engine=first.url, api_key=Secret("wrong")),
        )
        for name in ("small", "remote"):
            stream = await pool.get(name).generate(chat_call(name))
            await first.taken(Generate)
            await first.say(Events([Event(name, text="hi", finish="stop", usage=Usage(1, 1))]))
            assert text_of(await drain(stream)) == "hi"
        assert first.connections == 2
        assert not await pool.get("keyed").ready()
        await pool.aclose()


async def test_scripts(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"steps": [{"text": "hi"}]}))
    pool = backends(scripted=ModelConfig(scripted=path))
    assert text_of(await drain(await pool.get("scripted").generate(chat_call()))) == "hi"
    assert list(pool.all()) == ["scripted"]
    assert repr(pool) == "<Backends <LimitedBackend scripted 0/256 running, 0 waiting>>"
    await pool.aclose()
    with pytest.raises(ConfigError, match="cannot read the script"):
        backends(scripted=ModelConfig(scripted=tmp_path / "none.json"))


def test_the_token_of_the_engines_is_in_no_repr() -> None:
    assert repr(Engines({"a": 1}, "token")) == "Engines({'a': 1}, '***')"


async def test_an_unknown_model() -> None:
    with pytest.raises(ModelNotFound, match="'nope'"):
        backends().get("nope")
