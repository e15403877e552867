"""The same question again, and at the same time, over the real model: asked of it once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.e2e.stack import DEADLINE_S, Stack, body

pytestmark = pytest.mark.model
WITHOUT_AND_WITH: tuple[dict[str, Any], ...] = ({}, {"logprobs": True, "top_logprobs": 2})
FINISHED = 'choices_finished_total{reason="length"}'


def asked(stack: Stack, text: str, **fields: Any) -> tuple[str, str]:
    """Where the answer came from, and the answer."""
    data = body(text, {"model": "shared", "max_tokens": 12, "seed": 5, **fields})
    request = Request(
        f"{stack.gateway}/v1/chat/completions", data, {"content-type": "application/json"}
    )
    with urlopen(request, timeout=DEADLINE_S) as response:
        return str(response.headers["x-fewer-cache"]), response.read().decode()


def test_a_kept_answer_is_the_models(stack: Stack) -> None:
    """In every shape, with the logprobs it was asked for, as the engine makes it anew."""
    made = stack.counter(FINISHED)
    for logprobs in WITHOUT_AND_WITH:
        for stream in (False, True, False):
            source, text = asked(stack, "Name two herbs.", stream=stream, **logprobs)
            fresh = stack.ask("Name two herbs.", max_tokens=12, seed=5, **logprobs)
            if not stream:
                assert json.loads(text)["choices"] == fresh["choices"]
                assert json.loads(text)["usage"]["total_tokens"] == fresh["usage"]["total_tokens"]
        assert source == "hit"
    # Six fresh ones, and one for each set of parameters.
    assert stack.counter(FINISHED) == made + 8


def test_eight_at_once_are_one_generation(stack: Stack) -> None:
    made = stack.counter(FINISHED)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: asked(stack, "Name two birds."), range(8)))
    assert stack.counter(FINISHED) == made + 1
    assert len({json.dumps(json.loads(text)["choices"]) for _, text in found}) == 1
    assert sum(source == "miss" for source, _ in found) == 1
