"""What others' work does to a stream: long prompts beside short ones, a busy process beside us."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.arrivals import Arrival
from benchmarks.bench import Bench, Work, say
from benchmarks.client import Answer
from benchmarks.figures import Row, by_length, latency, ratio
from benchmarks.open_loop import play

SHORT_RATE = 4.0
"""Short requests a second."""
SHORT_PROMPT_TOKENS, SHORT_OUTPUT_TOKENS = (16, 256), 64
LONG_EVERY_S = 3.0
LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS = 3_000, 16
CLASS_BOUNDS_TOKENS = (64, 128, 256)
ROUNDS = 2
COMPARED = ("ttft_p95_ms", "itl_p95_ms")
DECODE_TOKENS = (128, 128)
BUSY_CORE = 0


async def interference(bench: Bench) -> list[Row]:
    """Quiet and disturbed in turns, over the same short requests."""
    quiet: list[Answer] = []
    disturbed: list[Answer] = []
    for number in range(ROUNDS):
        short = short_arrivals(bench.seconds, seed=number)
        say(f"interference: round {number + 1} of {ROUNDS}, quiet")
        quiet += (await play(bench.client, bench.prompts, short)).answers
        say(f"interference: round {number + 1} of {ROUNDS}, beside long prompts")
        both = sorted(short + long_arrivals(bench.seconds), key=lambda arrival: arrival.at_s)
        disturbed += (await play(bench.client, bench.prompts, both)).answers
    return compared(quiet, disturbed)


def short_arrivals(seconds: float, seed: int) -> list[Arrival]:
    """Poisson arrivals of short requests; the same ones for the same seed."""
    random = np.random.default_rng(seed)
    count = max(1, int(SHORT_RATE * seconds))
    at_s = np.sort(random.uniform(0, seconds, count))
    shortest, longest = SHORT_PROMPT_TOKENS
    lengths = random.integers(shortest, longest + 1, count)
    return [
        Arrival(float(at), int(tokens), SHORT_OUTPUT_TOKENS)
        for at, tokens in zip(at_s, lengths, strict=True)
    ]


def long_arrivals(seconds: float) -> list[Arrival]:
    times = np.arange(0, seconds, LONG_EVERY_S)
    return [Arrival(float(at), LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS) for at in times]


def compared(quiet: list[Answer], disturbed: list[Answer]) -> list[Row]:
    """Each class of prompt lengths, and all short ones, beside its own quiet figures."""
    longest = CLASS_BOUNDS_TOKENS[-1]
    classes = {
        "all short": (quiet, [one for one in disturbed if one.prompt_tokens <= longest]),
    }
    still, moved = (by_length(answers, CLASS_BOUNDS_TOKENS) for answers in (quiet, disturbed))
    classes |= {name: (still.get(name, []), answers) for name, answers in moved.items()}
    rows: list[Row] = []
    for name, (before, after) in classes.items():
        base, figure = latency(before), latency(after)
        if before:
            rows.append({"prompt": name, "beside": "nothing", **base})
        ratios = {f"{column}_over_quiet": ratio(figure, base, column) for column in COMPARED}
        rows.append({"prompt": name, "beside": "long prompts", **figure, **ratios})
    return rows


async def crowded(bench: Bench) -> list[Row]:
    """Decode alone and beside a process that never rests, in turns."""
    quiet: list[float] = []
    busy: list[float] = []
    for number in range(bench.repeats):
        say(f"crowded: {number + 1} of {bench.repeats}")
        quiet.append(await _decode_speed(bench))
        with busy_process():
            busy.append(await _decode_speed(bench))
    quiet_speed, busy_speed = statistics.median(quiet), statistics.median(busy)
    prompt_tokens, output_tokens = DECODE_TOKENS
    return [
        {
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "quiet_tokens_per_s": round(quiet_speed, 1),
            "busy_tokens_per_s": round(busy_speed, 1),
            "busy_over_quiet": round(busy_speed / quiet_speed, 2),
        }
    ]


async def _decode_speed(bench: Bench) -> float:
    prompt_tokens, output_tokens = DECODE_TOKENS
    return (await bench.client.ask(bench.prompts.draw(prompt_tokens), output_tokens)).tokens_per_s


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that keeps one core busy, always the same one, at the usual priority."""
    script = "print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            os.sched_setaffinity(process.pid, {BUSY_CORE})
            assert process.stdout is not None
            process.stdout.readline()  # it runs now
            yield
        finally:
            process.kill()


WORKS = [
    Work(
        "interference",
        "short requests, quiet and with a 3,000-token prompt every 3 s, by prompt length in tokens",
        interference,
    ),
    Work(
        "crowded", "decode of one stream, quiet and with another process busy on one core", crowded
    ),
]
