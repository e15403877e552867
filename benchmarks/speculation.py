"""What guessing saves: CPU time and steps of the same answers, with and without, in turns.

    python -m benchmarks.speculation                                    edit, repeat, prediction
    python -m benchmarks.speculation --spec-bench PATH/question.jsonl   and its categories

Each prompt is answered without guesses and with them, one right after the other, each time in the
other order; that both answers are the same is checked. Times are the process's CPU time: of a
single prompt after the first token, for guesses change nothing before it; of several at once
(`--batch`) of all, for while one is read others are answered. The first answer serves as the
prediction of a third, which is the best that a prediction can be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.machine import about
from benchmarks.prompts import REPOSITORY
from engine.core import Core
from engine.protocol.errors import FewerError
from engine.protocol.frames import Event, Events, Failed, FromEngine
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.base import BLOCK_TOKENS, Int32
from engine.runner.registry import open_executor
from engine.speculate.base import Proposer
from engine.speculate.history import History
from engine.speculate.speculator import proposers_for
from engine.speculate.tally import Tally
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from fewer import model_store

MAX_MODEL_LEN = 4096
RESAMPLES = 2000
_INSTRUCTIONS = {
    "repeat": "Repeat the following text word for word.",
    "edit": "Correct the spelling of the following text and repeat it. Change nothing else.",
}


class Answers:
    """A connection that keeps each request's text."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.failed: list[Failed] = []

    def deliver(self, frames: list[FromEngine]) -> None:
        for frame in frames:
            if isinstance(frame, Events):
                for event in frame.events:
                    self._take(event)
            elif isinstance(frame, Failed):
                self.failed.append(frame)

    def _take(self, event: Event) -> None:
        self.texts[event.id] = self.texts.get(event.id, "") + event.text


@dataclass
class Cost:
    """Of some answers: of one after its first token."""

    tokens: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    texts: list[str] = field(default_factory=list)


class Bench:
    """One core; who may guess is decided for each request by its tenant's name."""

    def __init__(self, model: Path, *, threads: int, executor: str, batch: int) -> None:
        file = GgufFile.open(model)
        self.tokenizer = Tokenizer.from_gguf(file.metadata)
        self.template = ChatTemplate.from_gguf(file.metadata, self.tokenizer)
        settings = EngineSettings(
            threads=threads, max_model_len=MAX_MODEL_LEN, max_num_seqs=max(1, batch)
        )
        blocks = (batch + 1) * MAX_MODEL_LEN // BLOCK_TOKENS // (1 if batch == 1 else 4)
        self.core = Core(
            open_executor(executor, file, settings),
            self.tokenizer,
            settings,
            blocks,
            proposers=_by_tenant,
        )
        self._asked = 0

    def ask(
        self, prompts: Sequence[Int32], tenant: str, sampling: Sampling, most: int,
        predictions: Sequence[Int32] | None = None,
    ) -> Cost:  # fmt: skip
        """Answer all prompts at once."""
        sink, requests = Answers(), []
        for index, prompt in enumerate(prompts):
            self._asked += 1
            requests.append(
                Request(
                    id=str(self._asked), prompts=[prompt], sampling=sampling, max_tokens=most,
                    # Prefix hits would spare one of two equal prompts its prefill.
                    salt=str(self._asked), tenant=tenant, clamp=True,
                    prediction=predictions[index] if predictions else None,
                )
            )  # fmt: skip
        for request in requests:
            self.core.submit(request, sink)
        if len(requests) == 1:
            while not sink.texts and self.core.turn():
                pass
        before = self.core.statistics()
        began = time.process_time()
        while self.core.turn():
            pass
        cpu_s = time.process_time() - began
        after = self.core.statistics()
        if sink.failed:
            raise SystemExit(f"speculation: {sink.failed[0].message}")
        return Cost(
            after.generation_tokens - before.generation_tokens,
            after.steps - before.steps,
            cpu_s,
            [sink.texts[request.id] for request in requests],
        )

    def tallies(self) -> dict[str, Tally]:
        return self.core.statistics().speculation


def _by_tenant(request: Request, history: History) -> Sequence[Proposer]:
    return proposers_for("off" if request.tenant == "off" else "auto")(request, history)


