"""Byte-level BPE, merged by tiktoken. Its Rust part lets other threads run meanwhile.

tiktoken merges the adjacent pair whose joined bytes have the lowest rank; Hugging Face's BPE
merges the adjacent pair that stands earliest in the list of merges. Both do the same when a
rank is the position at which bytes are first made in that list, and everything is made of what
was made before, which holds for trained vocabularies and is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from engine.protocol.errors import ModelFileError
from engine.text.pretokenizers import pattern_of
from engine.text.vocabulary import TokenType, Vocabulary, required

_BYTES = 256
_BETWEEN_ITEMS, _BETWEEN_HALVES = "\uffff", "\ufffe"
"""Noncharacters, which no token contains: the lists are translated as one string."""


def _letters() -> dict[int, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the rest for 256 onward."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(_BYTES) if byte not in own)
    return {_BYTES + n: byte for n, byte in enumerate(moved)}


_LETTERS = _letters()


class ByteBpe:
    """
    token_bytes: the bytes of each id
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        pattern = pattern_of(str(required(metadata, "pre")))
        ranks = _ranks([str(merge) for merge in required(metadata, "merges")])
        self.token_bytes = _token_bytes(vocabulary)
        self._id_of_rank = _id_of_rank(ranks, self.token_bytes, vocabulary)
        self._encoding = tiktoken.Encoding(
            "gguf", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, text: str) -> NDArray[np.int32]:
        """Well-formed text to ids. A byte that the vocabulary lacks is the unknown token, and
        left out where there is none, as Hugging Face's BPE does."""
        ranks = self._encoding.encode_to_numpy(text, disallowed_special=())
        ids = self._id_of_rank[ranks]
        return ids[ids >= 0]


def _ranks(merges: Sequence[str]) -> dict[bytes, int]:
    made = {chr(byte): byte for byte in range(_BYTES)}
    joined = _BETWEEN_ITEMS.join(merges).replace(" ", _BETWEEN_HALVES).translate(_LETTERS)
    for number, merge in enumerate(joined.split(_BETWEEN_ITEMS) if merges else ()):
        left, _, right = merge.partition(_BETWEEN_HALVES)
        if left not in made or right not in made:
            raise ModelFileError(
                f"Merge {number} of the tokenizer, {merges[number]!r}, is not of two tokens made "
                "before it: this is not a trained byte-level BPE."
            )
        made.setdefault(left + right, _BYTES + number)
    return {word.encode("latin-1"): rank for word, rank in made.items()}


def _token_bytes(vocabulary: Vocabulary) -> list[bytes]:
    joined = _BETWEEN_ITEMS.join(vocabulary.tokens).translate(_LETTERS)
    plain = (TokenType.NORMAL, TokenType.UNUSED)
    return [
        _latin(letters, token) if kind in plain else token.encode()
        for letters, token, kind in zip(
            joined.split(_BETWEEN_ITEMS), vocabulary.tokens, vocabulary.types, strict=True
        )
    ]


def _latin(letters: str, token: str) -> bytes:
    """A token with letters beyond GPT-2's alphabet stands for its own UTF-8."""
    try:
        return letters.encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _id_of_rank(
    ranks: dict[bytes, int], token_bytes: list[bytes], vocabulary: Vocabulary
) -> NDArray[np.int32]:
    """int32[highest rank + 1]. Takes merges to markers out of `ranks`: text never makes those."""
    markers = frozenset(vocabulary.markers.values())
    ids = {word: i for i, word in enumerate(token_bytes) if i not in markers}
    for word in [word for word in ranks if len(word) > 1 and word not in ids]:
        if word not in token_bytes:
            raise ModelFileError(
                f"The tokenizer merges to {word!r}, which is not in its vocabulary: "
                "the file is damaged."
            )
        del ranks[word]
    missing = -1 if vocabulary.unknown is None else vocabulary.unknown
    table = np.full(max(ranks.values()) + 1, missing, np.int32)
    for word, rank in ranks.items():
        table[rank] = ids.get(word, missing)
    return table
