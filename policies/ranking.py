"""Which of several texts have most to do with a question, in any language.

BM25 (Robertson and Zaragoza 2009) over pieces of the question's words: whole words, and runs of
four characters of longer ones, so that `cancel` is found in `cancellation`; in scripts without
spaces runs of two characters. The texts are not taken apart: each piece is counted in them as it
stands, which costs the same in every script.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import islice

VERSION = 2
"""Goes up with every change of an order."""

MOST_PIECES = 256
"""Of a question; those of later words do not count."""

_MOST_CHARACTERS = 2000
"""Of a question: MOST_PIECES are seldom in more, and a long one is not read for nothing."""

_K1, _B = 1.2, 0.75
_RUN = 4

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+)"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters."""

_APART = r" \1 "


def ranked(question: str, texts: Sequence[str]) -> list[int]:
    """Places in `texts`, the best first; of equals the first. Pure, whatever the texts."""
    scores = _scores(question, [_plain(text) for text in texts])
    return sorted(range(len(texts)), key=lambda place: (-scores[place], place))


def _scores(question: str, texts: Sequence[str]) -> list[float]:
    scores = [0.0] * len(texts)
    mean_length = sum(map(len, texts)) / len(texts) if texts else 0.0
    for piece, weight in _pieces(_plain(question[:_MOST_CHARACTERS])).items():
        counts = [text.count(piece) for text in texts]
        having = sum(count > 0 for count in counts)
        rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for place, count in enumerate(counts):
            if count:
                length = len(texts[place]) / mean_length
                full = count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
                scores[place] += weight * rarity * full
    return scores


def _plain(text: str) -> str:
    """Its words, and runs without spaces, in lower case with one space around each. Forms that
    look alike are the same."""
    # No language grows so much by it; a single sign may to eighteen characters.
    text = unicodedata.normalize("NFKC", text)[: 2 * len(text)].casefold()
    return f" {' '.join(_WORD.findall(_UNSPACED.sub(_APART, text)))} "


def _pieces(question: str) -> dict[str, float]:
    """What is looked for, and how much it counts."""
    pieces: dict[str, float] = {}
    for word in question.split():
        for piece, weight in _pieces_of(word).items():
            pieces.setdefault(piece, weight)
        if len(pieces) >= MOST_PIECES:
            break
    return dict(islice(pieces.items(), MOST_PIECES))


def _pieces_of(word: str) -> dict[str, float]:
    """A word of four letters and more counts 1; of fewer, which are seldom what it is about, less.
    Two characters of a script without spaces are about half a word."""
    if _UNSPACED.match(word):
        return dict.fromkeys([word[i : i + 2] for i in range(len(word) - 1)] or [word], 0.5)
    if len(word) <= _RUN:
        return {f" {word} ": len(word) / _RUN}
    found = [f" {word} ", *(word[i : i + _RUN] for i in range(len(word) - _RUN + 1))]
    return dict.fromkeys(found, 1 / len(found))
