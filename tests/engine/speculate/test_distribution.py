"""With guesses at random, what is sampled still has the model's own distribution."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from engine.core import Core
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.reference import ReferenceExecutor
from engine.runner.registry import open_executor
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from tests.fakes.clock import FakeClock
from tests.fakes.guesses import Drawn, of_request
from tests.fakes.sink import FakeSink
from tests.fakes.steps import Lane, batch_of
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf

pytestmark = pytest.mark.usefixtures("tireless")

PROMPT = [20, 30, 40, 50, 60]
KEPT = [65, 66, 67, 68]
"""The only tokens that may be said: few enough to count all that can be said in three."""
CHOICES, REQUESTS, NUM_BLOCKS = 128, 8, 160
QUANTILE_999 = 16.27
"""Of the chi-square distribution with three degrees of freedom."""

Float64 = NDArray[np.float64]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, TinyModel(type=Type.F32))
    return GgufFile.open(path)


@pytest.fixture(scope="module")
def executor(model: GgufFile) -> Iterator[ReferenceExecutor]:
    executor = open_executor("reference", model, EngineSettings(threads=1))
    assert isinstance(executor, ReferenceExecutor)
    yield executor
    executor.close()


def test_first_and_third_tokens_are_as_likely_as_the_model_has_them(
    executor: ReferenceExecutor, model: GgufFile
) -> None:
    settings = EngineSettings(max_model_len=64, max_num_waiting=4096)
    core = Core(
        executor,
        Tokenizer.from_gguf(model.metadata),
        settings,
        NUM_BLOCKS,
        clock=FakeClock(),
        proposers=of_request(lambda request: Drawn(KEPT, seed=request.sampling.seed or 0)),
    )
    sink = FakeSink()
    for number in range(REQUESTS):
        sampling = Sampling(seed=number, allowed_token_ids=KEPT, logprobs=0, temperature=1.5)
        request = Request(
            id=str(number),
            prompts=[np.array(PROMPT, np.int32)],
            sampling=sampling,
            n=CHOICES,
            max_tokens=5,
        )
        core.submit(request, sink)
    while core.turn():
        pass
    said = np.array(
        [
            [one.id for event in sink.events(str(number), choice) for one in event.logprobs or ()]
            for number in range(REQUESTS)
            for choice in range(CHOICES)
        ]
    )
    tally = core.statistics().speculation["drawn"]
    assert 0 < tally.accepted < tally.drafted
    first, third = exact(executor)
    assert chi_square(said[:, 0], first) < QUANTILE_999
    assert chi_square(said[:, 2], third) < QUANTILE_999


def exact(executor: ReferenceExecutor) -> tuple[Float64, Float64]:
    """Probabilities of KEPT as the first and as the third token."""
    first = following(executor, [])
    third = np.zeros(len(KEPT))
    for one, two in product(range(len(KEPT)), repeat=2):
        second = following(executor, [KEPT[one]])[two]
        third += first[one] * second * following(executor, [KEPT[one], KEPT[two]])
    return first, third


def following(executor: ReferenceExecutor, said: list[int]) -> Float64:
    lane = Lane(PROMPT + said, [0])
    logits = executor.logits(batch_of([(lane, len(lane.tokens))])).numpy()[0, KEPT] / 1.5
    weights: Float64 = np.exp(logits.astype(np.float64) - logits.max())
    probabilities: Float64 = weights / weights.sum()
    return probabilities


def chi_square(seen: NDArray[np.int64], probabilities: Float64) -> float:
    expected = probabilities * len(seen)
    counts = np.array([(seen == token).sum() for token in KEPT])
    return float(((counts - expected) ** 2 / expected).sum())
