"""What the gateway adds: to the first token, to each chunk, in CPU and in memory.

    make bench-gateway
    python -m benchmarks.gateway --rounds 1 --only engine sse      # part of it, quickly

Starts everything itself, on loopback, a process each: an upstream without a model that speaks
the engine's WebSocket protocol and OpenAI's at a given pace, the gateway (one worker, default
policies), a bare pass-through, LiteLLM's proxy in an environment of its own, and is the load
generator. Who is compared works in turns, in the same run; figures are medians over the rounds.
Generator and upstream need about half a core of their own: `saturated` rows say less.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import uvloop

from benchmarks import report
from benchmarks.bench import say
from benchmarks.gateway_load.comparison import Comparison, Shape, comparisons
from benchmarks.gateway_load.load import send_all
from benchmarks.gateway_load.memory import memory
from benchmarks.gateway_load.servers import Servers, litellm_version, started
from benchmarks.machine import about

WORKS = ("engine", "sse", "requests", "memory")
WARM_UP_REQUESTS = 200
"""Of each contender, before anything counts."""


async def measure(servers: Servers, arguments: argparse.Namespace) -> list[tuple[str, str, Any]]:
    """Name, meaning and rows of each work that was asked for."""
    shape = Shape(
        streams=arguments.streams,
        pace_s=arguments.pace_ms / 1000,
        tokens=arguments.tokens,
        seconds=arguments.seconds,
        clients=arguments.clients,
    )
    chosen = [each for each in comparisons(servers, shape) if each.name in arguments.only]
    for comparison in chosen:
        await _warm_up(comparison)
    for number in range(arguments.rounds):
        for comparison in chosen:
            for name in comparison.order(number):
                say(f"round {number + 1} of {arguments.rounds}: {comparison.name}, {name}")
                await comparison.run(name, number, servers.pids)
    sections = [(each.name, each.meaning, each.rows()) for each in chosen]
    if "memory" in arguments.only:
        rows = await memory(servers, arguments.requests, arguments.clients)
        sections.append(("memory", "resident memory of the gateway, engine and OpenAI", rows))
    return sections


async def _warm_up(comparison: Comparison) -> None:
    for name, make in comparison.contenders.items():
        say(f"warming up: {comparison.name}, {name}")
        await send_all(make(), comparison.warm_up_clients, WARM_UP_REQUESTS)


def main() -> int:
    arguments = _parser().parse_args()
    litellm = "requests" in arguments.only and not arguments.without_litellm
    with started(arguments.pace_ms, arguments.step_ms, litellm=litellm) as servers:
        sections = uvloop.run(measure(servers, arguments))
    conditions = about() | {"settings": settings(arguments)}
    conditions["versions"] |= {name: version(name) for name in ("websockets", "httptools")}
    if litellm:
        conditions["versions"] |= {"litellm": litellm_version()}
    print(f"\n{report.about_line(conditions)}\n")
    for name, meaning, rows in sections:
        print(report.section(name, meaning, rows))
    content = {name: {"meaning": meaning, "rows": rows} for name, meaning, rows in sections}
    path = report.save(arguments.name, {"about": conditions, **content})
    say(f"written to {path}")
    return 0


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the load was, and how the gateway was configured."""
    return {
        "streams": arguments.streams,
        "pace_ms": arguments.pace_ms,
        "step_ms": arguments.step_ms,
        "tokens": arguments.tokens,
        "clients": arguments.clients,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "gateway": "1 worker, budget active, holdout, ledger, metrics and access log; no keys",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What the gateway adds, side by side with less.")
    parser.add_argument("--only", nargs="*", choices=WORKS, default=WORKS[:3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="that each phase is measured")
    parser.add_argument("--streams", type=int, default=500, help="at once, on average")
    parser.add_argument("--tokens", type=int, default=100, help="of each stream, one a chunk")
    parser.add_argument("--pace-ms", type=float, default=25.0, help="between chunks of a stream")
    parser.add_argument("--step-ms", type=float, default=1.0, help="what is due together")
    parser.add_argument("--clients", type=int, default=32, help="for requests per second")
    parser.add_argument("--without-litellm", action="store_true")
    parser.add_argument(
        "--requests",
        nargs=2,
        type=int,
        default=(10_000, 100_000),
        metavar=("FROM", "TO"),
        help="between which memory may grow (--only memory; minutes)",
    )
    parser.add_argument("--name", default="gateway", help="of the file under benchmarks/results")
    return parser


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
