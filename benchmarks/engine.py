"""Measure a running stack through its gateway: first-token time, speed alone and of eight at once.

    make serve            in one terminal
    make bench            in another; ARGS='--url http://127.0.0.1:9000 --tokens 64'

Prints one JSON object: what was asked, what was measured, on which hardware and with which
versions, so that rows of different days can be told apart. Times are the client's own. Prompts
differ in their first words, so that none finds another's prefix in the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

VERSIONS = ("fewer", "torch", "numpy", "starlette", "uvicorn", "uvloop")
PROMPT = "Write a long story about a lighthouse keeper and the sea."


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer.

    first_s, last_s: from the request to its first and to its last text
    tokens:          as the gateway metered them
    model:           which the gateway says has answered
    """

    first_s: float
    last_s: float
    tokens: int
    model: str


async def main() -> int:
    arguments = _parser().parse_args()
    headers = {"authorization": f"Bearer {arguments.key}"} if arguments.key else {}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(arguments.url, headers=headers, timeout=timeout) as session:
        try:
            await _ask(session, arguments, "warm-up")
            alone = [await _ask(session, arguments, f"alone {i}") for i in range(arguments.repeats)]
            began = time.perf_counter()
            together = await asyncio.gather(
                *(_ask(session, arguments, f"together {i}") for i in range(arguments.concurrency))
            )
            took_s = time.perf_counter() - began
        except aiohttp.ClientConnectorError:
            print(f"bench: nothing serves {arguments.url}: run `make serve`.", file=sys.stderr)
            return 1
        except (aiohttp.ClientError, ValueError) as error:
            print(f"bench: {arguments.url} refused or broke off: {error}", file=sys.stderr)
            return 1
    print(json.dumps(_report(arguments, alone, together, took_s), indent=2))
    return 0


async def _ask(session: aiohttp.ClientSession, arguments: argparse.Namespace, name: str) -> Timing:
    body = {
        "messages": [{"role": "user", "content": f"({name}, {time.time_ns()}) {PROMPT}"}],
        "max_tokens": arguments.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if arguments.route:
        body["model"] = arguments.route
    began = time.perf_counter()
    first_s = last_s = 0.0
    tokens = 0
    async with session.post("/v1/chat/completions", json=body) as response:
        model = response.headers.get("x-fewer-model", "unknown")
        if response.status != 200:
            raise ValueError(_reason(await response.text()))
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise ValueError(chunk["error"]["message"])
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                last_s = time.perf_counter() - began
                first_s = first_s or last_s
            if usage := chunk.get("usage"):
                tokens = usage["completion_tokens"]
    return Timing(first_s, last_s, tokens, model)


def _reason(body: str) -> str:
    """The message of an error in OpenAI's shape; else the body's beginning."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200]


def _report(
    arguments: argparse.Namespace, alone: list[Timing], together: list[Timing], took_s: float
) -> dict[str, Any]:
    speeds = [(t.tokens - 1) / (t.last_s - t.first_s) for t in alone]
    asked = ("url", "tokens", "repeats", "concurrency")
    return {
        "asked": {name: getattr(arguments, name) for name in asked} | {"prompt": PROMPT},
        "model": alone[0].model,
        "alone": {
            "first_token_ms": _milliseconds([t.first_s for t in alone]),
            "tokens_per_s": round(statistics.median(speeds), 2),
        },
        "together": {
            "first_token_ms": _milliseconds([t.first_s for t in together]),
            "output_tokens_per_s": round(sum(t.tokens for t in together) / took_s, 2),
            "seconds": round(took_s, 2),
        },
        "hardware": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load_1min": round(os.getloadavg()[0], 2),
        },
        "python": platform.python_version(),
        "versions": {name: version(name) for name in VERSIONS},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _milliseconds(times_s: list[float]) -> dict[str, float]:
    middle_s, longest_s = statistics.median(times_s), max(times_s)
    return {"median": round(middle_s * 1000, 1), "max": round(longest_s * 1000, 1)}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument(
        "--key",
        default=os.environ.get("FEWER_API_KEY", ""),
        help="client key, where the gateway wants one (default: $FEWER_API_KEY)",
    )
    parser.add_argument("--route", help="default: the gateway's choice")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--repeats", type=int, default=3, help="of the stream alone")
    parser.add_argument("--concurrency", type=int, default=8)
    return parser


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
