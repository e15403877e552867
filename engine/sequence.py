"""One choice of a request: its tokens, and how far the KV pool has caught up with them.

    0 ........ num_computed ........ num_tokens
    |  in KV   |     uncomputed      |
    |  prompt ... prompt_tokens ... output    |  guesses, while a step verifies them

A few lengths are stored and the rest is derived. A sequence that decodes has exactly one
uncomputed token, the one sampled last; a preempted one has all of them and is, to the
scheduler, simply a longer prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from engine.prefix import child_key
from engine.request import Request
from engine.runner.base import BLOCK_TOKENS, Int32
from engine.sampling.noise import mix_seed
from engine.speculate.drafter import Drafter

if TYPE_CHECKING:
    from engine.grammar.state import GrammarState

_GROWTH_TOKENS = 64


class Phase(Enum):
    """Where the scheduler keeps a sequence."""

    QUEUED = "queued"
    """Never ran; in the fair queue."""
    RETURNING = "returning"
    """Ran before, lost its blocks, and goes ahead of the queue."""
    PARKED = "parked"
    """Waits for blocks that a running sequence is about to publish."""
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


def blocks_for(tokens: int) -> int:
    """How many KV blocks hold this many tokens."""
    return -(-tokens // BLOCK_TOKENS)


class Sequence:
    """State of one choice. The scheduler moves it; nobody else writes to it but `append` and
    `guess`.

    order:          age, unique: (arrival number of the request, choice)
    max_tokens:     output tokens after which it ends
    expected_tokens: output tokens to reserve for, 1 to max_tokens
    end_ids:        token ids that end it (model's and request's)
    seed:           64-bit key of its noise
    num_computed:   tokens whose K and V are in the pool
    num_published:  leading blocks that the prefix cache knows, or was offered
    cached_tokens:  prompt tokens found in the cache when it first started
    drafter:        guesses what it will say next; None for nobody
    grammar:        where it stands in the form that it must have; None for free text
    """

    __slots__ = (
        "_buffer",
        "_keys",
        "_root",
        "_table",
        "cached_tokens",
        "choice",
        "drafter",
        "end_ids",
        "expected_tokens",
        "grammar",
        "max_computed",
        "max_tokens",
        "num_blocks",
        "num_computed",
        "num_published",
        "num_tokens",
        "order",
        "phase",
        "prompt_tokens",
        "recomputed_tokens",
        "request",
        "seed",
        "started",
        "waits_for",
    )

    def __init__(
        self,
        request: Request,
        choice: int,
        *,
        arrival_number: int,
        max_tokens: int,
        expected_tokens: int,
        seed: int,
        end_ids: frozenset[int],
        root: bytes,
        drafter: Drafter | None = None,
        grammar: GrammarState | None = None,
    ) -> None:
        prompt = request.prompts[choice // request.n]
        self.request = request
        self.choice = choice
        self.order = (arrival_number, choice)
        self.max_tokens = max_tokens
        self.expected_tokens = min(max_tokens, max(1, expected_tokens))
        self.seed = mix_seed(seed, choice)
        self.end_ids = end_ids
        self.prompt_tokens = self.num_tokens = len(prompt)
        # Shared by all choices until they say something of their own.
        self._buffer = prompt
        self._root = root
        self.drafter = drafter
        self.grammar = grammar
        self._keys: list[bytes] = []
        self._table = np.empty(0, np.int32)
        self.num_blocks = self.num_computed = self.num_published = 0
        self.max_computed = self.recomputed_tokens = self.cached_tokens = 0
        self.phase = Phase.QUEUED
        self.started = False
        self.waits_for: bytes | None = None

    @property
    def uncomputed(self) -> int:
        """Tokens still to be run before the next one can be sampled; at least 1 while alive."""
        return self.num_tokens - self.num_computed

    @property
    def output_tokens(self) -> int:
        return self.num_tokens - self.prompt_tokens

    @property
    def reserved_tokens(self) -> int:
        """Tokens to hold room for: the expected answer, or a block more once it is longer."""
        output = max(self.expected_tokens, self.output_tokens + BLOCK_TOKENS)
        return self.prompt_tokens + min(self.max_tokens, output)

    @property
    def prompt(self) -> Int32:
        """int32[P], a view."""
        return self._buffer[: self.prompt_tokens]

    @property
    def output(self) -> Int32:
        """int32[O], a view; `append` may leave it behind on an old buffer, still correct."""
        return self.output_until(self.num_tokens)

    def output_until(self, end: int) -> Int32:
        """The output as it is, or with guesses would be, at a length of `end` tokens. A view."""
        return self._buffer[self.prompt_tokens : end]

    def tokens(self, start: int, end: int) -> Int32:
        """int32[end - start], a view; beyond `num_tokens` of the latest guesses."""
        return self._buffer[start:end]

    def append(self, token: int) -> None:
        """Add a sampled token, in the place of a guess if there is one."""
        self._grow(1)
        self._buffer[self.num_tokens] = token
        self.num_tokens += 1

    def guess(self, tokens: list[int]) -> None:
        """Put guesses behind the tokens, for the next step to verify: fewer than are left."""
        if tokens:
            self._grow(len(tokens))
            self._buffer[self.num_tokens : self.num_tokens + len(tokens)] = tokens

    def _grow(self, more: int) -> None:
        if self.num_tokens + more > len(self._buffer):
            output = self.output_tokens
            room = min(self.max_tokens, max(_GROWTH_TOKENS, 2 * output, output + more))
            grown = np.empty(self.prompt_tokens + room, np.int32)
            grown[: self.num_tokens] = self._buffer[: self.num_tokens]
            self._buffer = grown

    @property
    def table(self) -> Int32:
        """int32[num_blocks], a view of the block table."""
        return self._table[: self.num_blocks]

    def add_blocks(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self.num_blocks == len(self._table):
                grown = np.empty(max(8, 2 * self.num_blocks), np.int32)
                grown[: self.num_blocks] = self._table
                self._table = grown
            self._table[self.num_blocks] = block
            self.num_blocks += 1

    def take_blocks(self) -> list[int]:
        """Hand the block table over for release: nothing of the sequence is in KV any more."""
        blocks: list[int] = self.table.tolist()
        self.num_blocks = self.num_computed = self.num_published = 0
        return blocks

    def advance(self, tokens: int) -> int:
        """Count tokens as computed. Returns how many of them had been computed before."""
        before = self.num_computed
        self.num_computed += tokens
        again = max(0, min(self.max_computed, self.num_computed) - before)
        self.max_computed = max(self.max_computed, self.num_computed)
        self.recomputed_tokens += again
        return again

    def block_bytes(self, index: int) -> bytes:
        """The int32 bytes of the tokens of a full block."""
        return self._buffer[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS].tobytes()

    def key(self, index: int) -> bytes:
        """The chained key of a full block. Keys are made once, when first asked for."""
        while len(self._keys) <= index:
            parent = self._keys[-1] if self._keys else self._root
            self._keys.append(child_key(parent, self.block_bytes(len(self._keys))))
        return self._keys[index]

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request.id}/{self.choice} {self.phase.value} "
            f"computed={self.num_computed}/{self.num_tokens} blocks={self.num_blocks}>"
        )
