"""A conversation over the real model that outgrows its marks: a record of it is written behind the
answers, from what the engine has read already, and takes the place of old turns."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from policies.counting import message_tokens
from policies.record import question
from tests.e2e.stack import DEADLINE_S, Stack, wait_for

pytestmark = pytest.mark.model

BLOCK_TOKENS = 16
TOPICS = ("the sea", "bread", "old clocks", "rain", "the moon", "cats", "bridges", "tea", "snow")


class Conversation:
    """Turn by turn; what of each turn's usage and decisions is of interest."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        self.prompts: list[int] = []
        self.cached: list[int] = []
        self.decisions: list[str] = []

    def turn(self, text: str) -> None:
        """Ask, and wait until the engine has nothing more to do."""
        self.messages.append({"role": "user", "content": text})
        fields = {"model": "remembering", "max_tokens": 16, "temperature": 0, "seed": 1}
        request = Request(
            f"{self._stack.gateway}/v1/chat/completions",
            json.dumps({"messages": self.messages, **fields}).encode(),
            {"content-type": "application/json", "x-fewer-debug": "true"},
        )
        with urlopen(request, timeout=DEADLINE_S) as response:
            answer = json.load(response)
            self.decisions.append(response.headers["x-fewer-decisions"])
        usage = answer["usage"]
        self.prompts.append(usage["prompt_tokens"])
        self.cached.append((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0))
        self.messages.append(answer["choices"][0]["message"])
        asked = sum("a record is asked for" in told for told in self.decisions)
        wait_for(lambda: booked(self._stack)["children"] == asked, "the record")

    @property
    def cuts(self) -> list[int]:
        """Turns whose prompt was cut."""
        return [i for i, told in enumerate(self.decisions) if "messages left out" in told]


def booked(stack: Stack) -> dict[str, Any]:
    """The route's totals in the ledger."""
    with urlopen(f"{stack.gateway}/v1/ledger", timeout=DEADLINE_S) as response:
        rows = json.load(response)["routes"]
    return next(row for row in rows if row["route"] == "remembering")


def test_a_record_is_written_from_the_prefix_and_keeps_it(stack: Stack) -> None:
    talk = Conversation(stack)
    for topic in TOPICS:
        talk.turn(f"Tell me one thing about {topic} that is worth knowing, in a single sentence.")
        if len(talk.cuts) == 3:
            break
    cut, *after = talk.cuts
    assert "a record is asked for" in str(talk.decisions[:cut])
    assert "without a record" not in str(talk.decisions)
    assert talk.prompts[cut] < talk.prompts[cut - 1]
    # Then every prompt begins with the one before, which the engine knows.
    for turn in after:
        assert talk.cached[turn] >= talk.prompts[turn - 1] - BLOCK_TOKENS
    row = booked(stack)
    assert row["requests"] == len(talk.prompts)
    # Of a record's own prompt little was read but its last message.
    read = row["prompt_tokens"] - row["cached_tokens"] - (sum(talk.prompts) - sum(talk.cached))
    assert read <= row["children"] * (1.3 * message_tokens(question(40)) + 2 * BLOCK_TOKENS)
