"""What an earlier answer saves as the draft of a new one: engine steps, with the answers compared.

    python -m benchmarks.drafts PARAPHRASES.json --count 200 --tokens 48

PARAPHRASES is GPTCache's list of `origin` and `similar`. Each first text is asked about, and then
the second, which is nearly the same: without a draft, and with the first one's answer as its
`prediction`, as the semantic cache's `use: draft` gives it to the engine. Greedily, by the bundled
model. What an engine guesses by itself, from a prompt's own words, it guesses in both; a tenant's
earlier answers, which it copies from too, are kept out of it: each request is another tenant's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import about
from benchmarks.speculation import Bench, Cost
from engine.protocol.sampling import Sampling
from engine.runner.base import Int32
from fewer import model_store

_ASKED = "Explain this in two sentences: {}"
_GREEDY = Sampling(temperature=0.0)


class Near:
    """One bench, asked about one text after another."""

    def __init__(self, bench: Bench, tokens: int) -> None:
        self._bench = bench
        self._tokens = tokens
        self._asked = 0

    def pair(self, one: str, other: str) -> tuple[Cost, Cost]:
        """The second text's answer without a draft, and with that of the first."""
        earlier = self._ask(one)
        draft = np.array(self._bench.tokenizer.encode(earlier.texts[0]), np.int32)
        return self._ask(other), self._ask(other, draft)

    def _ask(self, text: str, draft: Int32 | None = None) -> Cost:
        self._asked += 1
        messages = [{"role": "user", "content": _ASKED.format(text)}]
        prompt = np.array(self._bench.template.render(messages), np.int32)
        predictions = None if draft is None else [draft]
        tenant = f"tenant {self._asked}"
        return self._bench.ask([prompt], tenant, _GREEDY, self._tokens, predictions)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paraphrases", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    pairs = json.loads(options.paraphrases.read_text("utf-8"))[: options.count]
    model = model_store.resolve("smollm2-135m")
    bench = Bench(model, threads=options.threads, executor="cpu", batch=1)
    near = Near(bench, options.tokens)
    plain_steps = draft_steps = tokens = differing = fewer = 0
    for pair in pairs:
        plain, drafted = near.pair(pair["origin"], pair["similar"])
        plain_steps += plain.steps
        draft_steps += drafted.steps
        tokens += plain.tokens
        fewer += drafted.steps < plain.steps
        differing += plain.texts != drafted.texts
    bench.core.stop(0)
    print(f"drafts: {about()}")
    print(
        f"{len(pairs)} prompts, {tokens:,} tokens: {differing} answers differ; "
        f"{plain_steps:,} steps without a draft, {draft_steps:,} with "
        f"({1 - draft_steps / plain_steps:.1%} fewer), fewer for {fewer} prompts"
    )
    return 1 if differing or draft_steps >= plain_steps else 0


if __name__ == "__main__":
    sys.exit(main())
