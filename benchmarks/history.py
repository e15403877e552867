"""What cutting long conversations costs and saves, turn by turn, as plain arithmetic.

    python -m benchmarks.history RUNS.json.gz                   every pair of marks below
    python -m benchmarks.history RUNS.json.gz --high 8000 --low 2000
    python -m benchmarks.history RUNS.json.gz --strategy summary

RUNS are agent runs of tau-bench, as its repository publishes them: a list of objects whose `traj`
are OpenAI messages. They are joined to conversations of at least 20,000 tokens, each as if one
customer had come back. Before each of the assistant's messages a prompt is made of all messages
so far, cut or not, and tokenized by the bundled model's tokenizer. A prefix cache of blocks of 16
tokens, which forgets nothing, holds every prompt and what was answered to it; what it does not
hold of a prompt is prefill.

With `summary` and `tiered` no model writes: a record is a stand-in of full length, with as many
facts as a prompt may hold, and is there at the turn after the one that asked for it. What asking
for it takes, its prompt, the part of that which no cache held, and its answer, counts as well.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from policies.base import Policy
from policies.context import Context
from policies.decision import Decision
from policies.facts import MAX_FACTS
from policies.history import HistoryPolicy
from policies.record import Child, Record
from policies.record import encode as encode_record
from policies.request import Request
from policies.summary import SummaryPolicy
from policies.tiers import TieredPolicy

BLOCK_TOKENS = 16
JOINED_TOKENS = 20_000
STRATEGIES = ("window", "summary", "tiered")
SUMMARY_TOKENS = 256
FACTS = 12
FACT_WORDS = 12
MARKS = ((3000, 1000), (4000, 1000), (6000, 2000), (8000, 2000), (8000, 3000), (12000, 3000))

Message = dict[str, Any]
Encode = Callable[[str], Sequence[int]]


class Cost(msgspec.Struct, frozen=True):
    """Of all prompts of one conversation together, in tokens.

    context: what the prompts hold, those for records included
    prefill: of it, what the model had to read, because no prefix cache held it
    common:  the longest common prefix of each prompt with the turn before it, answer included
    cached:  of `common`, what the cache held
    cuts:    prompts that did not begin with the one before
    records, written, read: how many were asked for, what was written, and for them of `prefill`
    """

    turns: int = 0
    context: int = 0
    prefill: int = 0
    common: int = 0
    cached: int = 0
    cuts: int = 0
    records: int = 0
    written: int = 0
    read: int = 0


class PrefixCache:
    """Blocks by everything up to their end."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        """At least one token is always read: the answer begins with its logits."""
        tokens = 0
        for block in _chain(prompt[: len(prompt) - 1]):
            if block not in self._blocks:
                break
            tokens += BLOCK_TOKENS
        return tokens

    def publish(self, tokens: Sequence[int]) -> None:
        self._blocks.update(_chain(tokens))


def joined(runs: Sequence[Sequence[Message]], encode: Encode) -> Iterator[list[Message]]:
    """Conversations of at least JOINED_TOKENS: the first run's system message, then run by run."""
    messages: list[Message] = []
    tokens = 0
    for run in runs:
        added = run if not messages else run[1:]
        messages += added
        tokens += sum(len(encode(printed(message))) for message in added)
        if tokens >= JOINED_TOKENS:
            yield messages
            messages, tokens = [], 0


