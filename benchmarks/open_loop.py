"""Requests sent when they are due, whether or not earlier ones have been answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.arrivals import Arrival
from benchmarks.client import Answer, Client, Refused
from benchmarks.prompts import Prompts


@dataclass(slots=True)
class Outcome:
    """late_s: the most that a request left after it was due, which the client is to blame for"""

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    late_s: float = 0.0
    seconds: float = 0.0


async def play(client: Client, prompts: Prompts, arrivals: Sequence[Arrival]) -> Outcome:
    """Send them all and wait for every answer. A refusal is counted, not raised."""
    outcome = Outcome()
    drawn = [prompts.draw(arrival.prompt_tokens) for arrival in arrivals]
    began = time.monotonic()

    async def ask(arrival: Arrival, prompt: list[int]) -> None:
        try:
            outcome.answers.append(await client.ask(prompt, arrival.output_tokens))
        except Refused:
            outcome.refused += 1

    async with asyncio.TaskGroup() as group:
        for arrival, prompt in zip(arrivals, drawn, strict=True):
            await asyncio.sleep(began + arrival.at_s - time.monotonic())
            outcome.late_s = max(outcome.late_s, time.monotonic() - began - arrival.at_s)
            group.create_task(ask(arrival, prompt))
    outcome.seconds = time.monotonic() - began
    return outcome
