"""An executor whose next token is a hash of what it finds in its KV memory.

It computes nothing, but it cannot be fooled: a wrong block, a stale slot, a position that was
never written, a chunk in the wrong order all change the token, or raise `Mismatch`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from engine.protocol.sampling import Sampling
from engine.runner.base import BLOCK_TOKENS, Batch, Executor, ModelShape, Sampled, SampleRow
from engine.sampling.noise import mix_seed


class Mismatch(Exception):
    """The batch contradicts itself or the KV memory."""


class HashExecutor(Executor):
    """Deterministic in each sequence alone.

    end_id, end_every: one token in `end_every` is `end_id`; 0 for none but by chance
    on_run:    called with each batch before it is computed; may raise
    """

    name = "hash"

    def __init__(
        self,
        vocab_size: int = 258,
        *,
        context_length: int = 65536,
        end_id: int = 256,
        end_every: int = 0,
        on_run: Callable[[Batch], None] | None = None,
    ) -> None:
        self.shape = ModelShape(
            name="hash", architecture="hash", layers=1, hidden=1, heads=1, kv_heads=1, head_dim=1,
            vocab_size=vocab_size, context_length=context_length, num_weights=0,
            weight_bytes=0, kv_bytes_per_token=16, kv_dtype="tokens", activation_bytes_per_token=0,
            precision="tokens",
        )  # fmt: skip
        self.end_id, self.end_every, self.on_run = end_id, end_every, on_run
        self.closed = False
        self.max_rows = 0
        self._tokens = np.empty(0, np.int32)
        self._positions = np.empty(0, np.int32)

    def allocate(self, num_blocks: int) -> None:
        if len(self._tokens):
            raise Mismatch("The KV memory was allocated twice.")
        self._tokens = np.full(num_blocks * BLOCK_TOKENS, -1, np.int32)
        self._positions = np.full(num_blocks * BLOCK_TOKENS, -1, np.int32)

    def close(self) -> None:
        self.closed = True

    def run(self, batch: Batch) -> list[Sampled]:
        if self.on_run is not None:
            self.on_run(batch)
        self.max_rows = max(self.max_rows, len(batch.tokens))
        self._write(batch)
        return [self._sample(batch, sample) for sample in batch.samples]

    def next_token(
        self,
        tokens: list[int],
        prompt_tokens: int,
        sampling: Sampling,
        key: int,
        masked: frozenset[int] = frozenset(),
    ) -> int:
        """What follows `tokens`; -1 if nothing may. `key` counts unless sampling is greedy.

        masked: ids that a grammar does not let come; where it lets come only the end, that comes
        """
        data = np.array(tokens, np.int32).tobytes()
        salt = b"" if sampling.greedy else key.to_bytes(8, "little")
        number = int.from_bytes(blake2b(data + salt, digest_size=8).digest(), "little")
        produced = len(tokens) - prompt_tokens
        ends = self.end_every and number % self.end_every == 0 and produced >= sampling.min_tokens
        if ends and self.end_id not in masked:
            return self.end_id
        allowed = set(sampling.allowed_token_ids or range(self.shape.vocab_size))
        allowed -= {*sampling.bad_token_ids, self.end_id, *masked}
        ordered = sorted(allowed)
        if masked and not ordered and self.end_id not in masked:
            return self.end_id
        return ordered[number % len(ordered)] if ordered else -1

    def generate(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: Sampling,
        *,
        seed: int = 0,
        choice: int = 0,
    ) -> list[int]:
        """The whole output of a choice that runs alone; an end token included."""
        tokens = list(prompt)
        while len(tokens) < len(prompt) + max_tokens:
            tokens.append(self.next_token(tokens, len(prompt), sampling, mix_seed(seed, choice)))
            if tokens[-1] == self.end_id and not sampling.ignore_eos:
                break
        return tokens[len(prompt) :]

    def _write(self, batch: Batch) -> None:
        lengths = np.diff(batch.query_start)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        blocks = batch.block_table[owner, batch.positions // BLOCK_TOKENS]
        slots = blocks * BLOCK_TOKENS + batch.positions % BLOCK_TOKENS
        if (blocks < 0).any() or (slots != batch.slots).any():
            raise Mismatch("A slot is not where the block table says.")
        if len(np.unique(slots)) != len(slots):
            raise Mismatch("Two rows write one slot.")
        ends = batch.positions[batch.query_start[1:] - 1] + 1
        if (lengths < 1).any() or (ends != batch.context_len).any():
            raise Mismatch("context_len is not where the segment ends.")
        self._tokens[slots] = batch.tokens
        self._positions[slots] = batch.positions

    def _sample(self, batch: Batch, sample: SampleRow) -> Sampled:
        segment = int(np.searchsorted(batch.query_start, sample.row, "right")) - 1
        length = int(batch.positions[sample.row]) + 1
        positions = np.arange(length)
        table = batch.block_table[segment]
        slots = table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        if (self._positions[slots] != positions).any():
            raise Mismatch("The KV memory does not hold the sequence's positions.")
        tokens: list[int] = self._tokens[slots].tolist()
        if tokens != [*sample.prompt.tolist(), *sample.output.tolist()]:
            raise Mismatch("The KV memory holds other tokens than the sequence.")
        if sample.position != length:
            raise Mismatch("The sampled position does not follow the context.")
        masked = _masked(sample)
        token = self.next_token(tokens, len(sample.prompt), sample.sampling, sample.seed, masked)
        if sample.sampling.logprobs is None:
            return Sampled(token)
        top = np.arange(sample.sampling.logprobs, dtype=np.int32)
        return Sampled(token, -0.5, top, -np.arange(len(top), dtype=np.float32))


def _masked(sample: SampleRow) -> frozenset[int]:
    if sample.mask is None:
        return frozenset()
    bits = np.unpackbits(sample.mask.view(np.uint8), bitorder="little")
    return frozenset(np.flatnonzero(bits == 0).tolist())
