"""The model's vocabulary, as llguidance reads it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from llguidance import LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from numpy.typing import NDArray

Mask = NDArray[np.uint32]
"""uint32[ceil(vocabulary / 32)]: the bit of every token that may come, lowest bit first."""


class Words(Protocol):
    """What is asked of `engine.text.tokenizer.Tokenizer`."""

    vocab_size: int
    control_ids: frozenset[int]
    end_ids: frozenset[int]

    def encode(self, text: str, /) -> list[int]: ...
    def token_bytes(self, token: int, /) -> bytes: ...


class Vocabulary:
    """Made once a model: it takes a fifth of a second.

    words:   the bytes of each id; nothing for those that are no text
    end_ids: any of them may end an answer, where one may end; `end_mask` has their bits
    size:    tokens of the model's logits; the tokenizer may know fewer
    """

    def __init__(self, tokenizer: Words, size: int) -> None:
        known = min(tokenizer.vocab_size, size)
        self.size = size
        self.end_ids = frozenset(token for token in tokenizer.end_ids if token < known)
        control = tokenizer.control_ids | self.end_ids
        named = [tokenizer.token_bytes(token) for token in range(known)] + [b""] * (size - known)
        self.words = [b"" if id in control else word for id, word in enumerate(named)]
        self._id_of = {word: id for id, word in reversed(list(enumerate(self.words))) if word}
        self._longest = max(map(len, self._id_of))
        self._encode = tokenizer.encode
        source = _Source(self, named, sorted(control))
        self.native = LLTokenizer(
            TokenizerWrapper(source), n_vocab=size, eos_token=sorted(self.end_ids)
        )

        self.end_mask = np.bitwise_or.reduce([self.single(token) for token in self.end_ids])

    def single(self, token: int) -> Mask:
        """The mask of one token."""
        mask = np.zeros(-(-self.size // 32), np.uint32)
        mask[token // 32] = np.uint32(1 << (token % 32))
        return mask

    def tokens_of(self, text: bytes) -> list[int]:
        """The tokens that the model would use for a text, where those say exactly that text;
        otherwise the longest that there are, from the left. Bytes without a token are left out."""
        ids = self._encode(text.decode("utf-8", "replace"))
        if b"".join(self.words[id] for id in ids) == text:
            return ids
        return self._from_the_left(text)

    def _from_the_left(self, text: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(text):
            lengths = range(min(self._longest, len(text) - start), 0, -1)
            found = next((n for n in lengths if text[start : start + n] in self._id_of), 0)
            if found:
                ids.append(self._id_of[text[start : start + found]])
            start += found or 1
        return ids


class _Source:
    """What llguidance's `TokenizerWrapper` looks for in a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, tokens: list[bytes], special: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = min(vocabulary.end_ids)
        self.special_token_ids = special
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        return self._vocabulary.tokens_of(text)
