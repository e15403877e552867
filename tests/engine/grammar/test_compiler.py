"""Compiling away from the loop: once for a tenant, never for another, bounded in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from engine.grammar import compiled as compiling
from engine.grammar import compiler as module
from engine.grammar.cache import MAX_GRAMMARS, MAX_TENANTS, GrammarCache
from engine.grammar.closing import Closer
from engine.grammar.compiled import Compiled, compile_grammar
from engine.grammar.compiler import GrammarCompiler
from engine.protocol.errors import InvalidRequest, Overloaded
from engine.protocol.grammar import Grammar
from tests.engine.grammar.schemas import PERSON, of_schema
from tests.fakes.tokenizer import VOCAB_SIZE, ByteTokenizer

ALICE, BOB = ("alice", "salt"), ("bob", "salt")


@pytest.fixture
async def compiler() -> AsyncIterator[GrammarCompiler]:
    made = GrammarCompiler(ByteTokenizer(), VOCAB_SIZE)
    yield made
    made.close()


async def test_a_grammar_is_compiled_once_for_a_tenant(compiler: GrammarCompiler) -> None:
    grammar = of_schema(PERSON)
    first, second = await asyncio.gather(*(compiler.compile(grammar, ALICE) for _ in range(2)))
    assert first is second
    assert await compiler.compile(grammar, ALICE) is first


async def test_another_tenant_never_gets_it(compiler: GrammarCompiler) -> None:
    grammar = of_schema(PERSON)
    mine = await compiler.compile(grammar, ALICE)
    assert await compiler.compile(grammar, BOB) is not mine
    assert await compiler.compile(grammar, ("alice", "other salt")) is not mine


async def test_what_fails_is_not_kept(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="#/not"):
            await compiler.compile(of_schema({"not": {}}), ALICE)
    assert len(compiler._cache) == 0


async def test_what_takes_too_long_is_refused_and_others_go_on(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(grammar: Grammar, closer: Closer) -> Compiled:
        if grammar.kind == "regex":
            go_on.wait(10)
        return compile_grammar(grammar, closer)

    monkeypatch.setattr(compiling, "compile_grammar", slow)
    monkeypatch.setattr(module, "MAX_COMPILE_S", 0.05)
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    try:
        with pytest.raises(InvalidRequest, match="to compile") as refused:
            await compiler.compile(Grammar("regex", "a", "guided_regex"), ALICE)
        assert refused.value.param == "guided_regex"
        monkeypatch.setattr(module, "MAX_COMPILE_S", 5.0)
        assert await compiler.compile(of_schema(PERSON), ALICE)
        waiting = asyncio.create_task(compiler.compile(Grammar("regex", "b"), ALICE))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await compiler.compile(of_schema({}), ALICE)
    finally:
        go_on.set()
    assert await waiting


def test_the_least_recently_used_goes_first(byte_closer: Closer) -> None:
    compiled = compile_grammar(of_schema({}), byte_closer)
    cache, grammars = GrammarCache(), [Grammar("regex", str(n)) for n in range(MAX_GRAMMARS + 1)]
    for grammar in grammars[:-1]:
        cache.put(ALICE, grammar, compiled)
    assert cache.get(ALICE, grammars[0]) is compiled
    cache.put(ALICE, grammars[-1], compiled)
    assert cache.get(ALICE, grammars[1]) is None
    assert cache.get(ALICE, grammars[0]) is compiled
    assert len(cache) == MAX_GRAMMARS


def test_a_tenant_pushes_nobody_out(byte_closer: Closer) -> None:
    compiled = compile_grammar(of_schema({}), byte_closer)
    cache = GrammarCache()
    cache.put(BOB, of_schema({}), compiled)
    for number in range(10 * MAX_GRAMMARS):
        cache.put(ALICE, Grammar("regex", str(number)), compiled)
    assert cache.get(BOB, of_schema({})) is compiled
    for number in range(MAX_TENANTS):
        cache.put((str(number), ""), of_schema({}), compiled)
    assert len(cache) == MAX_TENANTS
