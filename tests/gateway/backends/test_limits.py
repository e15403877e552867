"""Concurrency limits: who runs, who waits, in which order, and that every slot comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.protocol.errors import DeadlineExceeded, Overloaded, Unavailable
from gateway.backends.base import Call, Stream
from gateway.backends.limits import LimitedBackend
from gateway.backends.scripted import ScriptedBackend
from policies.request import Request
from tests.fakes.calls import HELLO, chat_call, drain, text_of

HANG: dict[str, Any] = {"steps": [{"hang": True}]}


def limited(total: int, script: dict[str, Any] = HANG, **options: Any) -> LimitedBackend:
    return LimitedBackend(ScriptedBackend("small", script), total, **options)


def of_tenant(tenant: str, id: str) -> Call:
    return Call(id, Request("chat", "chat", messages=HELLO), tenant=tenant)


async def start(backend: LimitedBackend, *calls: Call) -> list[asyncio.Task[Stream]]:
    """Tasks that ask for a stream each, in this order, as far as they get."""
    tasks = []
    for call in calls:
        tasks.append(asyncio.create_task(backend.generate(call)))
        await asyncio.sleep(0)
    return tasks


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def status(backend: LimitedBackend) -> str:
    return repr(backend).removeprefix("<LimitedBackend small ").removesuffix(">")


async def test_calls_beyond_the_limit_wait_for_a_slot() -> None:
    backend = limited(2)
    first, second = [await backend.generate(chat_call(f"r{number}")) for number in range(2)]
    (third,) = await start(backend, chat_call("r3"))
    assert repr(backend) == "<LimitedBackend small 2/2 running, 1 waiting>"
    await first.aclose()
    stream = await third
    assert status(backend) == "2/2 running, 0 waiting"
    await stream.aclose()
    await second.aclose()
    await second.aclose()
    assert status(backend) == "0/2 running, 0 waiting"


async def test_the_terminal_frees_the_slot_before_the_stream_is_closed() -> None:
    backend = limited(1, {"steps": [{"text": "hi"}]})
    stream = await backend.generate(chat_call())
    assert text_of(await stream.receive()) == "hi"
    assert status(backend) == "0/1 running, 0 waiting"
    await stream.aclose()
    assert status(backend) == "0/1 running, 0 waiting"


async def test_tenants_take_turns() -> None:
    backend = limited(1, max_waiting=10)
    running = await backend.generate(of_tenant("a", "a0"))
    waiting = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2"), ("c", "c1")]
    tasks = await start(backend, *(of_tenant(tenant, id) for tenant, id in waiting))
    for _ in tasks:
        await running.aclose()
        await turns()
        (running,) = [t.result() for t in tasks if t.done() and is_open(t.result())]
    inner = backend.inner
    assert isinstance(inner, ScriptedBackend)
    assert [call.id for call in inner.calls] == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]


def is_open(stream: Any) -> bool:
    holds: bool = stream._holds
    return holds


async def test_newcomers_do_not_overtake() -> None:
    backend = limited(1)
    first = await backend.generate(chat_call("r1"))
    (second,) = await start(backend, chat_call("r2"))
    await first.aclose()
    (third,) = await start(backend, chat_call("r3"))
    await turns()
    assert (second.done(), third.done()) == (True, False)
    third.cancel()


async def test_a_full_queue_refuses_at_once_with_a_time() -> None:
    backend = limited(1, max_waiting=1)
    await backend.generate(chat_call("r1"))
    (second,) = await start(backend, chat_call("r2"))
    with pytest.raises(Overloaded, match="busy with 1 requests") as refused:
        await backend.generate(chat_call("r3"))
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s >= 1
    assert status(backend) == "1/1 running, 1 waiting"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert status(backend) == "1/1 running, 0 waiting"


async def test_waiting_ends_with_patience_or_with_the_deadline() -> None:
    backend = limited(1, max_wait_s=0.02)
    await backend.generate(chat_call("r1"))
    refused = await asyncio.gather(
        *(backend.generate(chat_call(f"r{n}")) for n in range(2, 5)), return_exceptions=True
    )
    assert [type(error) for error in refused] == [Overloaded] * 3
    deadline_s = asyncio.get_running_loop().time() + 0.005
    with pytest.raises(DeadlineExceeded, match="while it waited"):
        await backend.generate(chat_call("r9", deadline_s=deadline_s))
    assert status(backend) == "1/1 running, 0 waiting"


async def test_a_slot_that_comes_as_its_owner_leaves_is_not_lost() -> None:
    backend = limited(1)
    first = await backend.generate(chat_call("r1"))
    second, third = await start(backend, chat_call("r2"), chat_call("r3"))
    await first.aclose()
    second.cancel()
    await turns()
    assert second.cancelled()
    assert third.done()
    await (await third).aclose()
    assert status(backend) == "0/1 running, 0 waiting"


async def test_a_call_that_does_not_start_frees_its_slot() -> None:
    backend = limited(1, {"steps": [{"refuse": {"code": "unavailable"}}]})
    for _ in range(3):
        with pytest.raises(Unavailable):
            await backend.generate(chat_call())
    assert status(backend) == "0/1 running, 0 waiting"


async def test_two_hundred_streams_cut_anywhere_leave_nothing() -> None:
    backend = limited(5, {"steps": [{"text": "a"}, {"hang": True}]}, max_waiting=1000)

    async def client(number: int) -> None:
        stream = await backend.generate(of_tenant(f"t{number % 7}", f"r{number}"))
        try:
            await stream.receive()
            await turns(number % 4)
        finally:
            await stream.aclose()

    clients = [asyncio.create_task(client(number)) for number in range(200)]
    for number, task in enumerate(clients):
        if number % 3 == 0:
            await turns(number % 5)
            task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    assert status(backend) == "0/5 running, 0 waiting"
    inner = backend.inner
    assert isinstance(inner, ScriptedBackend)
    assert inner.running == frozenset()


async def test_embeddings_take_a_slot_and_the_rest_passes_through() -> None:
    backend = limited(1, {"steps": [], "embedding": {"data": []}})
    assert await backend.embed({"input": "x"}) == {"data": []}
    assert status(backend) == "0/1 running, 0 waiting"
    assert backend.capabilities.embeddings
    assert await backend.ready()
    await backend.aclose()
    assert not await backend.ready()


async def test_streams_are_passed_on_whole() -> None:
    backend = limited(1, {"steps": [{"text": "a"}, {"delay_s": 0.001, "text": "b"}]})
    assert text_of(await drain(await backend.generate(chat_call()))) == "ab"
