"""The bundled model under schemas: every answer is whole, and the same with guesses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from engine.core import Core
from engine.grammar.closing import Closer
from engine.grammar.compiled import compile_grammar
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
from tests.engine.grammar.schemas import PERSON, SCHEMAS, of_schema
from tests.engine.speculate.test_with_the_model import QUESTION
from tests.engine.test_same_tokens import NUM_BLOCKS, Lent
from tests.fakes.clock import FakeClock
from tests.fakes.sink import FakeSink

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not supported_isas(), reason="needs an x86-64 processor with AVX2"),
]
NAMES = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}}},
    "required": ["names"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(model_path: Path) -> GgufFile:
    return GgufFile.open(model_path)


@pytest.fixture(scope="module")
def executor(model: GgufFile) -> Iterator[Lent]:
    inner = open_executor("cpu", model, EngineSettings(threads=1))
    yield Lent(inner)
    inner.close()


def answers(
    executor: Lent, tokenizer: Tokenizer, requests: list[Request], speculation: str = "off"
) -> tuple[list[list[Event]], Statistics]:
    settings = EngineSettings(max_model_len=512)
    proposers = proposers_for("auto" if speculation == "auto" else "off")
    core = Core(executor, tokenizer, settings, NUM_BLOCKS, clock=FakeClock(), proposers=proposers)
    sink = FakeSink()
    for request in requests:
        core.submit(request, sink)
    while core.turn():
        pass
    assert not [sink.failures(request.id) for request in requests if sink.failures(request.id)]
    found = [
        [replace(event, usage=None) for event in sink.events(request.id)] for request in requests
    ]
    return found, core.statistics()


def asked(
    model: GgufFile, tokenizer: Tokenizer, id: str, question: str, schema: object, closer: Closer,
    spare: int, **sampling: float,
) -> Request:  # fmt: skip
    prompt = ChatTemplate.from_gguf(model.metadata, tokenizer).render(
        [{"role": "user", "content": question}]
    )
    grammar = compile_grammar(of_schema(schema), closer)
    return Request(
        id=id,
        prompts=[np.array(prompt, np.int32)],
        sampling=Sampling(seed=1, **sampling),  # type: ignore[arg-type]
        max_tokens=(grammar.minimum_tokens or 0) + spare,
        grammar=grammar,
    )


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def test_every_answer_is_whole(
    executor: Lent, model: GgufFile, tokenizer: Tokenizer, closer: Closer
) -> None:
    requests = [
        asked(model, tokenizer, f"{number}-{spare}", "Who are you? 你是谁？", schema, closer, spare,
              temperature=0.7 if spare % 2 else 0.0)
        for number, schema in enumerate(SCHEMAS)
        for spare in (0, 1, 4, 25)
    ]  # fmt: skip
    found, _ = answers(executor, tokenizer, requests)
    for request, events in zip(requests, found, strict=True):
        json.loads(text(events))
        assert len(events) <= (request.max_tokens or 0)
    one = requests[-1]
    assert answers(executor, tokenizer, [one])[0][0] == found[-1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_repeated_names_are_listed_as_without_guesses(
    executor: Lent, model: GgufFile, tokenizer: Tokenizer, closer: Closer, temperature: float
) -> None:
    """B43: complete, valid, and identical with speculation."""
    request = asked(model, tokenizer, "r", QUESTION, NAMES, closer, 60, temperature=temperature)
    plain, _ = answers(executor, tokenizer, [request])
    guessed, now = answers(executor, tokenizer, [request], "auto")
    assert guessed == plain
    assert now.speculation["ngram"].drafted > 0
    value = json.loads(text(plain[0]))
    assert all(isinstance(name, str) for name in value["names"])


def test_logprobs_are_of_the_raw_distribution(
    executor: Lent, model: GgufFile, tokenizer: Tokenizer, closer: Closer
) -> None:
    request = asked(model, tokenizer, "r", "Hello!", PERSON, closer, 4, logprobs=3)
    found, _ = answers(executor, tokenizer, [request])
    first = found[0][0].logprobs
    assert first is not None
    assert first[0].token not in [other.token for other in first[0].top]  # no model begins so
    assert first[0].logprob > -100
