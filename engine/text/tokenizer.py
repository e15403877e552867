"""Text to token ids and back, built from what a GGUF file says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.protocol.errors import ModelFileError
from engine.text.byte_bpe import ByteBpe
from engine.text.sentencepiece import SentencePiece
from engine.text.vocabulary import TokenType, Vocabulary, required
from engine.text.wellformed import well_formed


class Codec(Protocol):
    """One kind of tokenizer. `encode` is given well-formed text without added tokens."""

    token_bytes: list[bytes]

    def encode(self, text: str) -> NDArray[np.int32]: ...


_KINDS: dict[str, type[ByteBpe] | type[SentencePiece]] = {"gpt2": ByteBpe, "llama": SentencePiece}


class Tokenizer:
    """Immutable, and safe to use from several threads at once.

    vocab_size:  tokens that have a text; a model may compute more logits than that
    control_ids: ids that steer the model. `encode` never yields one, whatever the text, but for
                 one case: where the vocabulary lacks a byte, that byte is the unknown token,
                 which in some vocabularies is of the control type
    end_ids:     ids that end a generation
    add_bos:     a completion's prompt begins with a token of its own: use `encode_prompt`
    markers:     text to id of the control ids, for the chat template
    named:       the chat template's variables, `bos_token` and so on
    """

    def __init__(self, vocabulary: Vocabulary, codec: Codec) -> None:
        self.vocab_size = len(vocabulary.tokens)
        self.control_ids = frozenset(vocabulary.markers.values())
        self.end_ids = vocabulary.end_ids
        self.add_bos = vocabulary.add_bos
        self.markers = vocabulary.markers
        self.named = vocabulary.named
        self._bos = vocabulary.bos
        self._codec = codec
        self._bytes = codec.token_bytes
        self._text_bytes = _text_bytes(vocabulary, codec.token_bytes)
        self._added = vocabulary.plain_added
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, longest_first)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Raises `ModelFileError` for a kind that is not supported, or a damaged file."""
        kind = str(required(metadata, "model"))
        if kind not in _KINDS:
            raise ModelFileError(
                f"The tokenizer kind {kind!r} is not supported (known are "
                f"{', '.join(sorted(_KINDS))}). Use a model with one of those."
            )
        vocabulary = Vocabulary.from_gguf(metadata)
        return cls(vocabulary, _KINDS[kind](vocabulary, metadata))

    def encode(self, text: str) -> list[int]:
        """The ids of plain text. What looks like a control token is so many characters.

        Lone surrogates count as U+FFFD. A million characters take well under a second, during
        most of which other threads run.
        """
        text = well_formed(text)
        if not self._added:
            return _listed(self._codec.encode(text))
        ids: list[int] = []
        for part in _split(self._added_pattern, text):
            added = self._added.get(part)
            ids += _listed(self._codec.encode(part)) if added is None else [added]
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """A completion's prompt: `encode`, after the model's begin token where it wants one."""
        ids = self.encode(text)
        return [self._bos, *ids] if self.add_bos and self._bos is not None else ids

    def encode_control(self, name: str) -> int:
        """The id of a control token, such as `<|im_end|>`. Raises `ModelFileError`."""
        if name not in self.markers:
            raise ModelFileError(f"The model's vocabulary has no control token {name!r}.")
        return self.markers[name]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of any id, a control token's name included; none beyond the vocabulary."""
        return self._bytes[token] if token < self.vocab_size else b""

    def text_bytes(self, token: int) -> bytes:
        """What an id adds to the output's text: nothing for a control token."""
        return self._text_bytes[token] if token < self.vocab_size else b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.text_bytes, ids)).decode("utf-8", "replace")


def _text_bytes(vocabulary: Vocabulary, token_bytes: list[bytes]) -> list[bytes]:
    silent = (TokenType.CONTROL, TokenType.UNKNOWN)
    return [
        b"" if kind in silent else word
        for word, kind in zip(token_bytes, vocabulary.types, strict=True)
    ]


def _split(pattern: re.Pattern[str], text: str) -> Iterable[str]:
    """The matches and what lies between them, in order, without the empty."""
    end = 0
    for match in pattern.finditer(text):
        yield from (part for part in (text[end : match.start()], match[0]) if part)
        end = match.end()
    if end < len(text):
        yield text[end:]


def _listed(ids: NDArray[np.int32]) -> list[int]:
    listed: list[int] = ids.tolist()
    return listed
