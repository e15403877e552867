"""The two ways from the gateway to our engine, WebSocket and SSE: the same answers by both."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.stack import Stack, content

pytestmark = pytest.mark.model

ROUTES = ("chat", "chat-over-sse")
QUESTIONS = ("用一句话介绍北京。", "Write a haiku about the sea 🌊.")


@pytest.mark.parametrize("question", QUESTIONS)
def test_both_links_and_the_engine_alone_say_the_same(stack: Stack, question: str) -> None:
    asked: dict[str, Any] = {"max_tokens": 10}
    alone = stack.ask(question, at=stack.engine, model="small", **asked)
    text = alone["choices"][0]["message"]["content"]
    for route in ROUTES:
        whole = stack.ask(question, model=route, **asked)
        assert whole["choices"][0]["message"]["content"] == text
        assert whole["choices"][0]["finish_reason"] == alone["choices"][0]["finish_reason"]
        assert whole["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
        assert content(stack.stream(question, model=route, **asked)) == text


@pytest.mark.parametrize("route", ROUTES)
def test_a_seed_gives_the_same_choices_again(stack: Stack, route: str) -> None:
    asked: dict[str, Any] = {"n": 2, "seed": 7, "temperature": 1.0, "max_tokens": 8}
    first, second = (
        [choice["message"]["content"] for choice in stack.ask(model=route, **asked)["choices"]]
        for _ in range(2)
    )
    assert first == second
    assert first[0] != first[1]


@pytest.mark.parametrize("route", ROUTES)
def test_a_budget_holds_over_either_link(stack: Stack, route: str) -> None:
    completion = stack.ask(
        "List forty garden herbs.", model=route, max_tokens=10_000, max_completion_tokens=5
    )
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(stack: Stack, route: str) -> None:
    refusal = stack.refused(model=route, messages=[{"role": "user", "content": "word " * 2000}])
    assert refusal is not None
    assert refusal.code == 400
