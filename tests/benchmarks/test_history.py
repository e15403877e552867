"""What a window over long conversations costs and saves: the figures of docs/policies.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.history import (
    BLOCK_TOKENS,
    JOINED_TOKENS,
    PrefixCache,
    cost_of,
    joined,
    policy_of,
    printed,
    read_runs,
    total,
)
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from policies.context import Context
from policies.summary import SummaryPolicy
from tests.fakes.conversations import calls, chat, said, system, user

CONTEXT = Context(route="chat")


def letters(text: str) -> Sequence[int]:
    """A tokenizer with a token for each character."""
    return [ord(letter) for letter in text]


def test_the_cache_holds_whole_blocks_and_leaves_a_token_to_read() -> None:
    cache = PrefixCache()
    tokens = list(range(3 * BLOCK_TOKENS))
    cache.publish(tokens[:-1])
    assert cache.cached_tokens(tokens) == 2 * BLOCK_TOKENS
    cache.publish(tokens)
    assert cache.cached_tokens([*tokens, 1]) == 3 * BLOCK_TOKENS
    assert cache.cached_tokens(tokens) == 2 * BLOCK_TOKENS
    assert cache.cached_tokens([1, *tokens]) == 0


def test_uncut_turns_read_only_what_is_new() -> None:
    messages = [system("s" * 40), user("q" * 40), said("a" * 40), user("r" * 40), said("b")]
    prompts = [sum(len(printed(m)) for m in messages[:end]) for end in (2, 4)]
    held = (prompts[0] + len(printed(messages[2]))) // BLOCK_TOKENS * BLOCK_TOKENS
    cost = cost_of(messages, letters, None)
    assert (cost.turns, cost.cuts, cost.context) == (2, 0, sum(prompts))
    assert (cost.prefill, cost.cached) == (sum(prompts) - held, held)
    assert held <= cost.common < held + BLOCK_TOKENS


def test_runs_are_joined_under_the_first_ones_system_message() -> None:
    run = [system("s"), user("q" * (JOINED_TOKENS // 2))]
    assert list(joined([run, run, run], letters)) == [[*run, run[1]]]


def test_calls_are_printed_too() -> None:
    assert "look_up" in printed(calls("a"))


def test_asking_for_a_record_costs_its_question_and_its_answer() -> None:
    talk = [each for i in range(9) for each in (user(f"{i}" * 90), said(f"{i}" * 90))]
    policy = SummaryPolicy(800, 400, 20)
    cost = cost_of(talk, letters, policy)
    assert cost.records >= 1
    assert cost.written == 20 * cost.records
    child = policy.decide(chat(talk), CONTEXT).child
    assert child is not None
    question = len(printed(child.request.messages[-1]))
    # All messages begin alike, and a block is held whole or not at all.
    assert abs(cost.read - question * cost.records) < 2 * BLOCK_TOKENS * cost.records


@pytest.mark.parametrize(
    ("strategy", "high", "low"),
    [("window", 3000, 1000), ("window", 8000, 2000), ("summary", 8000, 2000)],
)
def test_long_agent_runs_cost_half_the_context_and_hardly_more_prefill(
    model_path: Path, shared_data: Callable[[str], Path], strategy: str, high: int, low: int
) -> None:
    encode = Tokenizer.from_gguf(GgufFile.open(model_path).metadata).encode
    runs = read_runs(shared_data("tau_bench/gpt-4o-airline-even.json.gz"))[:24]
    conversations = list(joined(runs, encode))
    assert len(conversations) >= 3
    whole = total([cost_of(each, encode, None) for each in conversations])
    cost = total([cost_of(each, encode, policy_of(strategy, high, low)) for each in conversations])
    assert cost.cuts >= 3
    assert cost.cached >= 0.99 * cost.common
    assert cost.prefill <= 1.3 * whole.prefill
    assert cost.context <= 0.5 * whole.context
