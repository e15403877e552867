"""Latency of streams that run side by side, each asking again as soon as it has been answered."""

from __future__ import annotations

import asyncio

from benchmarks.bench import Bench, Work, say
from benchmarks.client import Answer, Client
from benchmarks.figures import Row, latency
from benchmarks.prompts import Prompts

CONCURRENCIES = (1, 4, 16)
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 64


async def side_by_side(
    client: Client, prompts: Prompts, concurrency: int, requests_each: int
) -> list[Answer]:
    """The answers of `concurrency` streams that start at once, `requests_each` of each."""

    async def stream() -> list[Answer]:
        return [
            await client.ask(prompts.draw(PROMPT_TOKENS), OUTPUT_TOKENS)
            for _ in range(requests_each)
        ]

    answers = await asyncio.gather(*(stream() for _ in range(concurrency)))
    return [answer for one in answers for answer in one]


def output_tokens_per_s(answers: list[Answer]) -> float:
    began = min(answer.sent_s for answer in answers)
    ended = max(answer.sent_s + answer.last_s for answer in answers)
    return round(sum(answer.tokens for answer in answers) / (ended - began), 1)


async def streaming(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for concurrency in CONCURRENCIES:
        say(f"latency: {concurrency} at once")
        answers = await side_by_side(bench.client, bench.prompts, concurrency, bench.repeats)
        rows.append(
            {
                "concurrency": concurrency,
                "prompt_tokens": PROMPT_TOKENS,
                "output_tokens": OUTPUT_TOKENS,
                **latency(answers),
                "output_tokens_per_s": output_tokens_per_s(answers),
            }
        )
    return rows


WORKS = [
    Work("latency", "streams side by side, each asking again once it is answered", streaming),
]
