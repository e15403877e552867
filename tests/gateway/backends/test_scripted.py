"""The scripted backend: what a script can say, and what is remembered of its calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from engine.protocol.errors import ConfigError, InvalidRequest, Overloaded
from engine.protocol.frames import Accepted, Event, Failed, Started, ToolDelta, Usage
from gateway.backends.script import Script
from gateway.backends.scripted import ScriptedBackend
from tests.fakes.calls import chat_call as call
from tests.fakes.calls import drain, text_of


async def test_plays_text_and_completes_the_stream() -> None:
    backend = ScriptedBackend("s", {"steps": [{"text": "Hel"}, {"text": "lo"}], "prompt_tokens": 3})
    events = await drain(await backend.generate(call()))
    assert text_of(events) == "Hello"
    assert events[-2:] == [
        Event("r1", finish="stop"),
        Event("r1", usage=Usage(prompt_tokens=3, completion_tokens=2)),
    ]
    assert backend.running == frozenset()
    assert not backend.cancelled


async def test_every_choice_hears_a_step_without_a_choice() -> None:
    backend = ScriptedBackend("s", {"steps": [{"text": "a"}, {"text": "b", "choice": 1}]})
    events = await drain(await backend.generate(call(n=2)))
    assert (text_of(events, 0), text_of(events, 1)) == ("a", "ab")


async def test_the_output_budget_ends_a_choice_with_length() -> None:
    backend = ScriptedBackend("s", {"steps": [{"text": "x ", "repeat": 40}]})
    events = await drain(await backend.generate(call(max_tokens=5)))
    assert text_of(events) == "x " * 5
    assert [e.finish for e in events if isinstance(e, Event) and e.finish] == ["length"]
    assert isinstance(events[-1], Event)
    assert events[-1].usage == Usage(prompt_tokens=1, completion_tokens=5)


async def test_scripts_are_played_in_turn_and_the_last_stays() -> None:
    backend = ScriptedBackend("s", {"scripts": [[{"text": "1"}], [{"text": "2"}]]})
    answers = [text_of(await drain(await backend.generate(call(str(i))))) for i in range(3)]
    assert answers == ["1", "2", "2"]


async def test_refusals_raise_and_failures_arrive_in_the_stream() -> None:
    backend = ScriptedBackend(
        "s",
        {
            "scripts": [
                [{"refuse": {"code": "overloaded", "retry_after_s": 2}}],
                [{"accepted": 7}, {"text": "a"}, {"fail": {"code": "unavailable"}}],
            ]
        },
    )
    with pytest.raises(Overloaded) as refused:
        await backend.generate(call())
    assert refused.value.retry_after_s == 2
    events = await drain(await backend.generate(call("r2")))
    assert events[0] == Accepted("r2", 7)
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "unavailable"


async def test_closing_early_is_a_cancellation() -> None:
    backend = ScriptedBackend("s", {"steps": [{"text": "a"}, {"hang": True}]})
    stream = await backend.generate(call())
    assert text_of(await stream.receive()) == "a"
    waiting = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    await stream.aclose()
    await stream.aclose()
    assert await waiting == []
    assert list(backend.cancelled) == ["r1"]
    assert backend.running == frozenset()


async def test_the_deadline_ends_a_hanging_script() -> None:
    backend = ScriptedBackend("s", {"steps": [{"hang": True}]})
    now = asyncio.get_running_loop().time()
    events = await drain(await backend.generate(call(deadline_s=now + 0.01)))
    assert [e.code for e in events if isinstance(e, Failed)] == ["deadline_exceeded"]


async def test_delays_run_by_the_clock_and_not_by_the_reader() -> None:
    backend = ScriptedBackend("s", {"steps": [{"delay_s": 0.01, "text": "a", "repeat": 5}]})
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    stream = await backend.generate(call())
    first = await stream.receive()
    assert text_of(first) == "a"
    assert loop.time() - began_s >= 0.01
    await drain(stream)
    assert 0.05 <= loop.time() - began_s < 1


async def test_closing_the_backend_ends_its_streams_with_an_error() -> None:
    backend = ScriptedBackend("s", {"steps": [{"hang": True}]})
    stream = await backend.generate(call())
    waiting = asyncio.create_task(drain(stream))
    await asyncio.sleep(0)
    await backend.aclose()
    (failed,) = await waiting
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert not await backend.ready()


async def test_embeddings_only_where_the_script_has_one() -> None:
    answer = {"object": "list", "data": []}
    backend = ScriptedBackend("s", {"steps": [], "embedding": answer})
    assert backend.capabilities.embeddings
    assert await backend.embed({"input": "x"}) == answer
    assert list(backend.embeddings) == [{"input": "x"}]
    with pytest.raises(InvalidRequest, match="makes no embeddings"):
        await ScriptedBackend("t", {"steps": []}).embed({"input": "x"})


async def test_the_status_line() -> None:
    backend = ScriptedBackend("s", {"steps": [{"hang": True}]})
    stream = await backend.generate(call())
    assert repr(backend) == "<ScriptedBackend s 1 running, 1 calls>"
    await stream.aclose()
    assert repr(backend) == "<ScriptedBackend s 0 running, 1 calls>"


def test_scripts_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"steps": [{"text": "a"}]}))
    assert Script.read(path).nth(9)[0].text == "a"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not a script"),
        ('{"steps": [{"txt": "a"}]}', "txt"),
        ('{"steps": [], "scripts": [[]]}', "exactly one"),
        ("{}", "exactly one"),
    ],
)
def test_a_wrong_script_names_the_file(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=complaint) as wrong:
        ScriptedBackend("s", path)
    assert str(path) in wrong.value.message


def test_a_missing_script_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        ScriptedBackend("s", tmp_path / "none.json")


async def test_every_kind_of_step() -> None:
    steps = [
        {"accepted": 3},
        {"started": 2},
        {"reasoning": "hm", "text": "a", "tool": {"index": 0, "id": "c1", "name": "f"}},
        {"finish": "tool_calls"},
        {"text": "too late", "finish": "stop"},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 9}},
    ]
    backend = ScriptedBackend("s", Script.of({"steps": steps}))
    events = await drain(await backend.generate(call()))
    assert events == [
        Accepted("r1", 3),
        Started("r1", 2, 0.0),
        Event("r1", kind="reasoning", text="hm", tokens=1),
        Event("r1", text="a", tokens=1),
        Event("r1", kind="tool", tokens=1, tool=ToolDelta(0, "c1", "f")),
        Event("r1", finish="tool_calls"),
        Event("r1", usage=Usage(3, 9)),
    ]
