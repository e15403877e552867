"""The work that engines are compared on, and the figures that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.figures import milliseconds, percentile
from benchmarks.prompts import Prompts

DECODE_TOKENS = (128, 128)
PREFILL_TOKENS = 1024
BATCH_REQUESTS = 32
BATCH_PROMPT_TOKENS, BATCH_OUTPUT_TOKENS = (32, 512), (32, 256)
STREAMS, REQUESTS_EACH = 16, 2
STREAM_TOKENS = (256, 64)


@dataclass(frozen=True, slots=True)
class Job:
    """Requests with answers of exact lengths.

    prompts, outputs: token ids and the tokens to answer with, one of each for a request
    concurrency:      that many run at once, the next one as soon as one is done
    beside_busy:      while another process keeps one core busy
    """

    prompts: list[list[int]]
    outputs: list[int]
    concurrency: int
    beside_busy: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """Seconds until all were done, until each one's first token, and between pieces of text.

    Libraries report no gaps.
    """

    seconds: float
    first_s: list[float]
    gaps_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Contest:
    """One kind of work. lengths: of prompts and answers, in words

    make:    a job with prompts that no engine has seen
    figures: what a reply comes to, by metric
    """

    lengths: str
    make: Callable[[Prompts], Job]
    figures: Callable[[Job, Reply], dict[str, float]]


def _decode(prompts: Prompts) -> Job:
    prompt_tokens, output_tokens = DECODE_TOKENS
    return Job([prompts.draw(prompt_tokens)], [output_tokens], 1)


def _crowded(prompts: Prompts) -> Job:
    prompt_tokens, output_tokens = DECODE_TOKENS
    return Job([prompts.draw(prompt_tokens)], [output_tokens], 1, beside_busy=True)


def _prefill(prompts: Prompts) -> Job:
    return Job([prompts.draw(PREFILL_TOKENS)], [1], 1)


def _batch(prompts: Prompts) -> Job:
    lengths = Prompts([0]).lengths(*BATCH_PROMPT_TOKENS, BATCH_REQUESTS)  # the same every round
    outputs = Prompts([0], seed=1).lengths(*BATCH_OUTPUT_TOKENS, BATCH_REQUESTS)
    return Job([prompts.draw(tokens) for tokens in lengths], outputs, BATCH_REQUESTS)


def _streams(prompts: Prompts) -> Job:
    prompt_tokens, output_tokens = STREAM_TOKENS
    count = STREAMS * REQUESTS_EACH
    return Job(
        [prompts.draw(prompt_tokens) for _ in range(count)], [output_tokens] * count, STREAMS
    )


def _after_first(job: Job, reply: Reply) -> dict[str, float]:
    return {"tokens/s": (job.outputs[0] - 1) / (reply.seconds - reply.first_s[0])}


def _prompt_speed(job: Job, reply: Reply) -> dict[str, float]:
    return {"prompt tokens/s": len(job.prompts[0]) / reply.first_s[0]}


def _output_speed(job: Job, reply: Reply) -> dict[str, float]:
    return {"output tokens/s": sum(job.outputs) / reply.seconds}


def _stream_latency(job: Job, reply: Reply) -> dict[str, float]:
    return {
        "TTFT p50 ms": milliseconds(percentile(reply.first_s, 50)),
        "TTFT p95 ms": milliseconds(percentile(reply.first_s, 95)),
        "ITL p50 ms": milliseconds(percentile(reply.gaps_s, 50)),
        "ITL p95 ms": milliseconds(percentile(reply.gaps_s, 95)),
        "ITL p99 ms": milliseconds(percentile(reply.gaps_s, 99)),
        "longest gap ms": milliseconds(max(reply.gaps_s)),
        **_output_speed(job, reply),
    }


CONTESTS = {
    "decode": Contest("128 / 128", _decode, _after_first),
    "prefill": Contest("1,024 / 1", _prefill, _prompt_speed),
    "batch": Contest("32 to 512 / 32 to 256", _batch, _output_speed),
    "crowded": Contest("128 / 128, a core busy", _crowded, _after_first),
    "streams": Contest("256 / 64", _streams, _stream_latency),
}
STREAMED = {"streams"}
"""Needs a server."""


def medians(contest: Contest, replies: list[tuple[Job, Reply]]) -> dict[str, float]:
    """The median over rounds of each figure."""
    rounds = [contest.figures(job, reply) for job, reply in replies]
    return {
        metric: round(statistics.median(one[metric] for one in rounds), 1) for metric in rounds[0]
    }
