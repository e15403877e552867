"""Where sentences end, in any language, found a character at a time.

A full stop is not the end of a sentence by itself: it stands in numbers, versions, addresses,
abbreviations and initials. So an end is only known by what follows it: white space and then
something that can begin a sentence, a line's end, or, in scripts without spaces, anything but a
closing mark. In doubt there is no end: whoever asks waits for the next one.
"""

from __future__ import annotations

import re

_UNMISTAKABLE = frozenset("。！？；｡।॥؟۔።፧។៕။།։෴᠃")
"""Ends whatever follows. `；` separates whole clauses; the ASCII semicolon, less than that."""

_AMBIGUOUS = frozenset(".!?．")
_ELLIPSIS = frozenset(".。．")
"""Two and more in a row are a pause."""

_CLOSERS = frozenset("\"'”’»›)]}）】」』》〉〕］｝｣*_")
_CLOSERS_ELSEWHERE = frozenset("“‘«‹")
"""German and Danish close with what others open with; after a full stop, and no space between."""

_SYMMETRIC = frozenset("\"'*_")
"""Open as well as close. In text without spaces only the count tells which."""

_MARKER = re.compile(r"[\d.]{1,12}|[A-Za-z]|[ivxIVX]{1,5}")
_INITIALS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")
_WORD_CHARS = 32
_AROUND_WORDS = "\"'“”„‘’«»‹›([{（【*_~"

_ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof sr jr st mt gen col lt sgt capt cmdr rev hon gov sen rep pres messrs "
    "mme mlle sra srta dra sig dott ing hr fr vs cf viz approx al e.g i.e d.h z.b "
    "ca resp incl bzw bspw evtl ggf vgl zzgl bijv np tzn tj см стр рис".split()
)
"""Something always follows these: a name, an example, a number."""

_BEFORE_NUMBERS = frozenset(
    "no nos nr nº núm fig figs eq eqs vol ch chap sec sect art p pp pg pág "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
"""Abbreviations before a number, else words, or the last of a sentence."""


def is_unspaced(char: str) -> bool:
    """Does the character belong to a script that puts no spaces between sentences?"""
    return "\u3040" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff" or char >= "\U00020000"


class SentenceEnds:
    """Follows one line. `start_line` begins the next.

    Positions are the caller's: an end is the position after its last character, closing quotes,
    brackets and emphasis included.
    """

    def __init__(self) -> None:
        self.start_line()

    def start_line(self) -> None:
        self._before = ""
        self._word = ""
        self._words = 0
        self._runs: dict[str, int] = {}
        self._ticks = self._last_ticks = 0
        self._end: int | None = None
        self._mark = self._stem = ""
        self._spaced = False

    @property
    def open_ticks(self) -> int:
        """How many backticks opened the code that the line is in; 0 outside of code."""
        return self._last_ticks if self._ticks % 2 else 0

    def feed(self, char: str, position: int) -> int | None:
        """The end, if there is one, that `char` shows to be one; it stands at `position`."""
        found = None if self._end is None else self._confirmed(char, position)
        if char.isspace():
            self._words += any(map(str.isalnum, self._word))
            self._word = ""
        else:
            self._read(char, position)
        self._before = char
        return found

    def at_line_end(self) -> int | None:
        """The end that a line's end shows to be one."""
        stem = self._stem.lstrip(_AROUND_WORDS).casefold()
        return None if self._mark == "." and stem in _ABBREVIATIONS else self._end

    def at_cut(self) -> int | None:
        """The end, if there is one, of a text that stops here for no reason of its own."""
        if self._mark in _UNMISTAKABLE:
            return self._end
        unfinished = self._stem[-1:].isdecimal() or "/" in self._stem or "@" in self._stem
        if self._abbreviates("") or (unfinished and not self._spaced):
            return None
        return self._end

    def _confirmed(self, char: str, position: int) -> int | None:
        """Settle what is known of the end before `char`: it is one, it is none, or wait."""
        if self._spaced:
            if char.isspace():
                return None
            return self._take(not (char.islower() or self._abbreviates(char)))
        if char.isspace() and self._mark not in _UNMISTAKABLE:
            self._spaced = True
            return None
        if self._closes(char):
            self._end = position + 1
            return None
        if char in _UNMISTAKABLE or char in _AMBIGUOUS:
            return None
        return self._take(self._mark in _UNMISTAKABLE or self._ends_unspaced(char))

    def _take(self, is_one: bool) -> int | None:
        end, self._end = self._end, None
        return end if is_one else None

    def _ends_unspaced(self, char: str) -> bool:
        """`好!我` and `好.我`, but not `Node.js` nor `1.5版`."""
        return is_unspaced(char) and (self._mark in "!?" or is_unspaced(self._stem[-1:]))

    def _closes(self, char: str) -> bool:
        if char in _SYMMETRIC and self._mark in _UNMISTAKABLE:
            return char == self._before or self._runs.get(char, 0) % 2 == 1
        elsewhere = self._mark in _AMBIGUOUS and char in _CLOSERS_ELSEWHERE
        return char in _CLOSERS or elsewhere

    def _read(self, char: str, position: int) -> None:
        if char == "`":
            self._read_tick()
        elif char in _SYMMETRIC and char != self._before:
            self._runs[char] = self._runs.get(char, 0) + 1
        elif (char in _UNMISTAKABLE or char in _AMBIGUOUS) and not self.open_ticks:
            self._read_mark(char, position)
        self._word = (self._word + char)[-_WORD_CHARS:]

    def _read_tick(self) -> None:
        if self._before == "`":
            self._last_ticks += 1
        else:
            self._ticks += 1
            self._last_ticks = 1

    def _read_mark(self, char: str, position: int) -> None:
        stem = self._word
        pause = char in _ELLIPSIS and self._before in (char, "…")
        # "1." at the start of a line counts the line, and ".5" begins a word.
        bare = stem.lstrip(_AROUND_WORDS)
        counts = char in ".．" and not self._words and _MARKER.fullmatch(bare)
        begins = char == "." and not bare
        self._end = None if pause or counts or begins else position + 1
        self._mark, self._stem, self._spaced = char, stem, False

    def _abbreviates(self, following: str) -> bool:
        """Can the full stop belong to the word before it? following: what comes after the space,
        empty where that is not known."""
        if self._mark != ".":
            return False
        stem = self._stem.lstrip(_AROUND_WORDS + ".")
        folded = stem.casefold()
        return bool(
            (stem.isdecimal() and len(stem) <= 2)
            or (len(stem) == 1 and stem.upper() != stem.lower())
            or _INITIALS.fullmatch(stem)
            or folded in _ABBREVIATIONS
            or (folded in _BEFORE_NUMBERS and (not following or following.isdecimal()))
        )
