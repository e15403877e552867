"""With real arithmetic: the same tokens, bit for bit in their logprobs, whoever guesses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from msgspec.structs import replace

from engine.core import Core
from engine.protocol.frames import Event
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.registry import open_executor
from engine.speculate.speculator import Proposers, proposers_for
from engine.stats import Statistics
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from kernels.cpu.build import supported_isas
from tests.engine.test_same_tokens import NUM_BLOCKS, Lent
from tests.fakes.clock import FakeClock
from tests.fakes.guesses import Bent, Drawn, bends, of_request
from tests.fakes.sink import FakeSink
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf

pytestmark = pytest.mark.usefixtures("tireless")

TINY = TinyModel(heads=3, kv_heads=1, head_dim=64, hidden=96, type=Type.Q8_0)
OUTPUT_TOKENS = 20
LONG_OUTPUT_TOKENS = 60
END_ID = 2
BENDS = bends(END_ID)
EXECUTORS = [
    pytest.param("cpu", marks=pytest.mark.skipif(not supported_isas(), reason="needs AVX2")),
    "reference",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, TINY)
    return GgufFile.open(path)


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest, tiny: GgufFile) -> Iterator[Lent]:
    settings = EngineSettings(threads=1, max_num_batched_tokens=512)
    inner = open_executor(request.param, tiny, settings)
    yield Lent(inner)
    inner.close()


def sampling_of(index: int) -> Sampling:
    """Greedy and seeded, with and without penalties, logprobs, bias and a minimum."""
    return Sampling(
        temperature=0.0 if index % 2 else 1.2,
        seed=index,
        top_p=0.9 if index % 3 == 0 else 1.0,
        top_k=40 if index % 5 == 0 else 0,
        frequency_penalty=0.7 if index % 4 >= 2 else 0.0,
        presence_penalty=0.3 if index % 4 == 3 else 0.0,
        repetition_penalty=1.2 if index % 8 >= 4 else 1.0,
        logit_bias={index: 2.0} if index % 6 == 0 else {},
        min_tokens=10 if index % 7 == 0 else 0,
        ignore_eos=index % 3 != 1,
        logprobs=2 if index % 2 else 0,
    )


def requests_of(indices: range, output_tokens: int = OUTPUT_TOKENS) -> list[Request]:
    random = np.random.default_rng(0)
    prompts = [random.integers(3, 260, 5 + index % 30).astype(np.int32) for index in range(32)]
    return [
        Request(
            id=f"r{index}",
            prompts=[np.tile(prompts[index], 2)],
            sampling=sampling_of(index),
            max_tokens=output_tokens,
            expected_tokens=1,
            arrival=0.0,
        )
        for index in indices
    ]


def answers(
    executor: Lent,
    model: GgufFile,
    requests: list[Request],
    proposers: Proposers,
    *,
    num_blocks: int = NUM_BLOCKS,
) -> tuple[dict[str, list[Event]], Statistics]:
    """The events of each request, but for the usage. Rows are free, so guesses are always made."""
    settings = EngineSettings(max_model_len=512, max_num_seqs=32)
    tokenizer = Tokenizer.from_gguf(model.metadata)
    core = Core(executor, tokenizer, settings, num_blocks, clock=FakeClock(), proposers=proposers)
    sink = FakeSink()
    for request in requests:
        core.submit(request, sink)
    while core.turn():
        pass
    now = core.statistics()
    assert now.kv_usage_ratio == 0.0
    found = {
        request.id: [replace(event, usage=None) for event in sink.events(request.id)]
        for request in requests
    }
    return found, now


@pytest.fixture(scope="module")
def alone(executor: Lent, tiny: GgufFile) -> dict[str, list[Event]]:
    """Every request by itself, without a guess."""
    found: dict[str, list[Event]] = {}
    for request in requests_of(range(32)):
        found |= answers(executor, tiny, [request], proposers_for("off"))[0]
    return found


def proposers_of(name: str, alone: dict[str, list[Event]]) -> Proposers:
    if name in ("auto", "off"):
        return proposers_for("auto" if name == "auto" else "off")
    if name == "drawn":
        return of_request(lambda request: Drawn(list(range(320)), seed=1))
    return of_request(
        lambda request: Bent(
            [one.id for event in alone[request.id] for one in event.logprobs or ()],
            TINY.vocab_size,
            BENDS[name],
        )
    )


@pytest.mark.parametrize("name", ["auto", "drawn", *BENDS])
@pytest.mark.parametrize(("batch", "runs"), [(1, 4), (8, 2), (32, 1)])
def test_the_same_tokens_whoever_guesses(
    executor: Lent,
    tiny: GgufFile,
    alone: dict[str, list[Event]],
    batch: int,
    runs: int,
    name: str,
) -> None:
    proposers = proposers_of(name, alone)
    for start in range(0, runs * batch, batch):
        requests = requests_of(range(start, start + batch))
        found, now = answers(executor, tiny, requests, proposers)
        assert found == {request.id: alone[request.id] for request in requests}
        if name in ("right", "wrong"):
            tally = now.speculation["bent"]
            assert tally.accepted == (tally.drafted if name == "right" else 0)


def test_the_same_tokens_after_preemption(executor: Lent, tiny: GgufFile) -> None:
    longer = requests_of(range(8), LONG_OUTPUT_TOKENS)
    plain, _ = answers(executor, tiny, longer, proposers_for("off"))
    preemptions = []
    for name in ("auto", "right", "right-then-wrong", "wrong"):
        proposers = proposers_of(name, plain)
        found, now = answers(executor, tiny, longer, proposers, num_blocks=20)
        preemptions.append(now.preemptions)
        assert found == plain
    assert sum(preemptions) > 0
