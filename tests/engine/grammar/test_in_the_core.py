"""Answers of a set form through the core: whole at any cap, and the same whatever happens."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from engine.grammar.closing import Closer
from engine.grammar.compiled import compile_grammar
from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import Event
from engine.protocol.grammar import Grammar
from engine.protocol.sampling import Sampling
from engine.request import Request
from tests.engine.grammar.schemas import PERSON, SCHEMAS, of_schema
from tests.fakes.guesses import Bend, Bent, bends, of_request
from tests.fakes.rig import Rig, request_of
from tests.fakes.tokenizer import END, VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("tireless")
BENDS = bends(END)
FREE = Sampling(temperature=1.0, seed=5)


@pytest.fixture
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposers that are never right are believed for ever, so that wrong guesses keep coming."""
    monkeypatch.setattr("engine.speculate.trust._LEARNING_RATE", 0.0)


def formed(id: str, schema: Any, closer: Closer, max_tokens: int, **rest: Any) -> Request:
    compiled = compile_grammar(of_schema(schema), closer)
    fields = {"sampling": FREE, "grammar": compiled} | rest
    return request_of(id, f"prompt of {id}", max_tokens, **fields)


def events(rig: Rig, request: Request) -> list[Event]:
    return [replace(event, usage=None) for event in rig.sink.events(request.id, 0)]


def text(found: list[Event]) -> str:
    return "".join(event.text for event in found)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_answers_are_whole_at_every_cap(schema: Any, byte_closer: Closer) -> None:
    minimum = compile_grammar(of_schema(schema), byte_closer).minimum_tokens
    assert minimum is not None
    rig = Rig()
    requests = [
        formed(f"r{spare}", schema, byte_closer, minimum + spare) for spare in range(0, 60, 3)
    ]
    for request in requests:
        rig.submit(request)
    rig.run()
    rig.assert_drained()
    for request in requests:
        found = events(rig, request)
        json.loads(text(found))
        assert found[-1].finish in ("stop", "length")
        if found[-1].finish == "length":
            assert sum(event.tokens for event in found) == request.max_tokens


def alone(request: Request) -> list[Event]:
    rig = Rig()
    rig.submit(request)
    rig.run()
    return events(rig, request)


def test_the_same_answer_in_a_crowd_and_after_preemptions(byte_closer: Closer) -> None:
    requests = [
        formed(f"r{number}", schema, byte_closer, 90, expected_tokens=1)
        for number, schema in enumerate([*SCHEMAS, *4 * [{"type": "array", "minItems": 20}]])
    ]
    rig = Rig(num_blocks=10, max_num_batched_tokens=16)
    for request in requests:
        rig.submit(request)
    rig.run()
    assert rig.core.statistics().preemptions > 0
    for request in requests:
        assert events(rig, request) == alone(request)


def knowing(said: list[int], bend: Bend, request: Request) -> Bent:
    return Bent(said, VOCAB_SIZE, bend)


@pytest.mark.parametrize("bend", BENDS)
def test_the_same_answer_with_guesses(bend: str, byte_closer: Closer) -> None:
    for number, schema in enumerate(SCHEMAS):
        request = formed(f"r{number}", schema, byte_closer, 70)
        plain = alone(request)
        said = list(text(plain).encode())
        rig = Rig(proposers=of_request(partial(knowing, said, BENDS[bend])))
        rig.submit(request)
        rig.run()
        assert events(rig, request) == plain
        rig.assert_drained()


def test_one_that_leaves_changes_nothing_for_the_other(byte_closer: Closer) -> None:
    stays, leaves = (formed(id, PERSON, byte_closer, 60) for id in ("stays", "leaves"))
    rig = Rig()
    rig.submit(stays)
    rig.submit(leaves)
    for _ in range(9):
        rig.core.turn()
    rig.core.cancel(rig.sink, "leaves")
    rig.run()
    assert events(rig, stays) == alone(stays)
    rig.assert_drained()


def test_the_end_beats_min_tokens_and_ignore_eos(byte_closer: Closer) -> None:
    sampling = replace(FREE, min_tokens=50, ignore_eos=True)
    grammar = compile_grammar(Grammar("regex", "[ab]{3}"), byte_closer)
    request = request_of("r", "x", 60, sampling=sampling, grammar=grammar)
    found = alone(request)
    assert len(text(found)) == 3
    assert found[-1].finish == "stop"


def test_a_cap_below_the_minimum_is_refused_at_the_door(byte_closer: Closer) -> None:
    with pytest.raises(InvalidRequest, match="shortest answer"):
        Rig().core.check_request(formed("r", PERSON, byte_closer, 18))


def test_no_landing_cuts_a_form(byte_closer: Closer) -> None:
    found = alone(formed("r", {"type": "string"}, byte_closer, 60, soft_max_tokens=2))
    json.loads(text(found))
    assert not found[-1].landed


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone(byte_closer: Closer) -> None:
    steep = compile_grammar(Grammar("regex", "(x{1,500}y?){1,500}z"), byte_closer)
    only_x = replace(FREE, allowed_token_ids=[ord("x")])
    other = formed("other", PERSON, byte_closer, 40)
    rig = Rig()
    rig.submit(request_of("steep", "x", 900, sampling=only_x, grammar=steep))
    rig.submit(other)
    rig.run()
    assert "too complex" in rig.sink.failure("steep").message
    assert events(rig, other) == alone(other)
    rig.assert_drained()
