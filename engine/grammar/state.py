"""Where one answer stands in its grammar: a function of its tokens, and of nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from engine.grammar.closing import Closer, Open
from engine.grammar.vocabulary import Mask
from engine.runner.base import Int32

MAX_SEARCH_TOKENS = 512
"""Longest closing that is looked for between two steps. What needs more is not begun."""


class Place(NamedTuple):
    """A place in the answer that may be closed: what is open, and the tokens that close it."""

    open: Open
    closing: list[int]


class GrammarState:
    """Follows the tokens of one choice, guesses included: it is told an output and goes there,
    back where tokens have gone. Used from one thread.

    Where the answer must close, for JSON, tokens that close it are known at every place and are
    never more than are left: a token after which that would not be so is not kept.

    matcher:    of the grammar's start; owned
    opening:    tokens of a shortest answer; None where answers need not close
    max_tokens: that the answer may have
    """

    def __init__(
        self,
        matcher: LLMatcher,
        closer: Closer,
        opening: list[int] | None,
        max_tokens: int,
    ) -> None:
        self._start, self._matcher = matcher, matcher.deep_copy()
        self._vocabulary, self._closer = closer.vocabulary, closer
        self._max_tokens = max_tokens
        self._tokens = np.empty(0, np.int32)
        self._places = None if opening is None else [Place(Open(), opening)]
        self._refused_at = -1
        self.error = ""
        """Why nothing more can be said of it: it has become too complex."""

    def mask(self, output: Int32) -> Mask | None:
        """What may come after `output`; None where no answer begins like that."""
        if not self._go_to(output):
            return self._nothing() if self.error else None
        forced = self._forced(len(output))
        if forced is not None:
            return self._vocabulary.single(forced)
        bits = self._matcher.compute_bitmask()
        if self._failed():
            return self._nothing()
        # llguidance rounds up by a word of its own where the vocabulary needs none.
        return np.frombuffer(bits, np.uint32, count=len(self._vocabulary.end_mask))

    def must_end(self, mask: Mask | None) -> bool:
        """Does a mask leave nothing but the end?"""
        return mask is not None and not (mask & ~self._vocabulary.end_mask).any()

    def usable(self, output: Int32, guesses: list[int]) -> int:
        """How many of the guesses may follow `output`."""
        if not guesses or not self._go_to(output):
            return 0
        return self._matcher.validate_tokens(guesses)

    def keep(self, output: Int32, tokens: list[int]) -> int:
        """How many of the tokens sampled after `output` its answer keeps, in order.

        At the first that is not kept, the next sample is of a closing token alone.
        """
        if self._places is None:
            return len(tokens)
        for count, token in enumerate(tokens):
            if token < 0 or token in self._vocabulary.end_ids:
                return len(tokens)
            if count == 0 and not self._go_to(output):
                return len(tokens)
            if not self._take(token):
                self._refused_at = len(output) + count
                if self._matcher.validate_tokens([token]) != 1:
                    self.error = self.error or "a token came that it does not let come"
                return count + bool(self.error)
        return len(tokens)

    def _nothing(self) -> Mask:
        return np.zeros_like(self._vocabulary.end_mask)

    def _forced(self, position: int) -> int | None:
        """The closing token that must come here, if one must."""
        if self._places is None:
            return None
        closing = self._places[-1].closing
        if position == self._refused_at:
            return closing[0] if closing else min(self._vocabulary.end_ids)
        return closing[0] if closing and len(closing) >= self._max_tokens - position else None

    def _go_to(self, output: Int32) -> bool:
        common = min(len(output), len(self._tokens))
        differs = np.flatnonzero(output[:common] != self._tokens[:common])
        common = int(differs[0]) if len(differs) else common
        if common < len(self._tokens):
            self._go_back(common)
        return all(map(self._take, output[common:].tolist()))

    def _go_back(self, length: int) -> None:
        if self.error or not self._matcher.rollback(len(self._tokens) - length):
            self.error = ""
            self._matcher = self._start.deep_copy()
            self._matcher.consume_tokens(self._tokens[:length].tolist())
        self._tokens = self._tokens[:length]
        if self._places is not None:
            del self._places[length + 1 :]

    def _take(self, token: int) -> bool:
        """Go on by one token; False, and nowhere, if it may not come or leaves no way to close."""
        if self.error:
            return False
        # A token that may not come, once consumed, would leave the matcher of no use.
        fits = self._matcher.validate_tokens([token]) == 1
        if not (fits and self._matcher.consume_token(token)):
            self._failed()
            return False
        if self._places is not None:
            left = self._max_tokens - len(self._tokens) - 1
            place = self._place_after(self._places[-1], token, left)
            if place is None:
                if not self._matcher.rollback(1):
                    self.error = "It cannot be followed."
                return False
            self._places.append(place)
        self._tokens = np.append(self._tokens, np.int32(token))
        return True

    def _place_after(self, before: Place, token: int, left: int) -> Place | None:
        """left: tokens that may still come"""
        open = before.open.after(self._vocabulary.words[token])
        if before.closing and token == before.closing[0]:
            return Place(open, before.closing[1:])
        kept = self._kept(before.closing, token)
        if kept is not None and len(kept) < left:
            return Place(open, kept)
        found = self._closer.close(self._matcher, open, min(left, MAX_SEARCH_TOKENS))
        closing = kept if found is None else found
        return None if closing is None or len(closing) > left else Place(open, closing)

    def _kept(self, closing: list[int], token: int) -> list[int] | None:
        """The closing of the place before, where it holds after the token, or what is left of it
        where the token says its first part and more."""
        if self._closer.closes(self._matcher, closing):
            return closing
        rest = self._closer.rest_after(closing, token)
        return rest if rest is not None and self._closer.closes(self._matcher, rest) else None

    def _failed(self) -> bool:
        if self._matcher.is_error():
            self.error = self._matcher.get_error().splitlines()[0]
        return bool(self.error)
