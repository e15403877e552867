"""What requests with a common beginning save: one after another, and all at once from cold."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import Bench, Work, say
from benchmarks.figures import Row, median_ms

REQUESTS = 16
SHARED_TOKENS, OWN_TOKENS = 768, 32
OUTPUT_TOKENS = 4


async def shared_prefix(bench: Bench) -> list[Row]:
    cold_s: list[float] = []
    later_s: list[float] = []
    together_s: list[float] = []
    apart_s: list[float] = []
    for number in range(bench.repeats):
        say(f"shared-prefix: {number + 1} of {bench.repeats}")
        first, *others = await _one_by_one(bench, _sharing(bench))
        cold_s.append(first)
        later_s += others
        together_s.append(await _all_at_once(bench, _sharing(bench)))
        apart_s.append(await _all_at_once(bench, _distinct(bench)))
    shape: Row = {"requests": REQUESTS, "shared_tokens": SHARED_TOKENS, "own_tokens": OWN_TOKENS}
    return [
        shape | _compared("one after another: TTFT of the first, of later ones", cold_s, later_s),
        shape | _compared("all at once: last TTFT without sharing, with it", apart_s, together_s),
    ]


def _compared(what: str, without_s: list[float], sharing_s: list[float]) -> Row:
    share = statistics.median(sharing_s) / statistics.median(without_s)
    return {
        "what": what,
        "without_ms": median_ms(without_s),
        "sharing_ms": median_ms(sharing_s),
        "sharing_over_without": round(share, 3),
    }


async def _one_by_one(bench: Bench, prompts: list[list[int]]) -> list[float]:
    return [(await bench.client.ask(prompt, OUTPUT_TOKENS)).first_s for prompt in prompts]


async def _all_at_once(bench: Bench, prompts: list[list[int]]) -> float:
    """Seconds until the last of them has its first token."""
    began = time.monotonic()
    asked = (bench.client.ask(prompt, OUTPUT_TOKENS) for prompt in prompts)
    answers = await asyncio.gather(*asked)
    return max(answer.sent_s + answer.first_s for answer in answers) - began


def _sharing(bench: Bench) -> list[list[int]]:
    return bench.prompts.draw_sharing(REQUESTS, SHARED_TOKENS, OWN_TOKENS)


def _distinct(bench: Bench) -> list[list[int]]:
    return [bench.prompts.draw(SHARED_TOKENS + OWN_TOKENS) for _ in range(REQUESTS)]


WORKS = [
    Work("shared-prefix", "prompts that share their first 768 of 800 tokens", shared_prefix),
]
