"""The shortest way, as far as it is easily found, from the middle of a JSON value to its end.

llguidance has no such call. What is open, a string and brackets, is known from the bytes so far,
and closing it all is enough in most places; where more is required it is walked to by a fixed
preference, on a copy of the matcher. What is found is a way, so its length bounds the shortest.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from engine.grammar.vocabulary import Vocabulary

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_CLOSES = {ord("{"): b"}", ord("["): b"]"}
_DIGITS = [b"%d" % digit for digit in range(10)]
_ENDS, _VALUES = [b"}", b"]"], [b"null", b"true", b"false", b'"', b"[", b"{", b",", b":"]
"""Outside of strings: an end before a value, a small value before a large one."""
_ASCII = [bytes((byte,)) for byte in range(32, 127) if byte not in b'"\\']
_MARKS_FIRST = [b"@", b".", b":", b"-", b"/"]
_MARKS_FIRST += sorted(_ASCII, key=lambda word: (word.isalpha(), word.isdigit()))
_MAX_CHOICES = 128
_MAX_CHOICES_THOROUGH = 2048
"""Tokens of a closing that are looked for; those that the grammar forces come beside them."""
_FEW = 16
"""As many tokens are looked at one by one."""
_PLACES = 4
"""In strings, every character is looked at in so many places."""
_MAX_KEPT_RESTS = 1024
_STRIDE = 0x9E3779B1


class Walk(Enum):
    """What is taken inside of a string that may not end yet, and wherever nothing is preferred."""

    MARKS = "marks"
    """One character, marks before digits before letters: how dates and addresses are got through"""
    LONGEST = "longest"
    """The longest token: how a least length is reached, and a text that is one of several."""
    VARIED = "varied"
    """Any: what the others never leave."""


_QUICK = (Walk.MARKS, Walk.LONGEST)


class Open(NamedTuple):
    """What is open at a place in a JSON text: brackets, outermost first, and perhaps a string."""

    brackets: bytes = b""
    string: bool = False
    escaped: bool = False

    def after(self, text: bytes) -> Open:
        brackets, string, escaped = self
        for byte in text:
            if string:
                string = escaped or byte != _QUOTE
                escaped = byte == _BACKSLASH and not escaped
            elif byte == _QUOTE:
                string = True
            elif byte in _CLOSES:
                brackets += bytes((byte,))
            elif brackets and byte in b"]}":
                brackets = brackets[:-1]
        return Open(brackets, string, escaped)

    @property
    def rest(self) -> bytes:
        """What closes it all."""
        return b'"' * self.string + b"".join(_CLOSES[byte] for byte in reversed(self.brackets))


class Closer:
    """Finds closings for one vocabulary. Without state."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._end = min(vocabulary.end_ids)
        words = vocabulary.words
        ids = {word: id for id, word in reversed(list(enumerate(words)))}
        upwards = [*_ENDS, *_DIGITS, *_VALUES]
        downwards = [*_ENDS, *reversed(_DIGITS), *_VALUES]
        self._upwards = [ids[word] for word in upwards if word in ids]
        self._downwards = [ids[word] for word in downwards if word in ids]
        self._quote = [ids[word] for word in (b'"',) if word in ids]
        self._tokens_of = lru_cache(_MAX_KEPT_RESTS)(lambda rest: tuple(vocabulary.tokens_of(rest)))
        self._lengths = np.array([len(word) for word in words], np.int32)
        # A token with a quotation mark in it would begin something new behind a string.
        self._plain = np.array([b'"' not in word for word in words])
        self._marks_first = [ids[word] for word in _MARKS_FIRST if word in ids]

    def closes(self, matcher: LLMatcher, tokens: list[int]) -> bool:
        """Do these tokens complete the answer, from where the matcher is?"""
        if not tokens:
            return matcher.is_accepting()
        return matcher.validate_tokens([*tokens, self._end]) == len(tokens) + 1

    def rest_after(self, tokens: list[int], token: int) -> list[int] | None:
        """What of the text of `tokens` is left where `token` begins as it does; else None."""
        text, said = self._text(tokens), self.vocabulary.words[token]
        pairs = enumerate(zip(text, said, strict=False))
        common = next((n for n, (own, other) in pairs if own != other), min(len(text), len(said)))
        return self.vocabulary.tokens_of(text[common:]) if common else None

    def close(
        self, matcher: LLMatcher, open: Open, most: int, *, thorough: bool = False
    ) -> list[int] | None:
        """Tokens that complete the answer, up to `most`; None where none were found.

        thorough: walk more than one way
        """
        choices = _MAX_CHOICES_THOROUGH if thorough else _MAX_CHOICES
        found: list[list[int]] = []
        for walk in Walk if thorough else _QUICK:
            if found and (walk is Walk.VARIED or not thorough):
                break
            tokens = self._walk(matcher.deep_copy(), open, most, walk, choices)
            found += [] if tokens is None else [self._shorter(matcher, tokens)]
        return min(found, key=len, default=None)

    def _shorter(self, matcher: LLMatcher, tokens: list[int]) -> list[int]:
        """The same text in the model's own tokens, where that is better."""
        shorter = self.vocabulary.tokens_of(self._text(tokens))
        better = len(shorter) < len(tokens) and self.closes(matcher, shorter)
        return shorter if better else tokens

    def _walk(
        self, matcher: LLMatcher, open: Open, most: int, walk: Walk, choices: int
    ) -> list[int] | None:
        tokens: list[int] = []
        while (rest := self._simply(matcher, open)) is None:
            step = matcher.compute_ff_tokens()
            if not step:
                choices -= 1
                chosen = self._choose(matcher, open, walk, len(tokens))
                step = [] if chosen is None else [chosen]
            tokens += step
            if choices < 0 or not step or len(tokens) > most or not matcher.consume_tokens(step):
                return None
            open = open.after(self._text(step))
        return [*tokens, *rest] if len(tokens) + len(rest) <= most else None

    def _simply(self, matcher: LLMatcher, open: Open) -> list[int] | None:
        """The tokens that close what is open, where they are enough."""
        rest = list(self._tokens_of(open.rest))
        return rest if self.closes(matcher, rest) else None

    def _choose(self, matcher: LLMatcher, open: Open, walk: Walk, position: int) -> int | None:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=len(self._lengths), bitorder="little").astype(bool)
        candidates = np.flatnonzero(allowed & (self._lengths > 0))
        looked_at = candidates.tolist() if len(candidates) <= _FEW else []
        if open.string and walk is Walk.MARKS and position < _PLACES:
            looked_at = [token for token in self._marks_first if allowed[token]]
        last = (token for token in looked_at if self._is_last(matcher, open, token))
        if (found := next(last, None)) is not None:
            return found
        for token in self._wanted(open, walk):
            if allowed[token]:
                return token
        if open.string and (plain := candidates[self._plain[candidates]]).size:
            candidates = plain
        if not candidates.size:
            return None
        if walk is Walk.VARIED:
            return int(candidates[(_STRIDE * (position + 1) >> 8) % len(candidates)])
        return int(candidates[self._lengths[candidates].argmax()])

    def _is_last(self, matcher: LLMatcher, open: Open, token: int) -> bool:
        """Would closing what is open then be enough? So it is with the last digit of a multiple."""
        rest = open.after(self.vocabulary.words[token]).rest
        return self.closes(matcher, [token, *self._tokens_of(rest)])

    def _wanted(self, open: Open, walk: Walk) -> list[int]:
        if not open.string:
            return self._upwards if walk is Walk.MARKS else self._downwards
        return [*self._quote, *(self._marks_first if walk is Walk.MARKS else ())]

    def _text(self, tokens: list[int]) -> bytes:
        return b"".join(self.vocabulary.words[token] for token in tokens)
