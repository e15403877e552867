"""Reported faults of other engines' speculation, with the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from engine.core import Core
from engine.protocol.frames import Event
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.registry import open_executor
from engine.speculate.speculator import proposers_for
from engine.stats import Statistics
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from kernels.cpu.build import supported_isas
from tests.engine.test_same_tokens import NUM_BLOCKS, Lent
from tests.fakes.clock import FakeClock
from tests.fakes.sink import FakeSink

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not supported_isas(), reason="needs an x86-64 processor with AVX2"),
]

NAMES = "Aldervane, Brookmoss, Cindergate, Dunhollow, Eastmere, Fernwick, Glenharrow, Hollowmere"
QUESTION = (
    f"{NAMES}. {NAMES}. {NAMES}. "
    'Answer with all company names above as a JSON object {"names": [string]} and nothing else.'
)


@pytest.fixture(scope="module")
def model(model_path: Path) -> GgufFile:
    return GgufFile.open(model_path)


@pytest.fixture(scope="module")
def executor(model: GgufFile) -> Iterator[Lent]:
    inner = open_executor("cpu", model, EngineSettings(threads=1))
    yield Lent(inner)
    inner.close()


def asked(model: GgufFile, id: str, sampling: Sampling, max_tokens: int) -> Request:
    template = ChatTemplate.from_gguf(model.metadata, Tokenizer.from_gguf(model.metadata))
    prompt = template.render([{"role": "user", "content": QUESTION}])
    return Request(
        id=id, prompts=[np.array(prompt, np.int32)], sampling=sampling, max_tokens=max_tokens
    )


def answers(
    executor: Lent, model: GgufFile, requests: list[Request], *, guessed: bool
) -> tuple[list[list[Event]], Statistics]:
    tokenizer, settings = Tokenizer.from_gguf(model.metadata), EngineSettings(max_model_len=512)
    proposers = proposers_for("auto" if guessed else "off")
    core = Core(executor, tokenizer, settings, NUM_BLOCKS, clock=FakeClock(), proposers=proposers)
    sink = FakeSink()
    for request in requests:
        core.submit(request, sink)
    while core.turn():
        pass
    found = [
        [replace(event, usage=None) for event in sink.events(request.id)] for request in requests
    ]
    return found, core.statistics()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_repeated_names_are_listed_as_without_guesses(
    executor: Lent, model: GgufFile, temperature: float
) -> None:
    """B43, as far as it goes without a schema: the answer is not cut, and not another."""
    sampling = Sampling(temperature=temperature, seed=1, stop=["}"], include_stop=True)
    request = asked(model, "r", sampling, 40)
    plain, _ = answers(executor, model, [request], guessed=False)
    guessed, now = answers(executor, model, [request], guessed=True)
    assert guessed == plain
    assert now.speculation["ngram"].drafted > 0


def test_neighbours_with_seeds_of_their_own_leave_a_greedy_answer_alone(
    executor: Lent, model: GgufFile
) -> None:
    """vllm-project/vllm#9441 and #6038."""
    requests = [
        asked(model, "greedy", Sampling(temperature=0.0, seed=5), 24),
        asked(model, "seeded", Sampling(temperature=0.9, seed=6, logprobs=1), 24),
        asked(model, "other", Sampling(temperature=1.3, seed=7, frequency_penalty=0.5), 24),
    ]
    plain = [answers(executor, model, [one], guessed=False)[0][0] for one in requests]
    together, now = answers(executor, model, requests, guessed=True)
    assert together == plain
    assert now.speculation["ngram"].drafted > 0
