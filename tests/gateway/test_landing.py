"""Soft limits that the gateway sees to. What must never happen: landing before the limit, a tool
call cut off, an upstream that goes on for nobody, tokens that are not told of."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.frames import Event, StreamEvent, TokenLogprob, Usage
from gateway.attempts import Attempts
from gateway.backends.base import Call, Capabilities, Stream
from gateway.backends.engine import EngineBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.scripted import ScriptedBackend
from gateway.config import BudgetConfig, ModelConfig
from gateway.estimate import prompt_tokens
from gateway.landing import LandingStream
from tests.fakes.calls import chat_call, drain, failure, finishes, text_of
from tests.fakes.engine import MODEL, TOKEN, fake_engine, serve
from tests.fakes.serving import CHAT_BODY, Serve, scripted_config
from tests.fakes.upstream import Reply, ScriptedUpstream, Until, chat_chunk, sse, usage_chunk

FOUR = ["One", ". ", "Two", ". ", "Three", ". ", "Four", "."]


def steps(*texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"text": text, "choice": 0} | more for text in texts]


def usage_of(events: list[StreamEvent]) -> Usage:
    last = events[-1]
    assert isinstance(last, Event)
    assert last.usage is not None
    return last.usage


def landed(events: list[StreamEvent]) -> dict[int, bool]:
    return {e.choice: e.landed for e in events if isinstance(e, Event) and e.finish is not None}


class Landing:
    """A call with a soft limit over a script, as it comes out."""

    def __init__(self, script: list[dict[str, Any]], soft: int, **fields: Any) -> None:
        self.backend = ScriptedBackend("one", {"steps": script})
        self.call = chat_call(soft_max_tokens=soft, **fields)
        self.soft = soft

    async def events(self) -> list[StreamEvent]:
        inner = await self.backend.generate(self.call)
        events = await drain(LandingStream(self.call, self.soft, inner))
        assert not self.backend.running
        return events


async def test_it_lands_cancels_the_rest_and_says_what_came() -> None:
    landing = Landing([{"accepted": 7}, *steps(*FOUR), {"hang": True}], 3)
    events = await landing.events()
    assert text_of(events) == "One. Two. "
    assert (finishes(events), landed(events)) == ({0: "length"}, {0: True})
    # What is not passed on has come all the same, and was produced.
    assert usage_of(events) == Usage(7, len(FOUR), estimated=True)
    assert list(landing.backend.cancelled) == ["r1"]


@pytest.mark.parametrize(
    ("soft", "text"), [(1, "One. "), (2, "One. "), (3, "One. Two. "), (5, "One. Two. Three. ")]
)
async def test_an_end_counts_that_is_in_the_delta_at_the_limit(soft: int, text: str) -> None:
    events = await Landing(steps(*FOUR), soft).events()
    assert (text_of(events), landed(events)) == (text, {0: True})


async def test_the_prompt_is_estimated_where_nobody_counted_it() -> None:
    landing = Landing([*steps(*FOUR), {"hang": True}], 3)
    assert usage_of(await landing.events()).prompt_tokens == prompt_tokens(landing.call.request)


async def test_an_answer_that_ends_by_itself_is_left_alone() -> None:
    landing = Landing(steps(*FOUR), 7)
    events = await landing.events()
    assert (text_of(events), finishes(events)) == ("".join(FOUR), {0: "stop"})
    assert landed(events) == {0: False}
    assert usage_of(events) == Usage(1, 8)
    assert not landing.backend.cancelled


@pytest.mark.parametrize(("cap", "clean"), [(8, True), (7, False)])
async def test_at_the_cap_it_has_landed_if_it_stands_at_an_end(cap: int, clean: bool) -> None:
    events = await Landing(steps(*FOUR, " More"), 7, max_tokens=cap).events()
    assert (finishes(events), landed(events)) == ({0: "length"}, {0: clean})
    assert not usage_of(events).estimated


async def test_open_code_goes_on() -> None:
    code = ["```", "\n", "a. B", "\n", "```", "\n", "Ok"]
    events = await Landing([*steps(*code), {"hang": True}], 2).events()
    assert (text_of(events), landed(events)) == ("```\na. B\n```", {0: True})


async def test_a_choice_that_calls_a_tool_is_not_cut_off() -> None:
    call = {"index": 0, "id": "c", "name": "f", "arguments": '{"a": "One. Two"}'}
    script = [*steps("I look", ". "), {"tool": call, "choice": 0}, *steps(*FOUR)]
    landing = Landing(script, 3)
    events = await landing.events()
    assert text_of(events) == "I look. One. Two. Three. Four."
    assert not landing.backend.cancelled


async def test_reasoning_counts_and_has_no_place_to_land() -> None:
    thoughts = [{"reasoning": text, "choice": 0} for text in FOUR]
    events = await Landing([*thoughts, *steps(*FOUR), {"hang": True}], 5).events()
    assert text_of(events, kind="reasoning") == "".join(FOUR)
    assert text_of(events) == "One. "


async def test_reasoning_in_a_room_of_its_own_does_not_count() -> None:
    thoughts = [{"reasoning": text, "choice": 0} for text in FOUR]
    script = [*thoughts, *steps(*FOUR), {"hang": True}]
    landing = Landing(script, 3, max_tokens=20, reasoning_tokens=9)
    events = await landing.events()
    assert text_of(events) == "One. Two. "
    assert usage_of(events).completion_tokens == 2 * len(FOUR)


async def test_choices_land_one_by_one_and_the_last_cancels() -> None:
    script = [{"text": text} for text in FOUR[:4]] + steps(*FOUR[4:])
    script += [{"text": "Last", "choice": 1}, *steps(" never"), {"hang": True}]
    landing = Landing(script, 4, n=2)
    events = await landing.events()
    assert (text_of(events, 0), text_of(events, 1)) == ("One. Two. ", "One. Two. ")
    assert landed(events) == {0: True, 1: True}
    # Nothing is passed on of what came for the first one meanwhile, but it was produced.
    assert usage_of(events).completion_tokens == 9 + 5
    assert list(landing.backend.cancelled) == ["r1"]


class Batches(Stream):
    """Gives what it was given, a batch at a time."""

    def __init__(self, *batches: list[StreamEvent]) -> None:
        self.batches = list(batches)

    async def receive(self) -> list[StreamEvent]:
        return self.batches.pop(0) if self.batches else []

    async def aclose(self) -> None:
        self.batches.clear()


async def test_a_batch_of_which_nothing_is_passed_on_is_no_end() -> None:
    said: list[StreamEvent] = [Event("r1", text=text, tokens=1) for text in FOUR]
    other = Event("r1", 1, text="Other", tokens=1)
    last = Event("r1", usage=Usage(9, 9))
    stream = LandingStream(chat_call(n=2), 3, Batches(said[:6], said[6:], [other], [last]))
    assert text_of(await stream.receive()) == "One. Two. "
    assert await stream.receive() == [other]
    assert await stream.receive() == [last]
    assert await stream.receive() == []


async def test_where_all_have_ended_upstream_the_usage_is_the_upstreams() -> None:
    script = [{"text": text} for text in FOUR[:4]] + steps(*FOUR[4:], " never")
    script += [{"finish": "stop", "choice": 0}, {"finish": "stop", "choice": 1}]
    landing = Landing([*script, {"usage": {"prompt_tokens": 9, "completion_tokens": 99}}], 4, n=2)
    events = await landing.events()
    assert landed(events) == {0: True, 1: False}
    assert usage_of(events) == Usage(9, 99)
    assert not landing.backend.cancelled


async def test_of_a_delta_of_many_tokens_the_tokens_are_estimated() -> None:
    text = "The first sentence is here. The second one is here too. The third one is not over"
    events = await Landing([*steps(text), {"hang": True}], 8).events()
    assert text_of(events) == "The first sentence is here. The second one is here too."
    assert 12 < usage_of(events).completion_tokens < 30


async def test_logprobs_count_and_go_with_their_tokens() -> None:
    tokens = ["The", " first", " sentence", ".", " The", " second", ".", " Third"]
    logprobs = [{"token": token, "id": 1, "logprob": -0.5} for token in tokens]
    step = {"text": "".join(tokens), "logprobs": logprobs, "tokens": 8, "choice": 0}
    events = await Landing([step, {"hang": True}], 6).events()
    first = events[0]
    assert isinstance(first, Event)
    assert first.text == "The first sentence. The second."
    assert first.logprobs == [TokenLogprob(token, 1, -0.5) for token in tokens[:7]]
    assert usage_of(events).completion_tokens == 8


async def test_a_failure_passes() -> None:
    events = await Landing([*steps("Hi"), {"fail": {"code": "unavailable"}}], 1).events()
    assert failure(events).code == "unavailable"
    assert text_of(events) == "Hi"


async def test_closing_early_cancels() -> None:
    landing = Landing([*steps("Hi"), {"hang": True}], 1)
    stream = LandingStream(landing.call, 1, await landing.backend.generate(landing.call))
    await stream.receive()
    await stream.aclose()
    assert list(landing.backend.cancelled) == ["r1"]
    assert await stream.receive() == []


@pytest.mark.parametrize("capable", [True, False])
async def test_a_backend_that_lands_by_itself_is_left_to_it(capable: bool) -> None:
    landing = Landing(steps(*FOUR), 3)
    landing.backend.capabilities = Capabilities(landing=capable)
    attempts = Attempts(
        landing.call, ["one"], {"one": landing.backend},
        {"one": ModelConfig(openai="http://x/v1")},
        lambda request, _: request, lambda _: None,
    )  # fmt: skip
    events = await drain(await attempts.start())
    assert landed(events) == {0: not capable}
    assert EngineBackend("small", "ws://127.0.0.1:1", "t").capabilities.landing


async def test_an_upstream_hears_at_once_that_the_rest_is_not_wanted() -> None:
    never = Until()
    chunks = sse(chat_chunk(""), *map(chat_chunk, FOUR[:5]))
    async with ScriptedUpstream([Reply([*chunks, never, *sse(usage_chunk(), "[DONE]")])]) as server:
        backend = OpenAIBackend("large", server.url, model="m")
        call = chat_call(soft_max_tokens=3, max_tokens=50)
        events = await drain(LandingStream(call, 3, await backend.generate(call)))
        received = await server.request()
        await received.left.wait()
        await backend.aclose()
    assert "soft_max_tokens" not in received.json
    assert text_of(events) == "One. Two. "
    assert usage_of(events).estimated


async def test_our_engine_and_the_gateway_land_at_the_same_places() -> None:
    letters = [ord(letter) for letter in "aB. \n-1`"]
    lands = 0
    async with serve(fake_engine()) as served:
        link = EngineBackend("small", served.link, TOKEN)
        http = OpenAIBackend("small", f"{served.http}/v1", model=MODEL, api_key=TOKEN)
        for seed in range(20):
            parameters = {"allowed_token_ids": letters, "seed": seed, "temperature": 1}
            call: Call = chat_call(
                f"r{seed}", max_tokens=80, soft_max_tokens=30, n=2, parameters=parameters
            )
            there = await drain(await link.generate(call))
            here = await drain(LandingStream(call, 30, await http.generate(call)))
            for choice in range(2):
                assert text_of(here, choice).rstrip() == text_of(there, choice).rstrip()
            assert landed(here) == landed(there)
            lands += sum(landed(here).values())
        await link.aclose()
        await http.aclose()
    assert lands > 10


SOFT = BudgetConfig(10, soft=0.3, holdout=0.0)


def soft_config() -> Any:
    config = scripted_config()
    return replace(config, routes={"chat": replace(config.routes["chat"], budget=SOFT)})


@pytest.mark.parametrize("stream", [True, False])
async def test_over_http_the_client_learns_that_it_has_landed(serve: Serve, stream: bool) -> None:
    gateway = await serve(soft_config(), {"steps": [{"text": text} for text in FOUR]})
    response = await gateway.chat(stream=stream)
    assert "soft limit: 3" in response.headers["x-fewer-decisions"]
    assert '"landed":true' in response.text.replace(": ", ":")
    assert '"finish_reason":"length"' in response.text.replace(": ", ":")
    assert "Three" not in response.text


async def test_a_landed_answer_is_kept_as_it_was_given(serve: Serve) -> None:
    gateway = await serve(soft_config(), {"steps": [{"text": text} for text in FOUR]})
    first, second = [await gateway.chat(temperature=0) for _ in range(2)]
    assert second.headers["x-fewer-cache"] == "hit"
    assert second.json()["choices"] == first.json()["choices"]
    assert second.json()["usage"] == first.json()["usage"]
    other = await gateway.chat(temperature=0, soft_max_tokens=1)
    assert other.headers["x-fewer-cache"] == "miss"
    assert other.json()["choices"][0]["message"]["content"] == "One. "


async def test_a_soft_limit_that_is_no_count_is_refused(serve: Serve) -> None:
    gateway = await serve()
    for wrong in (0, -1, "5", 1.5):
        response = await gateway.client.post(
            "/v1/chat/completions", json=CHAT_BODY | {"soft_max_tokens": wrong}
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "soft_max_tokens"
