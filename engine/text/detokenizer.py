"""Token ids to text, one at a time."""

from __future__ import annotations

import codecs

from engine.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Holds back the bytes of an unfinished character, and nothing else.

    What `feed` and `flush` return, joined, equals `tokenizer.decode` of all the ids: bytes that
    can no longer become a character come out as U+FFFD at once. Control tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = _Utf8Decoder("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes; often all of its own, sometimes none."""
        return self._decoder.decode(self._tokenizer.text_bytes(token))

    def flush(self) -> str:
        """The end of the output: U+FFFD if it stopped inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
