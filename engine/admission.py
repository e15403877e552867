"""What may enter: requests that can fit at all, and sequences that fit now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv import KVPool
from engine.protocol.errors import ContextLengthExceeded
from engine.request import Request
from engine.runner.base import BLOCK_TOKENS
from engine.sequence import Sequence, blocks_for

_WATERMARK = 0.01
"""Share of the pool that admission leaves free, so that running sequences can grow."""
_INITIAL_OUTPUT_TOKENS = 256
_LEARNING_RATE = 1 / 32


@dataclass(frozen=True, slots=True)
class Limits:
    """What no request may exceed.

    max_model_len: tokens of one choice, prompt and output together
    num_blocks:    blocks of the KV pool
    """

    max_model_len: int
    num_blocks: int

    @property
    def pool_tokens(self) -> int:
        return self.num_blocks * BLOCK_TOKENS

    def max_tokens(self, request: Request) -> list[int]:
        """The output cap of a choice, for each prompt.

        Raises `ContextLengthExceeded`, with what is needed and what there is, when the prompt
        and its n outputs can never fit the context or the pool. Without a cap of its own,
        or with one that may be clamped, a request gets what both leave.
        """
        return [self._cap(len(prompt), request) for prompt in request.prompts]

    def _cap(self, prompt: int, request: Request) -> int:
        n = request.n
        left = min(self.max_model_len - prompt, self._pool_leaves(prompt, n))
        cap = request.max_tokens or max(1, left)
        if request.clamp:
            cap = min(cap, max(1, left))
        if prompt + cap > self.max_model_len:
            raise ContextLengthExceeded(
                f"The context holds {self.max_model_len} tokens, but {prompt + cap} are needed: "
                f"{prompt} for the prompt and {cap} for the output. Shorten the prompt or lower "
                f"max_tokens; the server's setting is max_model_len.",
                param=request.prompt_field,
            )
        shared = _shared_blocks(prompt)
        needed = shared + n * (blocks_for(prompt + cap) - shared)
        if needed > self.num_blocks:
            raise ContextLengthExceeded(
                f"The KV cache holds {self.pool_tokens} tokens, but {needed * BLOCK_TOKENS} are "
                f"needed: {prompt} for the prompt and {n} x {cap} for the output, in whole "
                f"blocks. Shorten the prompt or lower max_tokens or n; the server's setting is "
                f"kv_cache_mb.",
                param=request.prompt_field,
            )
        return cap

    def _pool_leaves(self, prompt: int, n: int) -> int:
        shared = _shared_blocks(prompt)
        own = (self.num_blocks - shared) // n
        return (shared + own) * BLOCK_TOKENS - prompt


def _shared_blocks(prompt: int) -> int:
    """Full prompt blocks that all choices of a prompt share; the last token is always computed."""
    return (prompt - 1) // BLOCK_TOKENS


class Reservations:
    """Who may start now: a sequence is let in when its expected length fits beside the others.

    The whole prompt must fit, not only its first chunk; the output is reserved at its expected
    length and not at its cap, which most answers stay far below. What that underestimates,
    preemption corrects.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._watermark = max(1, math.ceil(pool.num_blocks * _WATERMARK))

    def fits(self, sequence: Sequence, cached: list[int], running: Iterable[Sequence]) -> bool:
        """True when `sequence` may start, given the `cached` blocks it would share."""
        promised = sum(
            max(0, blocks_for(other.reserved_tokens) - other.num_blocks) for other in running
        )
        idle = sum(self._pool.refs(block) == 0 for block in cached)
        needed = blocks_for(sequence.reserved_tokens) - len(cached) + idle
        return needed + promised + self._watermark <= self._pool.num_free


class ExpectedLength:
    """A running mean of how long outputs were, for requests that do not say what to expect."""

    def __init__(self) -> None:
        self._mean_tokens = float(_INITIAL_OUTPUT_TOKENS)

    @property
    def tokens(self) -> int:
        return max(1, math.ceil(self._mean_tokens))

    def observe(self, tokens: int) -> None:
        """Learn from a finished output."""
        self._mean_tokens += (tokens - self._mean_tokens) * _LEARNING_RATE
