"""Speed of one stream, of reading a prompt, and of many requests at once."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import Bench, Work, say
from benchmarks.figures import Row, latency, median_ms

DECODE_TOKENS = (128, 128)
PREFILL_TOKENS = 1024
BATCH_REQUESTS = 32
BATCH_PROMPT_TOKENS = (32, 512)
BATCH_OUTPUT_TOKENS = (32, 256)


async def single(bench: Bench) -> list[Row]:
    prompt_tokens, output_tokens = DECODE_TOKENS
    answers = []
    for number in range(bench.repeats):
        say(f"single: {number + 1} of {bench.repeats}")
        answers.append(await bench.client.ask(bench.prompts.draw(prompt_tokens), output_tokens))
    return [
        {
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "tokens_per_s": round(statistics.median(one.tokens_per_s for one in answers), 1),
            **latency(answers),
        }
    ]


async def prefill(bench: Bench) -> list[Row]:
    first_s = []
    for number in range(bench.repeats):
        say(f"prefill: {number + 1} of {bench.repeats}")
        answer = await bench.client.ask(bench.prompts.draw(PREFILL_TOKENS), 1)
        first_s.append(answer.first_s)
    return [
        {
            "prompt_tokens": PREFILL_TOKENS,
            "ttft_ms": median_ms(first_s),
            "tokens_per_s": round(PREFILL_TOKENS / statistics.median(first_s), 1),
        }
    ]


async def batch(bench: Bench) -> list[Row]:
    prompts = bench.prompts.lengths(*BATCH_PROMPT_TOKENS, BATCH_REQUESTS)
    outputs = bench.prompts.lengths(*BATCH_OUTPUT_TOKENS, BATCH_REQUESTS)
    answers, speeds = [], []
    for number in range(bench.repeats):
        say(f"batch: {number + 1} of {bench.repeats}")
        drawn = [bench.prompts.draw(tokens) for tokens in prompts]
        began = time.monotonic()
        together = await asyncio.gather(*map(bench.client.ask, drawn, outputs))
        speeds.append(sum(outputs) / (time.monotonic() - began))
        answers += together
    return [
        {
            "concurrency": BATCH_REQUESTS,
            "prompt_tokens": sum(prompts),
            "output_tokens": sum(outputs),
            "output_tokens_per_s": round(statistics.median(speeds), 1),
            **latency(answers),
        }
    ]


WORKS = [
    Work("single", "one stream; tokens/s after the first token, medians", single),
    Work("prefill", "one prompt read; TTFT and prompt tokens/s, medians", prefill),
    Work("batch", "32 requests at once, prompts of 32 to 512 tokens, answers of 32 to 256", batch),
]