def cost_of(messages: Sequence[Message], encode: Encode, policy: Policy | None) -> Cost:
    """Of answering each of the assistant's messages; without a policy nothing is cut."""
    talk = Talk(encode, policy)
    turns = [
        talk.turn(messages[:place], message)
        for place, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    return total(turns)


class Talk:
    """A conversation on its way."""

    def __init__(self, encode: Encode, policy: Policy | None) -> None:
        self._encode = encode
        self._policy = policy
        self._ids: dict[str, Sequence[int]] = {}
        self._cache = PrefixCache()
        self._before: list[int] = []
        self._known: dict[bytes, bytes] = {}

    def turn(self, messages: Sequence[Message], answer: Message) -> Cost:
        """What answering `messages` with `answer` costs."""
        decision = self._decide(messages)
        request = decision.request if decision else None
        prompt = self._tokens(request.messages if request else messages)
        shared, held = _common(prompt, self._before), self._cache.cached_tokens(prompt)
        cost = Cost(
            turns=1,
            context=len(prompt),
            prefill=len(prompt) - held,
            common=shared,
            cached=min(held, shared),
            cuts=shared < len(self._before),
        )
        self._before = [*prompt, *self._tokens([answer])]
        self._cache.publish(self._before)
        if decision is None or decision.child is None:
            return cost
        return total([cost, self._asked(decision.child)])

    def _decide(self, messages: Sequence[Message]) -> Decision | None:
        if self._policy is None:
            return None
        request = Request(surface="chat", model="m", messages=list(messages))
        return self._policy.decide(request, Context(route="chat", known=self._known))

    def _asked(self, child: Child) -> Cost:
        """A record, as long as it may be."""
        prompt = self._tokens(child.request.messages)
        read = len(prompt) - self._cache.cached_tokens(prompt)
        facts = [f"fact {i}: {'word ' * FACT_WORDS}" for i in range(MAX_FACTS * child.facts)]
        record = Record("word " * child.tokens, tuple(facts))
        self._known[child.key] = encode_record(record)
        return Cost(context=len(prompt), prefill=read, records=1, written=child.tokens, read=read)

    def _tokens(self, messages: Sequence[Message]) -> list[int]:
        tokens: list[int] = []
        for text in map(printed, messages):
            if text not in self._ids:
                self._ids[text] = self._encode(text)
            tokens += self._ids[text]
        return tokens


def printed(message: Message) -> str:
    """A message as a template of the ChatML family prints it, its calls as JSON."""
    calls = message.get("tool_calls")
    called = "".join(f"\n{json.dumps(call['function'])}" for call in calls or ())
    return f"<|im_start|>{message['role']}\n{message.get('content') or ''}{called}<|im_end|>\n"


def read_runs(path: Path) -> list[list[Message]]:
    return [run["traj"] for run in json.loads(gzip.decompress(path.read_bytes()))]


def total(costs: Sequence[Cost]) -> Cost:
    rows = [msgspec.structs.astuple(cost) for cost in costs]
    return Cost(*map(sum, zip(*rows, strict=True)))


def _chain(tokens: Sequence[int]) -> Iterator[int]:
    chained = 0
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        chained = hash((chained, *tokens[end - BLOCK_TOKENS : end]))
        yield chained


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def _row(high: int, low: int, cost: Cost, whole: Cost) -> str:
    return (
        f"{high:>6} {low:>6} {cost.cuts:>5} {cost.context / whole.context:>8.3f} "
        f"{cost.prefill / whole.prefill:>8.3f} {cost.cached / cost.common:>8.4f} "
        f"{cost.records:>7} {cost.written:>7} {cost.read:>6}"
    )


def policy_of(strategy: str, high: int, low: int) -> HistoryPolicy | SummaryPolicy:
    if strategy == "summary":
        return SummaryPolicy(high, low, SUMMARY_TOKENS)
    if strategy == "tiered":
        return TieredPolicy(high, low, SUMMARY_TOKENS, FACTS)
    return HistoryPolicy(high, low)


def main() -> None:
    from engine.text.tokenizer import Tokenizer
    from engine.weights.gguf import GgufFile
    from fewer import model_store

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--high", type=int)
    parser.add_argument("--low", type=int)
    parser.add_argument("--strategy", choices=STRATEGIES, default=STRATEGIES[0])
    options = parser.parse_args()
    encode = Tokenizer.from_gguf(GgufFile.open(model_store.pull("smollm2-135m")).metadata).encode
    conversations = list(joined(read_runs(options.runs), encode))
    whole = total([cost_of(each, encode, None) for each in conversations])
    print(f"{len(conversations)} conversations, uncut: {whole}")
    print("  high    low  cuts  context  prefill   cached records written   read")
    for high, low in [(options.high, options.low)] if options.high else MARKS:
        policy = policy_of(options.strategy, high, low)
        cost = total([cost_of(each, encode, policy) for each in conversations])
        print(_row(high, low, cost, whole))


if __name__ == "__main__":
    main()
