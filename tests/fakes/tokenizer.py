"""A tokenizer of bytes: ids 0 to 255 are bytes, then one end token and one other control token."""

from __future__ import annotations

from typing import cast

from engine.text.tokenizer import Tokenizer

END = 256
START = 257
VOCAB_SIZE = 258


class ByteTokenizer:
    """What the engine asks of a tokenizer, with tokens that tests can compute in their heads."""

    vocab_size = VOCAB_SIZE
    end_ids = frozenset({END})
    control_ids = frozenset({END, START})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, id: int) -> bytes:
        return {END: b"<end>", START: b"<start>"}.get(id) or bytes([id])

    def text_bytes(self, id: int) -> bytes:
        return b"" if id in self.control_ids else bytes([id])

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(self.text_bytes, ids)).decode("utf-8", "replace")


def byte_tokenizer() -> Tokenizer:
    """The same, under the type that the engine's constructors name."""
    return cast("Tokenizer", ByteTokenizer())
