"""Masks are a function of the tokens, and a capped answer in JSON is always whole."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.closing import Closer
from engine.grammar.compiled import Compiled, compile_grammar
from engine.grammar.state import GrammarState
from engine.protocol.grammar import Grammar
from engine.runner.base import Int32
from tests.engine.grammar.schemas import PERSON, SCHEMAS, of_schema
from tests.fakes.tokenizer import END


def ids(text: str) -> Int32:
    return np.array(list(text.encode()), np.int32)


def allowed(state: GrammarState, output: Int32) -> list[int] | None:
    mask = state.mask(output)
    if mask is None:
        return None
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def answer(compiled: Compiled, max_tokens: int, rng: random.Random, ends: frozenset[int]) -> Int32:
    """Any answer, by chance."""
    state, output = compiled.begin(max_tokens), np.empty(0, np.int32)
    while len(output) < max_tokens:
        choices = allowed(state, output)
        assert choices, state.error
        token = rng.choice(choices)
        if token in ends:
            break
        if state.keep(output, [token]):
            output = np.append(output, np.int32(token))
    return output


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
@pytest.mark.parametrize("spare", [0, 1, 2, 5, 17, 60])
def test_a_capped_answer_is_whole(schema: object, spare: int, closer: Closer) -> None:
    compiled = compile_grammar(of_schema(schema), closer)
    assert compiled.minimum_tokens is not None
    words, ends = closer.vocabulary.words, closer.vocabulary.end_ids
    for seed in range(3):
        output = answer(compiled, compiled.minimum_tokens + spare, random.Random(seed), ends)
        json.loads(b"".join(words[token] for token in output))


def test_the_end_comes_only_where_the_answer_is_whole(byte_closer: Closer) -> None:
    state = compile_grammar(of_schema(PERSON), byte_closer).begin(100)
    text = '{"name":"三","age":7'
    for length in range(len(ids(text)) + 1):
        found = allowed(state, ids(text)[:length])
        assert found
        assert END not in found
    assert allowed(state, ids(text + "}")) == [END]


def test_what_never_begins_an_answer_has_no_mask(byte_closer: Closer) -> None:
    state = compile_grammar(of_schema(PERSON), byte_closer).begin(100)
    assert state.mask(ids('{"x')) is None
    assert allowed(state, ids('{"')) == [ord("n")]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_mask_is_a_function_of_the_tokens(data: st.DataObject, byte_closer: Closer) -> None:
    compiled = compile_grammar(of_schema(data.draw(st.sampled_from(SCHEMAS))), byte_closer)
    assert compiled.minimum_tokens is not None
    cap = compiled.minimum_tokens + data.draw(st.integers(0, 20))
    rng = random.Random(data.draw(st.integers(0, 9)))
    texts = [answer(compiled, cap, rng, frozenset({END})) for _ in range(3)]
    wandering = compiled.begin(cap)
    for _ in range(6):  # there and back again, over guesses and over nonsense
        text = data.draw(st.sampled_from(texts))
        output = text[: data.draw(st.integers(0, max(0, min(len(text), cap - 1))))]
        wandering.mask(np.append(output, np.int32(data.draw(st.integers(0, 255)))))
        wandering.usable(output, [ord("{"), ord("x"), 200])
        steady = compiled.begin(cap)
        for length in range(len(output)):
            steady.mask(output[:length])
        assert allowed(wandering, output) == allowed(steady, output)


def test_guesses_are_usable_as_far_as_the_grammar_goes(byte_closer: Closer) -> None:
    state = compile_grammar(of_schema(PERSON), byte_closer).begin(100)
    guesses = ids('"name":"Bo" }').tolist()
    assert state.usable(ids("{"), guesses) == len('"name":"Bo"')
    assert state.usable(ids("{"), []) == 0
    assert state.usable(ids("nonsense"), guesses) == 0


def test_what_could_not_be_closed_any_more_is_not_begun(byte_closer: Closer) -> None:
    schema = {"type": "array", "items": {"const": "a long text"}}
    text = '["a long text"'
    state = compile_grammar(of_schema(schema), byte_closer).begin(len(text) + 5)
    comma = ord(",")
    found = allowed(state, ids(text))
    assert found is not None
    assert comma in found
    assert state.keep(ids(text), [comma]) == 0
    assert allowed(state, ids(text)) == [ord("]")]
    assert state.keep(ids(text), [ord("]")]) == 1


def test_where_only_closing_is_left_nothing_else_may_come(byte_closer: Closer) -> None:
    state = compile_grammar(of_schema({"type": "string"}), byte_closer).begin(4)
    assert len(allowed(state, ids('"a')) or ()) > 1
    assert allowed(state, ids('"ab')) == [ord('"')]


def test_an_answer_without_a_cap_in_sight_is_free(byte_closer: Closer) -> None:
    state = compile_grammar(Grammar("regex", "[ab]{3}"), byte_closer).begin(2)
    assert allowed(state, ids("a")) == [ord("a"), ord("b")]
    assert state.keep(ids("a"), [ord("b")]) == 1


def test_a_grammar_that_becomes_too_complex_ends_the_answer(byte_closer: Closer) -> None:
    steep = Grammar("regex", "(x{1,500}y?){1,500}z")
    state = compile_grammar(steep, byte_closer).begin(4000)
    assert allowed(state, ids("x" * 800)) == []
    assert "too many expressions" in state.error
    assert state.usable(ids("x" * 800), [1]) == 0
