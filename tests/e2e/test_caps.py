"""How long an answer may be, and that it says so when it was cut: the real model, every way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.stack import Stack, faces

pytestmark = pytest.mark.model

HERBS = "List forty garden herbs with one line each."


def lengths(stack: Stack, **fields: Any) -> set[tuple[str, int]]:
    """Finish reason and completion tokens, whole and streamed."""
    whole = stack.ask(HERBS, **fields)
    *_, finish, usage = stack.stream(HERBS, stream_options={"include_usage": True}, **fields)
    return {
        (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]),
        (finish["choices"][0]["finish_reason"], usage["usage"]["completion_tokens"]),
    }


def test_an_answer_that_was_cut_says_so(stack: Stack) -> None:
    """B05: streamed and not, over SSE and over the WebSocket, and from the engine alone."""
    for face in faces(stack):
        assert lengths(stack, max_tokens=5, **face) == {("length", 5)}


@pytest.mark.parametrize("route", ["short", "short-over-sse"])
def test_an_answer_that_the_route_cut_says_so(stack: Stack, route: str) -> None:
    """B05, with the cap from the route."""
    assert lengths(stack, model=route) == {("length", 5)}


@pytest.mark.parametrize("over", ["", "-over-sse"])
@pytest.mark.parametrize(
    ("route", "fields", "tokens"),
    [
        ("chat", {"max_completion_tokens": 7}, 7),
        ("chat", {"max_completion_tokens": 7, "max_tokens": 50}, 7),
        ("short", {"max_completion_tokens": 7, "max_tokens": 50}, 5),
        ("short", {"max_tokens": 50}, 5),
    ],
)
def test_the_tightest_cap_holds(
    stack: Stack, over: str, route: str, fields: dict[str, Any], tokens: int
) -> None:
    """B21."""
    assert lengths(stack, model=route + over, **fields) == {("length", tokens)}


def test_the_engine_alone_knows_the_newer_name(stack: Stack) -> None:
    """B21, without a gateway."""
    for fields in ({}, {"max_tokens": 50}):
        found = lengths(stack, at=stack.engine, model="small", max_completion_tokens=7, **fields)
        assert found == {("length", 7)}


def test_a_cap_of_the_route_gives_way_to_a_long_prompt(stack: Stack) -> None:
    """The client asked for no length: what the context leaves will do. Its own wish is refused."""
    long = " garden" * 400
    usage = stack.ask(long, ignore_eos=True)["usage"]
    assert usage["total_tokens"] == 512
    assert stack.refusal(long, max_tokens=200)["code"] == "context_length_exceeded"


def test_stop_strings_leave_no_empty_deltas(stack: Stack) -> None:
    """R03: text is held back while it may become the stop string, and nothing is sent for it."""
    for face in faces(stack):
        chunks = list(stack.stream(max_tokens=12, stop=["Tokyo", "\n\n\n"], **face))
        first, *texts, last = (chunk["choices"][0] for chunk in chunks)
        assert first["delta"]["role"] == "assistant"
        assert all(choice["delta"]["content"] for choice in texts)
        assert last["finish_reason"] == "stop"
        assert "Tokyo" not in "".join(choice["delta"]["content"] for choice in texts)
