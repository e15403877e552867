"""First token against the next ones: 16 streams under several settings of the engine, in turns.

python -m benchmarks.tradeoff
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bench import end_in_order, say
from benchmarks.client import Answer, connected
from benchmarks.figures import Row, latency
from benchmarks.machine import about
from benchmarks.prompts import Prompts
from benchmarks.report import about_line, save, section
from benchmarks.stack import serving
from benchmarks.streams import OUTPUT_TOKENS, PROMPT_TOKENS, output_tokens_per_s, side_by_side
from fewer import model_store

STREAMS, REQUESTS_EACH = 16, 2
DEFAULTS = {"target_itl_ms": 100, "max_num_batched_tokens": 512}
TRIED: list[dict[str, int]] = [
    {"target_itl_ms": 25},
    {"target_itl_ms": 50},
    {},
    {"target_itl_ms": 1000},
    {"max_num_batched_tokens": 128},
]
"""Each with the defaults in place of what it leaves out."""


@dataclass(slots=True)
class Trial:
    """One stack under one set of settings. rates: output tokens a second, of each round"""

    settings: dict[str, int]
    url: str
    answers: list[Answer] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def row(self) -> Row:
        shape: Row = {"streams": STREAMS, "prompt_tokens": PROMPT_TOKENS}
        shape["output_tokens"] = OUTPUT_TOKENS
        rate = round(sum(self.rates) / len(self.rates), 1)
        return {**self.settings, **shape, **latency(self.answers), "output_tokens_per_s": rate}


def main() -> int:
    end_in_order()
    arguments = _parser().parse_args()
    prompts = Prompts.of_model(model_store.resolve(arguments.model))
    with contextlib.ExitStack() as stack:
        trials = []
        for changed in TRIED:
            settings = DEFAULTS | changed
            say(f"starting a stack with {settings}")
            served = stack.enter_context(serving(arguments.model, arguments.threads, settings))
            trials.append(Trial(settings, served.url))
        asyncio.run(_measure(trials, prompts, arguments.rounds))
    _report(trials, arguments)
    return 0


async def _measure(trials: list[Trial], prompts: Prompts, rounds: int) -> None:
    """Rounds are interleaved; one before them does not count."""
    for number in range(rounds + 1):
        for trial in trials:
            say(f"round {number} of {rounds}: {trial.settings}")
            async with connected(trial.url) as client:
                answers = await side_by_side(client, prompts, STREAMS, REQUESTS_EACH)
            if number > 0:
                trial.answers += answers
                trial.rates.append(output_tokens_per_s(answers))


def _report(trials: list[Trial], arguments: argparse.Namespace) -> None:
    facts: dict[str, Any] = {"model": arguments.model, "threads": arguments.threads or "auto"}
    facts |= {"rounds": arguments.rounds} | about()
    rows = [trial.row() for trial in trials]
    print(f"\n{about_line(facts)}\n")
    print(section("trade-off", "16 streams through the gateway, by settings of the engine", rows))
    print(f"Written to {save('tradeoff', {'about': facts, 'rows': rows})}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tradeoff", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0 is one per core")
    parser.add_argument("--rounds", type=int, default=4)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
