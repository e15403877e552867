"""Measure the whole stack, through its gateway, as a client sees it.

    make bench                                        the quick ones, on a stack of their own
    make bench ARGS='--only replay interference'      any of them, by name
    make bench ARGS='--url http://127.0.0.1:8080'     a stack that runs

Each measurement is a table; the whole is also written as JSON to benchmarks/results/, with
hardware, versions, model, weights, lengths and threads. Answers are greedy and of exact length;
prompts are token ids, so theirs is exact too. docs/performance.md says what each one is for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import interference, prefix, replay, streams, throughput
from benchmarks.bench import Bench, Work, end_in_order, say
from benchmarks.client import Client, Refused, connected
from benchmarks.figures import Row
from benchmarks.machine import about
from benchmarks.processes import resident_mb, tree
from benchmarks.prompts import Prompts
from benchmarks.report import RESULTS, about_line, save, section
from benchmarks.service import StartError
from benchmarks.stack import Stack, serving
from engine.protocol.errors import FewerError
from engine.weights.gguf import GgufFile
from fewer import model_store

QUICK = ("single", "prefill", "batch", "shared-prefix", "latency", "crowded")
WARM_UP_TOKENS = (64, 16)


def main() -> int:
    end_in_order()
    arguments = _parser().parse_args()
    works = _chosen(arguments)
    try:
        with _stack(arguments) as stack:
            results = asyncio.run(_measure(arguments, works, stack))
    except (StartError, FewerError, Refused, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except aiohttp.ClientError as error:
        print(f"bench: {arguments.url} is not there or broke off: {error}", file=sys.stderr)
        return 1
    _report(arguments, works, results)
    return 0


@contextlib.contextmanager
def _stack(arguments: argparse.Namespace) -> Iterator[Stack | None]:
    """A stack of our own, unless one that runs has been named."""
    if arguments.url:
        yield None
        return
    say("starting a stack")
    with serving(arguments.model, arguments.threads) as stack:
        arguments.url = stack.url
        yield stack


async def _measure(
    arguments: argparse.Namespace, works: list[Work], stack: Stack | None
) -> dict[str, Any]:
    model = model_store.resolve(arguments.model)
    prompts = Prompts.of_model(model)
    async with connected(arguments.url, key=arguments.key, model=arguments.route) as client:
        bench = Bench(client, prompts, arguments.repeats, arguments.seconds)
        served = await _warm_up(client, prompts)
        before = _footprint(stack)
        tables = {work.name: await work.measure(bench) for work in works}
    if stack is not None:
        tables["footprint"] = [
            {"when": "after one short answer", **before},
            {"when": "after all of this", **_footprint(stack)},
        ]
    return {
        "about": {
            "model": served,
            "weights": _weights(model),
            "threads": arguments.threads or "auto",
        }
        | {"repeats": arguments.repeats, "seconds": arguments.seconds}
        | about(),
        "tables": tables,
    }


async def _warm_up(client: Client, prompts: Prompts) -> str:
    prompt_tokens, output_tokens = WARM_UP_TOKENS
    return (await client.ask(prompts.draw(prompt_tokens), output_tokens)).model


def _weights(model: Path) -> str:
    """How most of the model's bytes are kept: Q4_1, for one."""
    sizes: dict[str, int] = {}
    for info in GgufFile.open(model).tensors.values():
        name = info.type.name
        sizes[name] = sizes.get(name, 0) + info.size_bytes
    return max(sizes, key=lambda name: sizes[name])


def _footprint(stack: Stack | None) -> Row:
    """Resident memory of the stack's processes, by what they are."""
    if stack is None:
        return {}
    row: Row = {"ready_s": round(stack.ready_s, 2)}
    for pid in tree(stack.pid):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for name in ("engine", "gateway"):
            if name in words:
                row[f"{name}_mb"] = resident_mb(pid)
    return row


def _report(arguments: argparse.Namespace, works: list[Work], results: dict[str, Any]) -> None:
    meanings = {work.name: work.meaning for work in works}
    meanings["footprint"] = "resident memory, KV blocks that have been in use included"
    print(f"\n{about_line(results['about'])}\n")
    for name, rows in results["tables"].items():
        print(section(name, meanings[name], rows))
    print(f"Written to {save(arguments.name, results, arguments.results)}")


def _works(arguments: argparse.Namespace) -> dict[str, Work]:
    works = [*throughput.WORKS, *prefix.WORKS, *streams.WORKS, *interference.WORKS]
    works += replay.works(arguments.trace, arguments.speed)
    return {work.name: work for work in works}


def _chosen(arguments: argparse.Namespace) -> list[Work]:
    works = _works(arguments)
    return [works[name] for name in arguments.only or QUICK]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=(__doc__ or "").partition("\n")[0]
    )
    names = [*QUICK, "interference", "replay"]
    parser.add_argument("--only", nargs="+", choices=names, help=f"default: {' '.join(QUICK)}")
    parser.add_argument("--url", default="", help="of a stack that runs; default: one is started")
    parser.add_argument(
        "--key",
        default=os.environ.get("FEWER_API_KEY", ""),
        help="client key, where the gateway wants one (default: $FEWER_API_KEY)",
    )
    parser.add_argument("--route", default="", help="default: the gateway's choice")
    parser.add_argument("--model", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0 is one per core")
    parser.add_argument("--repeats", type=int, default=5, help="of short measurements")
    parser.add_argument("--seconds", type=float, default=20, help="of each phase of a load")
    parser.add_argument("--trace", type=Path, help="arrivals in Azure's format, for replay")
    parser.add_argument("--speed", type=float, default=1.0, help="at which a trace is played")
    parser.add_argument("--name", default="engine", help="of the JSON file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="its folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
