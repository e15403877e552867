"""Same request, same tokens: with the real model, bit for bit, whatever shares the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.core import Core
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.base import Batch, Executor, Sampled
from engine.runner.registry import open_executor
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from tests.fakes.sink import FakeSink

pytestmark = pytest.mark.model

REQUESTS = 32
OUTPUT_TOKENS = 6
LONG_OUTPUT_TOKENS = 26
NUM_BLOCKS = 400

Outcome = dict[str, list[tuple[int, float]]]
"""By request: the ids chosen, each with its logprob under the raw distribution."""


class Lent(Executor):
    """One loaded model for many cores, one after another. What it keeps in KV goes along."""

    def __init__(self, inner: Executor) -> None:
        self.name, self.shape, self._inner = inner.name, inner.shape, inner
        inner.allocate(NUM_BLOCKS)

    def allocate(self, num_blocks: int) -> None:
        assert num_blocks <= NUM_BLOCKS

    def run(self, batch: Batch) -> list[Sampled]:
        return self._inner.run(batch)

    def close(self) -> None:
        """The next core goes on with it."""


@pytest.fixture(scope="module")
def model(model_path: Path) -> GgufFile:
    return GgufFile.open(model_path)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def executor(request: pytest.FixtureRequest, model: GgufFile) -> Iterator[Lent]:
    settings = EngineSettings(executor=request.param, threads=1, max_num_batched_tokens=512)
    inner = open_executor(request.param, model, settings)
    yield Lent(inner)
    inner.close()


@pytest.fixture(scope="module")
def requests(model: GgufFile) -> list[Request]:
    """Half greedy, half seeded; in families that share a prefix; from about 10 to 50 tokens."""
    tokenizer = Tokenizer.from_gguf(model.metadata)
    made = []
    for index in range(REQUESTS):
        family, member = divmod(index, 8)
        prefix = f"Chapter {family}. " + "It was a bright cold day in the port of Genoa. " * family
        ids = tokenizer.encode(f"{prefix}The number {member} bus went to")
        sampling = Sampling(
            temperature=0.0 if index % 2 else 0.9,
            top_p=1.0 if index % 4 else 0.95,
            seed=index,
            frequency_penalty=0.5 if index % 3 == 0 else 0.0,
            ignore_eos=True,
            logprobs=0,
        )
        made.append(
            Request(
                id=f"r{index}",
                prompts=[np.array(ids, np.int32)],
                sampling=sampling,
                max_tokens=OUTPUT_TOKENS,
                expected_tokens=1,  # admission is told too little, so that small pools overflow
                arrival=0.0,
            )
        )
    return made


@pytest.fixture(scope="module")
def alone(executor: Lent, model: GgufFile, requests: list[Request]) -> Outcome:
    """Every request by itself, each in a core that has seen no other."""
    found: Outcome = {}
    for request in requests:
        found |= run(core_of(executor, model), [request])
    return found


def core_of(
    executor: Executor, model: GgufFile, *, num_blocks: int = NUM_BLOCKS, chunk_tokens: int = 512
) -> Core:
    settings = EngineSettings(
        max_model_len=512, max_num_seqs=REQUESTS, max_num_batched_tokens=chunk_tokens
    )
    return Core(executor, Tokenizer.from_gguf(model.metadata), settings, num_blocks)


def run(core: Core, requests: list[Request]) -> Outcome:
    sink = FakeSink()
    for request in requests:
        core.submit(request, sink)
    while core.turn():
        pass
    assert core.statistics().kv_usage_ratio == 0.0
    return {request.id: tokens_of(sink, request) for request in requests}


def tokens_of(sink: FakeSink, request: Request) -> list[tuple[int, float]]:
    events = sink.events(request.id)
    tokens = [(one.id, one.logprob) for event in events for one in event.logprobs or ()]
    assert len(tokens) == sink.usage(request.id).completion_tokens == request.max_tokens
    return tokens


@pytest.mark.parametrize("chunk_tokens", [16, 64, 512])
def test_together_in_chunks_of_any_size(
    executor: Lent,
    model: GgufFile,
    requests: list[Request],
    alone: Outcome,
    chunk_tokens: int,
) -> None:
    # Every decode needs a row of the step, so 16 rows also mean that not all run at once.
    assert run(core_of(executor, model, chunk_tokens=chunk_tokens), requests) == alone


def test_with_a_warm_prefix_cache(
    executor: Lent, model: GgufFile, requests: list[Request], alone: Outcome
) -> None:
    core = core_of(executor, model)
    assert run(core, requests) == alone
    before = core.statistics().prefix_cache_hits_tokens
    assert run(core, requests) == alone
    assert core.statistics().prefix_cache_hits_tokens > before


def test_after_forced_preemption(
    executor: Lent, model: GgufFile, requests: list[Request], alone: Outcome
) -> None:
    # Admission reserves a block ahead, so only answers much longer than expected overflow.
    longer = [replace(request, max_tokens=LONG_OUTPUT_TOKENS) for request in requests]
    roomy, tight = core_of(executor, model), core_of(executor, model, num_blocks=24)
    undisturbed = run(roomy, longer)
    assert {id: tokens[:OUTPUT_TOKENS] for id, tokens in undisturbed.items()} == alone
    assert run(tight, longer) == undisturbed
    assert roomy.statistics().preemptions == 0
    assert tight.statistics().preemptions > 0
    assert tight.statistics().recomputed_tokens > 0


def test_in_any_order_of_arrival(
    executor: Lent,
    model: GgufFile,
    requests: list[Request],
    alone: Outcome,
    shuffled: Callable[[list[Request]], list[Request]],
) -> None:
    assert run(core_of(executor, model, chunk_tokens=64), shuffled(requests)) == alone


@pytest.fixture
def shuffled() -> Callable[[list[Request]], list[Request]]:
    def shuffle(items: list[Request]) -> list[Request]:
        order = np.random.default_rng(7).permutation(len(items))
        return [items[index] for index in order]

    return shuffle
