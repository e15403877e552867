"""Compiles grammars away from the step loop and from the server's: bounded in number and time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from engine.grammar.cache import GrammarCache, Tenant
from engine.protocol.errors import InvalidRequest, Overloaded
from engine.protocol.grammar import Grammar

if TYPE_CHECKING:
    from engine.grammar.closing import Closer
    from engine.grammar.compiled import Compiled
    from engine.grammar.vocabulary import Words

MAX_COMPILE_S = 5.0
"""How long a request waits for its grammar, the queue included."""
MAX_WAITING = 32
_THREADS = 2


class GrammarCompiler:
    """Called on the event loop. Its threads run llguidance, which lets other threads run.

    vocab_size: tokens of the model's logits
    """

    def __init__(self, tokenizer: Words, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._closer: Closer | None = None
        self._first = Lock()
        self._cache = GrammarCache()
        self._pending: dict[tuple[Tenant, Grammar], asyncio.Future[Compiled]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def compile(self, grammar: Grammar, tenant: Tenant) -> Compiled:
        """The tenant's compiled grammar, kept from before or made now.

        Raises `InvalidRequest` for one that cannot be honoured or takes too long, and
        `Overloaded` while too many wait. What fails is not kept.
        """
        if (found := self._cache.get(tenant, grammar)) is not None:
            return found
        pending = self._pending.get((tenant, grammar)) or self._begin(grammar, tenant)
        try:
            async with asyncio.timeout(MAX_COMPILE_S):
                return await asyncio.shield(pending)
        except TimeoutError:
            raise InvalidRequest(
                f"The grammar took more than {MAX_COMPILE_S:.0f} s to compile. Use a simpler one.",
                param=grammar.param,
            ) from None

    def _begin(self, grammar: Grammar, tenant: Tenant) -> asyncio.Future[Compiled]:
        if len(self._pending) >= MAX_WAITING:
            raise Overloaded("Too many grammars wait to be compiled.", retry_after_s=1.0)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, self._compile, grammar)
        self._pending[tenant, grammar] = future
        future.add_done_callback(partial(self._done, grammar, tenant))
        return future

    def _compile(self, grammar: Grammar) -> Compiled:
        # A third of a second, which nobody pays for who asks for no form.
        from engine.grammar import compiled
        from engine.grammar.closing import Closer
        from engine.grammar.vocabulary import Vocabulary

        with self._first:
            if self._closer is None:
                self._closer = Closer(Vocabulary(self._tokenizer, self._vocab_size))
        return compiled.compile_grammar(grammar, self._closer)

    def _done(self, grammar: Grammar, tenant: Tenant, future: asyncio.Future[Compiled]) -> None:
        del self._pending[tenant, grammar]
        if not future.cancelled() and future.exception() is None:
            self._cache.put(tenant, grammar, future.result())
