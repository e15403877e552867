"""B39, with the real model: whatever a prefix was left behind by, answers are those of a cold run.

Every token is also re-scored in one clean forward pass, without a cache: it must be within
1e-2 of the likeliest logit there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.core import Core
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.base import BLOCK_TOKENS, Batch, Executor, Int32, SampleRow
from engine.runner.registry import open_executor
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from tests.engine.test_same_tokens import Lent
from tests.fakes.sink import FakeSink

pytestmark = pytest.mark.model

CHUNK_TOKENS = 20
"""No multiple of a block: a cut prefill leaves a block half computed."""
OUTPUT_TOKENS = 12
NUM_BLOCKS = 64
MARGIN = 1e-2

FEW_SHOT = (
    "Q: What is the capital of Italy?\nA: Rome\nQ: What is the capital of Spain?\nA: Madrid\n"
    "Q: What is the capital of Greece?\nA: Athens\nQ: What is the capital of Egypt?\nA: Cairo\n"
)
TARGETS = ("Q: What is the capital of Japan?\nA:", "Q: What is the capital of Norway?\nA:")
WARM_UP = "Q: What is the capital of Peru?\nA:"


class Bench:
    """One core after another over one loaded model."""

    def __init__(self, executor: Executor, tokenizer: Tokenizer) -> None:
        self._executor, self._tokenizer = executor, tokenizer
        self.sink = FakeSink()
        self.fresh()

    def fresh(self) -> None:
        """A core that has seen nothing."""
        settings = EngineSettings(max_model_len=512, max_num_batched_tokens=CHUNK_TOKENS)
        self.core = Core(self._executor, self._tokenizer, settings, NUM_BLOCKS)

    def submit(self, id: str, tail: str, max_tokens: int = OUTPUT_TOKENS, **rest: object) -> int:
        """Begin a greedy request; its prompt's length."""
        self.sink = FakeSink()
        ids = self.prompt(tail)
        told = {"sampling": Sampling(temperature=0, ignore_eos=True, logprobs=0), "arrival": 0.0}
        fields = told | rest
        self.core.submit(
            Request(id=id, prompts=[ids], max_tokens=max_tokens, **fields),  # type: ignore[arg-type]
            self.sink,
        )
        return len(ids)

    def run(self) -> None:
        while self.core.turn():
            pass
        assert self.core.statistics().kv_usage_ratio == 0.0

    def answer(self, id: str, tail: str, **rest: object) -> list[int]:
        self.submit(id, tail, **rest)  # type: ignore[arg-type]
        self.run()
        return [one.id for event in self.sink.events(id) for one in event.logprobs or ()]

    def cached_tokens(self, id: str) -> int:
        return self.sink.usage(id).cached_tokens

    def prompt(self, tail: str) -> Int32:
        return np.array(self._tokenizer.encode(FEW_SHOT + tail), np.int32)

    def check_by_teacher(self, tail: str, output: list[int]) -> None:
        """One pass over prompt and answer, in blocks of its own, sampled at every token."""
        prompt, tokens = self.prompt(tail), np.array(output, np.int32)
        whole = np.concatenate([prompt, tokens])
        rows = np.arange(len(whole), dtype=np.int32)
        blocks = np.arange(-(-len(whole) // BLOCK_TOKENS), dtype=np.int32)
        samples = tuple(
            SampleRow(
                row=len(prompt) + place - 1,
                sampling=Sampling(allowed_token_ids=[token], logprobs=1),
                seed=0,
                position=len(prompt) + place,
                prompt=prompt,
                output=tokens[:place],
                end_ids=frozenset(),
            )
            for place, token in enumerate(output)
        )
        ends = np.array([len(whole)], np.int32)
        start = np.array([0, len(whole)], np.int32)
        batch = Batch(whole, rows, rows, start, ends, blocks[None], samples)
        for sampled in self._executor.run(batch):
            assert sampled.top_logprobs[0] - sampled.logprob <= MARGIN


@pytest.fixture(scope="module")
def bench(model_path: Path) -> Iterator[Bench]:
    model = GgufFile.open(model_path)
    settings = EngineSettings(threads=1, max_num_batched_tokens=512)
    executor = open_executor("cpu", model, settings)
    yield Bench(Lent(executor), Tokenizer.from_gguf(model.metadata))
    executor.close()


@pytest.fixture(scope="module")
def cold(bench: Bench) -> list[list[int]]:
    """Each target in a core of its own, checked by the teacher."""
    answers = []
    for tail in TARGETS:
        bench.fresh()
        answers.append(bench.answer("cold", tail))
        assert bench.cached_tokens("cold") == 0
        assert len(answers[-1]) == OUTPUT_TOKENS
    for tail, output in zip(TARGETS, answers, strict=True):
        bench.check_by_teacher(tail, output)
    return answers


@pytest.fixture(autouse=True)
def _cold_core(bench: Bench, cold: list[list[int]]) -> None:
    bench.fresh()


def assert_warm_equals_cold(bench: Bench, cold: list[list[int]], at_least: int) -> None:
    """at_least: tokens that the first target must find in the cache"""
    for number, tail in enumerate(TARGETS):
        assert bench.answer(f"warm{number}", tail) == cold[number]
        cached = bench.cached_tokens(f"warm{number}")
        assert cached >= at_least
        assert cached % BLOCK_TOKENS == 0


def shared_tokens(bench: Bench) -> int:
    """Tokens of the full blocks that the targets have in common with the warm-up."""
    few_shot = len(bench.prompt(""))
    return few_shot - few_shot % BLOCK_TOKENS


def test_after_a_batch_that_ended_on_a_stop_string(bench: Bench, cold: list[list[int]]) -> None:
    stopping = Sampling(temperature=0, stop=["\nQ:"])
    prompt_tokens = bench.submit("warm-up", WARM_UP, 60, sampling=stopping)
    bench.run()
    assert bench.sink.finish("warm-up") == "stop"
    ended_at = prompt_tokens + bench.sink.usage("warm-up").completion_tokens
    assert ended_at % BLOCK_TOKENS != 0, "it was to end in the middle of a block"
    assert_warm_equals_cold(bench, cold, shared_tokens(bench))


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_after_one_that_ended_at_a_blocks_boundary(
    bench: Bench, cold: list[list[int]], beyond: int
) -> None:
    prompt_tokens = len(bench.prompt(TARGETS[0]))
    missing = -prompt_tokens % BLOCK_TOKENS + BLOCK_TOKENS + beyond
    bench.submit("warm-up", TARGETS[0], missing)
    bench.run()
    ended_at = prompt_tokens + bench.sink.usage("warm-up").completion_tokens
    assert ended_at % BLOCK_TOKENS == beyond % BLOCK_TOKENS
    assert_warm_equals_cold(bench, cold, shared_tokens(bench))
    # What the first left of its answer is found by who goes on from there, and is right.
    again = bench.answer("again", TARGETS[0])
    assert again == cold[0]


def test_after_one_that_was_cut_within_its_prefill(bench: Bench, cold: list[list[int]]) -> None:
    prompt_tokens = bench.submit("warm-up", WARM_UP)
    assert prompt_tokens > 2 * CHUNK_TOKENS
    assert 2 * CHUNK_TOKENS % BLOCK_TOKENS != 0
    bench.core.turn()
    bench.core.turn()
    bench.core.cancel(bench.sink, "warm-up")
    bench.run()
    assert bench.sink.failure("warm-up").code == "cancelled"
    assert bench.answer("first", TARGETS[0]) == cold[0]
    # Of what was cut, only blocks that two chunks had filled may be found again.
    assert bench.cached_tokens("first") <= 2 * CHUNK_TOKENS
    assert_warm_equals_cold(bench, cold, shared_tokens(bench))


def test_another_salt_shares_nothing_and_says_the_same(bench: Bench, cold: list[list[int]]) -> None:
    bench.submit("warm-up", WARM_UP, salt="other")
    bench.run()
    assert bench.answer("mine", TARGETS[0]) == cold[0]
    assert bench.cached_tokens("mine") == 0
    assert bench.answer("theirs", TARGETS[0], salt="other") == cold[0]
    assert bench.cached_tokens("theirs") == shared_tokens(bench)
