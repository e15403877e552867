"""Texts that stand earlier in a prompt, and which of them a new one repeats.

A twin is exact, or nearly identical: 80 % of its characters stand in pieces that both have, and
what differs is told piece by piece, so that nothing of the new text is lost. Pieces are clauses
and lines, by the ends that any script has for them; where a text has none for long, such as one
without spaces or signs, they end where its own characters say so (a hash of every eight of
them), which an insertion before does not move. Candidates share one of their longest pieces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from zlib import crc32

import msgspec

NEAR_SHARE = 0.8
"""Of the characters of a text, how many must be in pieces of its twin, and the other way round."""

NEAR_CHARACTERS = 20_000
"""Longer texts are compared for being the same only."""

_QUOTED_CHARACTERS = (40, 160)
_LONG_PIECE = 200
_SHINGLE = 8
_VOTERS = 8
_CANDIDATES = 4
_DIFFERING_PIECES = 64

_PIECE = re.compile(r"[^\n.,;!?。，；！？、]*[\n.,;!?。，；！？、]+\s*|[^\n.,;!?。，；！？、]+")


class Twin(msgspec.Struct, frozen=True):
    """A text that stands earlier, told by how it begins and ends.

    changes: what to do to it: `- piece` and `+ piece`, after `  piece` where it would be unclear
    """

    begins: str
    ends: str
    changes: tuple[str, ...] = ()


class Library:
    """The texts of one prompt in the order in which they stand in it."""

    def __init__(self) -> None:
        self._exact: set[str] = set()
        self._quoted: dict[tuple[str, str], str | None] = {}
        self._pieces: list[list[str]] = []
        self._texts: list[str] = []
        self._by_piece: dict[str, list[int]] = {}

    def add(self, text: str) -> None:
        """What is added stays as it is in the prompt. Text without white space around it."""
        if text in self._exact:
            return
        self._exact.add(text)
        for quote in {_edge(text, characters) for characters in _QUOTED_CHARACTERS}:
            self._quoted[quote] = None if quote in self._quoted else text
        if len(text) > NEAR_CHARACTERS:
            return
        pieces = pieces_of(text)
        for piece in _voters(pieces):
            self._by_piece.setdefault(piece, []).append(len(self._texts))
        self._texts.append(text)
        self._pieces.append(pieces)

    def find(self, text: str) -> Twin | None:
        """The exact twin, or else the nearest; None where it could not be told unmistakably."""
        if text in self._exact:
            quote = self._quote(text)
            return None if quote is None else Twin(*quote)
        if len(text) > NEAR_CHARACTERS:
            return None
        pieces = pieces_of(text)
        for index in self._candidates(pieces):
            quote = self._quote(self._texts[index])
            if quote is not None and _near(self._pieces[index], pieces):
                changes = _changes(self._pieces[index], pieces)
                if changes is not None:
                    return Twin(*quote, changes)
        return None

    def _quote(self, text: str) -> tuple[str, str] | None:
        """Beginning and end, as long as it takes to tell the text from all others."""
        quotes = (_edge(text, characters) for characters in _QUOTED_CHARACTERS)
        return next((quote for quote in quotes if self._quoted.get(quote) == text), None)

    def _candidates(self, pieces: Sequence[str]) -> list[int]:
        """Those with most of the longest pieces in common, the latest of equals first."""
        votes: dict[int, int] = {}
        for piece in _voters(pieces):
            for index in self._by_piece.get(piece, ())[-_CANDIDATES:]:
                votes[index] = votes.get(index, 0) + 1
        return sorted(votes, key=lambda index: (-votes[index], -index))[:_CANDIDATES]


def pieces_of(text: str) -> list[str]:
    """That join to the text again."""
    pieces: list[str] = []
    for piece in _PIECE.findall(text):
        if len(piece) <= _LONG_PIECE:
            pieces.append(piece)
        else:
            pieces += _split(piece)
    return pieces


def _split(text: str) -> list[str]:
    """Where the hash of the last characters says so: on average every 32 of them."""
    pieces = []
    start = 0
    for end in range(_SHINGLE, len(text)):
        shingle = text[end - _SHINGLE : end].encode("utf-8", "surrogatepass")
        if crc32(shingle) % 32 == 0:
            pieces.append(text[start:end])
            start = end
    return [*pieces, text[start:]]


def _voters(pieces: Sequence[str]) -> list[str]:
    return sorted(set(pieces), key=lambda piece: (-len(piece), piece))[:_VOTERS]


def _edge(text: str, characters: int) -> tuple[str, str]:
    begins = " ".join(text[: 2 * characters].split())[:characters].strip()
    ends = " ".join(text[-2 * characters :].split())[-characters:].strip()
    return begins, ends


def _near(old: Sequence[str], new: Sequence[str]) -> bool:
    both = set(old) & set(new)
    return all(
        sum(len(piece) for piece in pieces if piece in both) >= NEAR_SHARE * sum(map(len, pieces))
        for pieces in (old, new)
    )


def _changes(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...] | None:
    """None where the part that differs is too long to compare."""
    first = _same(old, new)
    last = _same(old[first:][::-1], new[first:][::-1])
    old_part, new_part = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old_part), len(new_part)) > _DIFFERING_PIECES:
        return None
    changes: list[str] = []
    for kind, i, j, k, m in SequenceMatcher(None, old_part, new_part, False).get_opcodes():
        if kind == "equal":
            continue
        if i == j:
            before = old[first + i - 1] if first + i else "(at the beginning)"
            changes.append(f"  {before.strip()}")
        changes += [f"- {piece.strip()}" for piece in old_part[i:j]]
        changes += [f"+ {piece.strip()}" for piece in new_part[k:m]]
    return tuple(changes)


def _same(left: Sequence[str], right: Sequence[str]) -> int:
    """How many pieces both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
