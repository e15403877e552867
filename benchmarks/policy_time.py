"""What all policies together add to a request with a long history, in time on the event loop.

    python -m benchmarks.policy_time RUNS.json.gz
    python -m benchmarks.policy_time RUNS.json.gz --tokens 6000 --requests 500

RUNS as for `benchmarks.history`; of the joined conversations each request is the beginning that
counts so many tokens and ends with what its user says. Every request passes two pipelines in turn,
over models that answer at once: one with every policy active, history cut and blocks replaced, and
one with none. What the first takes longer is what the policies take; `by policy` is the part of
their decisions alone.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figures import percentile
from benchmarks.history import Message, joined, read_runs
from gateway.answer import Answer
from gateway.backends.pool import Backends
from gateway.config import Config, load
from gateway.pipeline import Pipeline
from gateway.routes import Routes
from gateway.telemetry.metrics import Metrics
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.counting import message_tokens, text_tokens
from policies.request import Request

EVERYTHING = """
models:
  m: {scripted: script.json}
  n: {scripted: script.json}
routes:
  all:
    model: m
    shape: {brevity: concise, holdout: 0}
    budget: {max_tokens: 512, soft: 0.8, holdout: 0}
    agent: {max_tool_rounds: 200, max_run_tokens: 100000}
    cache: {exact: {mode: active}, semantic: {mode: active, use: answer, holdout: 0}}
    route: {rules: [{model: n, has: [images]}], holdout: 0}
    history: {strategy: tiered, high_tokens: 5000, low_tokens: 2500, holdout: 0}
    input: {max_prompt_tokens: 100000, retrieved: ranked}
    dedup: {holdout: 0}
  none:
    model: m
    cache: {exact: {mode: disabled}}
    coalesce: {mode: disabled}
"""
SCRIPT = '{"steps": [{"text": "Yes."}]}'


def beginnings(conversation: Sequence[Message], tokens: int) -> Iterator[list[Message]]:
    """Up to each message of the user's from the first that makes it so many tokens."""
    counted = 0
    for place, message in enumerate(conversation):
        counted += message_tokens(message)
        if counted >= tokens and message["role"] == "user":
            yield list(conversation[: place + 1])
            if counted >= 1.5 * tokens:
                return


class Timed:
    """A pipeline, and how long it takes to begin an answer."""

    def __init__(self, config: Config, backends: Backends) -> None:
        self._routes = Routes(config)
        self._pipeline = Pipeline(config, self._routes, backends.all(), Metrics())
        self._number = 0
        self.decisions_ms: dict[str, list[float]] = defaultdict(list)

    async def begin_ms(self, messages: list[Message], route: str) -> float:
        """Until the model has accepted."""
        self._number += 1
        visit = Visit(f"{self._number}", f"{self._number}", "POST", "/", tenant=OPEN, debug=True)
        parameters = {"temperature": 0}
        request = Request("chat", route, messages=messages, parameters=parameters)
        began_s = time.thread_time()
        answer = await self._pipeline.answer(request, self._routes.by_name[route], visit)
        took_ms = (time.thread_time() - began_s) * 1000
        await self._finish(answer)
        return took_ms

    async def _finish(self, answer: Answer) -> None:
        async with answer:
            told = dict(answer.headers)[b"x-fewer-decisions"]
            for decision in json.loads(told):
                self.decisions_ms[decision["policy"]].append(decision["us"] / 1000)
            while await answer.receive():
                pass


async def measure(config: Config, requests: Sequence[list[Message]]) -> None:
    backends = Backends.from_config(config, 0, "")
    try:
        timed = Timed(config, backends)
        added_ms = []
        for number, messages in enumerate(requests):
            # Objects of their own, as each request's body makes them: nothing is found by identity.
            with_all = await timed.begin_ms(copy.deepcopy(messages), "all")
            without = await timed.begin_ms(copy.deepcopy(messages), "none")
            if number:  # the first loads what is loaded once
                added_ms.append(with_all - without)
        show("all policies", added_ms)
        for name, took_ms in timed.decisions_ms.items():
            show(f"  {name}", took_ms[1:])
    finally:
        await backends.aclose()


def show(name: str, values_ms: Sequence[float]) -> None:
    shares = "  ".join(f"p{share} {percentile(values_ms, share):7.3f}" for share in (50, 95, 99))
    print(f"{name:14} {shares} ms")


def config_of(folder: Path) -> Config:
    (folder / "script.json").write_text(SCRIPT)
    (folder / "fewer.yaml").write_text(EVERYTHING)
    environ: dict[str, Any] = {"XDG_STATE_HOME": str(folder)}
    return load(folder / "fewer.yaml", environ)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--requests", type=int, default=400)
    told = parser.parse_args()
    conversations = joined(read_runs(told.runs), lambda text: range(text_tokens(text)))
    found = [one for each in conversations for one in beginnings(each, told.tokens)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fewer-bench-")))
        asyncio.run(measure(config_of(folder), found[: told.requests]))


if __name__ == "__main__":
    main()
