"""SentencePiece BPE (`tokenizer.ggml.model = llama`), by Hugging Face's `tokenizers`.

The file holds scores and no merges. A merge exists wherever a token is two others side by side;
the higher its score the earlier it is (Kudo and Richardson 2018, and Hugging Face's converter
of slow tokenizers). Characters outside the vocabulary fall back to their UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers

from engine.protocol.errors import ModelFileError
from engine.text.vocabulary import TokenType, Vocabulary, required

_SPACE = "\u2581"


class SentencePiece:
    """
    token_bytes: the bytes of each id
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if vocabulary.unknown is None:
            raise ModelFileError("The tokenizer names no unknown token, which its kind needs.")
        scores = [float(score) for score in required(metadata, "scores")]
        if len(scores) != len(vocabulary.tokens):
            raise ModelFileError("The tokenizer has not one score for each token: damaged file.")
        self.token_bytes = [
            _bytes_of(token, kind)
            for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        ]
        pieces = _pieces(vocabulary)
        unknown = vocabulary.tokens[vocabulary.unknown]
        self._tokenizer = Tokenizer(
            models.BPE(
                vocab={**pieces, **_bytes(vocabulary), unknown: vocabulary.unknown},
                merges=_merges(pieces, scores),
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        replace = normalizers.Replace(" ", _SPACE)
        self._tokenizer.normalizer = (
            normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
        )

    def encode(self, text: str) -> NDArray[np.int32]:
        """Well-formed text to ids, with the space in front that this kind adds to a text."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def _pieces(vocabulary: Vocabulary) -> dict[str, int]:
    return {
        token: i
        for i, token in enumerate(vocabulary.tokens)
        if vocabulary.types[i] == TokenType.NORMAL
    }


def _bytes(vocabulary: Vocabulary) -> dict[str, int]:
    return {
        token: i
        for i, token in enumerate(vocabulary.tokens)
        if vocabulary.types[i] == TokenType.BYTE
    }


def _merges(pieces: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    merges = [
        (scores[i], -i, token[:cut], token[cut:])
        for token, i in pieces.items()
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    merges.sort(key=lambda merge: (merge[0], merge[1]), reverse=True)
    return [(left, right) for _, _, left, right in merges]


def _bytes_of(token: str, kind: int) -> bytes:
    if kind == TokenType.BYTE:
        return _byte(token)
    if kind in (TokenType.NORMAL, TokenType.UNUSED, TokenType.USER_DEFINED):
        return token.replace(_SPACE, " ").encode()
    return token.encode()


def _byte(token: str) -> bytes:
    try:
        return bytes([int(token.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError as error:
        raise ModelFileError(
            f"The tokenizer's byte token {token!r} is not of the form <0x00>: damaged file."
        ) from error