@dataclass
class Row:
    """A category's answers: costs in pairs, and what was guessed in those with guesses."""

    name: str
    plain: list[Cost] = field(default_factory=list)
    guessed: list[Cost] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    differing: int = 0

    def add(self, plain: Cost, guessed: Cost) -> None:
        self.plain.append(plain)
        self.guessed.append(guessed)
        self.differing += plain.texts != guessed.texts

    def count(self, before: dict[str, Tally], after: dict[str, Tally]) -> None:
        for name, tally in after.items():
            old = before.get(name, Tally())
            own = self.tallies.setdefault(name, Tally())
            own.add(tally.drafted - old.drafted, tally.accepted - old.accepted)

    def ratio(self) -> tuple[float, float]:
        """CPU time without guesses over that with them, and the lower end of its 95 % interval:
        a bootstrap over prompts (Efron 1979)."""
        plain = np.array([cost.cpu_s for cost in self.plain])
        guessed = np.array([cost.cpu_s for cost in self.guessed])
        drawn = np.random.default_rng(0).integers(len(plain), size=(RESAMPLES, len(plain)))
        ratios = plain[drawn].sum(1) / guessed[drawn].sum(1)
        return float(plain.sum() / guessed.sum()), float(np.quantile(ratios, 0.025))

    def text(self) -> str:
        tokens = sum(cost.tokens for cost in self.guessed)
        steps = sum(cost.steps for cost in self.guessed)
        before = sum(cost.steps for cost in self.plain)
        ratio, low = self.ratio()
        made = ", ".join(
            f"{name} {tally.accepted}/{tally.drafted}"
            for name, tally in sorted(self.tallies.items())
            if tally.drafted
        )
        return (
            f"{self.name:22}{len(self.plain):>4}{tokens:>8}{before:>7}{steps:>7}"
            f"{tokens / max(1, steps):>7.2f}{ratio:>7.2f}{low:>7.2f}{self.differing:>5}  {made}"
        )


HEADER = (
    f"{'category':22}{'runs':>4}{'tokens':>8}{'steps':>7}{'with':>7}"
    f"{'/step':>7}{'CPU x':>7}{'low':>7}{'diff':>5}  accepted/drafted"
)


def texts() -> list[str]:
    """Paragraphs of this repository's own prose, of some sixty to two hundred words."""
    prose = "\n\n".join(path.read_text() for path in sorted(REPOSITORY.glob("docs/*.md")))
    paragraphs = [" ".join(one.split()) for one in prose.split("\n\n")]
    return [one for one in paragraphs if 400 < len(one) < 1200 and one[0].isalpha()]


def own_prompts(count: int) -> dict[str, list[str]]:
    found = texts()[:count]
    return {
        name: [f"{instruction}\n\n{text}" for text in found]
        for name, instruction in _INSTRUCTIONS.items()
    }


def spec_bench_prompts(path: Path, count: int) -> dict[str, list[str]]:
    """First turns by category (Xia et al., "Spec-Bench", 2024)."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        question = json.loads(line)
        found.setdefault(question["category"], []).append(question["turns"][0])
    return {category: prompts[:count] for category, prompts in found.items()}


def batches(prompts: list[Int32], size: int) -> Iterable[list[Int32]]:
    """Groups of `size`; the prompts are gone through again where the last would be smaller."""
    for start in range(0, len(prompts), size):
        yield [prompts[(start + index) % len(prompts)] for index in range(size)]


def measure(
    bench: Bench, name: str, prompts: list[str], sampling: Sampling, most: int, batch: int
) -> list[Row]:
    """A row for guesses from what was said, and one for a prediction that is right."""
    own, predicted = Row(name), Row(f"{name} + prediction")
    ids = [
        np.array(bench.template.render([{"role": "user", "content": prompt}]), np.int32)
        for prompt in prompts
    ]
    fitting = [one for one in ids if len(one) + most <= MAX_MODEL_LEN]
    for number, group in enumerate(batches(fitting, batch)):
        print(f"  {name} {number + 1}", end="\r", file=sys.stderr, flush=True)
        costs: dict[str, Cost] = {}
        for tenant in ("off", "auto") if number % 2 else ("auto", "off"):
            before = bench.tallies()
            costs[tenant] = bench.ask(group, tenant, sampling, most)
            if tenant == "auto":
                own.count(before, bench.tallies())
        own.add(costs["off"], costs["auto"])
        encode = bench.tokenizer.encode
        right = [np.array(encode(said), np.int32) for said in costs["off"].texts]
        before = bench.tallies()
        predicted.add(costs["off"], bench.ask(group, "auto", sampling, most, right))
        predicted.count(before, bench.tallies())
    return [own, predicted]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--executor", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--spec-bench", type=Path, metavar="FILE")
    parser.add_argument("--categories", nargs="*", help="only these")
    parser.add_argument("--count", type=int, default=8, help="prompts of a category")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--batch", type=int, default=1, help="prompts at once")
    parser.add_argument("--temperature", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    told = arguments()
    prompts = own_prompts(told.count)
    if told.spec_bench:
        prompts |= spec_bench_prompts(told.spec_bench, told.count)
    sampling = Sampling(temperature=told.temperature, seed=1)
    try:
        model = model_store.resolve(told.model)
        bench = Bench(model, threads=told.threads, executor=told.executor, batch=told.batch)
    except FewerError as error:
        raise SystemExit(f"speculation: {error.message}") from None
    print(json.dumps(about() | {"batch": told.batch, "temperature": told.temperature}))
    print(HEADER)
    for name, asked in prompts.items():
        if not told.categories or name in told.categories:
            for row in measure(bench, name, asked, sampling, told.max_tokens, told.batch):
                print(row.text(), flush=True)
    bench.core.stop(0)


if __name__ == "__main__":
    main()
