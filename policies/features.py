"""What a text looks like, in about ten numbers that mean the same in any language.

Counted in characters and not in words, so that Chinese, which has no spaces, gives the same kind of
numbers as English. They tell a router what an embedding of meanings is blind to: how long a prompt
is, and how much of it is figures, formulas, code or a list.
"""

from __future__ import annotations

import math
import re
from itertools import islice

from policies.counting import text_tokens

VERSION = 1
"""Goes up with every change of what `features` returns: a router trained on others is refused."""

NAMES = (
    "tokens",
    "lines",
    "sentences",
    "questions",
    "digits",
    "operators",
    "code",
    "labels",
    "punctuation",
    "capitals",
    "word_length",
    "unspaced",
    "latin",
)
"""Of the numbers that `features` returns, in its order. The last five are shares and a mean, the
others logarithms of counts."""

MAX_CHARS = 1600
"""Of a longer text as much is looked at, half of it from the beginning and half from the end. With
its embedding that takes about 1 ms, and 2 to 3 ms where the tokenizer finds no spaces."""

_UNSPACED_CHARS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters."""

_CAPITAL = re.compile(r"[A-Z\u00c0-\u00de\u0391-\u03ab\u0410-\u042f]")
_UNSPACED = re.compile(f"[{_UNSPACED_CHARS}]")
_WORD = re.compile(rf"[{_UNSPACED_CHARS}]|(?:(?![{_UNSPACED_CHARS}])\w)+")
_SENTENCE_END = re.compile(r"[.!?。！？｡…؟।॥։።](?=\s|$|[\"'”’」』）)])|[。！？｡]")
_QUESTION = re.compile(r"[?？؟\u037e՞፧⁇]")
_DIGIT = re.compile(r"\d")
_OPERATOR = re.compile(r"[-+*/^=<>%×÷±≤≥≠≈√∑∏∫∂∞∈∀∃→∪∩°＋－＝＜＞％]|\\[A-Za-z]+")
_CODE = re.compile(r"[{}\[\];`_|\\]|[(][)]|=>|->|::|</|//|/\*|==|&&")
_LABEL = re.compile(
    r"^[ \t]*(?:[-*•·]|"
    r"[（(]?(?:[A-Za-z]|\d{1,3}|[一二三四五六七八九十甲乙丙丁]{1,3})[.)）、:：．])",
    re.MULTILINE,
)
_MARK = re.compile(r"[^\w\s]")

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_CODE_LINE = re.compile(
    r"^[ \t]*(?:.*[;{}]|(?:def|class|function|import|from|package|use|SELECT|public|private|const|"
    r"let|var|fn|func|return|if|for|while)\b.*[:({;].*|[@<#].*[>)\w])[ \t]*$",
    re.MULTILINE,
)
_CODE_LINES = 3
"""So many lines that end or begin as lines of code do are code; one may stand in any text."""

SCRIPTS = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "cyrillic": "\u0400-\u052f",
    "armenian": "\u0530-\u058f",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff",
    "devanagari": "\u0900-\u097f",
    "bengali": "\u0980-\u09ff",
    "tamil": "\u0b80-\u0bff",
    "thai": "\u0e00-\u0e7f",
    "hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "kana": "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
}
"""Characters of each script that a rule may name."""

_WITHOUT_SPACES = ("thai", "kana", "han")
_WORDS_OF = {
    name: re.compile(f"[{characters}]" if name in _WITHOUT_SPACES else f"[{characters}]+")
    for name, characters in SCRIPTS.items()
}
_LATIN = re.compile(f"[{SCRIPTS['latin']}]")


def features(text: str) -> tuple[float, ...]:
    """As many as there are NAMES, each between 0 and about 12. Pure, whatever the text."""
    text = abridged(text)
    letters = sum(map(str.isalpha, text))
    words = _count(_WORD, text)
    return (
        _log(text_tokens(text)),
        _log(text.count("\n")),
        _log(_count(_SENTENCE_END, text)),
        _log(_count(_QUESTION, text)),
        _log(_count(_DIGIT, text)),
        _log(_count(_OPERATOR, text)),
        _log(_count(_CODE, text)),
        _log(_count(_LABEL, text)),
        _share(_count(_MARK, text), len(text)),
        _share(_count(_CAPITAL, text), letters),
        _log(_share(letters, words)),
        _share(_count(_UNSPACED, text), letters),
        _share(_count(_LATIN, text), letters),
    )


def script_of(text: str) -> str | None:
    """The script of SCRIPTS that most of its words are in; None where there are none.

    Where words are not apart, each character counts. A text with kana is Japanese, however many
    Chinese characters it has.
    """
    counts = {name: _count(pattern, text) for name, pattern in _WORDS_OF.items()}
    if counts["kana"]:
        counts["kana"] += counts.pop("han")
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else None


def is_code(text: str) -> bool:
    """Is there code in it: in a fence, or in lines of its own?"""
    if _FENCE.search(text):
        return True
    return sum(1 for _ in islice(_CODE_LINE.finditer(text), _CODE_LINES)) == _CODE_LINES


def abridged(text: str) -> str:
    """As much of the text as is looked at."""
    if len(text) <= MAX_CHARS:
        return text
    return text[: MAX_CHARS // 2] + text[-MAX_CHARS // 2 :]


def _count(pattern: re.Pattern[str], text: str) -> int:
    return len(pattern.findall(text))


def _log(count: float) -> float:
    return math.log1p(count)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
