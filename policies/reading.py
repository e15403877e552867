"""A text as it is compared with others: numbers as numbers, the forms of a word as one, names as
they are written, and nothing that only carries grammar. What two may differ in: `policies.slots`.
"""

from __future__ import annotations

import re

import msgspec

from policies import english, han, numerals
from policies.features import is_code

MAX_CHARS = 2000
"""A longer text is like no other: nothing has shown that such can be compared."""

_TOKEN = re.compile(
    r"""
      `(?P<code>[^`]+)`
    | (?P<place>https?://\S+|www\.\S+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.\w+|(?<!\w)(?:/[\w.-]+){2,})
    | (?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[A-Za-z]*_\w+|[A-Za-z]+\d\w*)
    | (?P<number>\d+(?:[.,:]\d+)*)
    | (?P<numeral>[零〇一二三四五六七八九十百千万亿两兩萬億壹贰叁肆伍陆柒捌玖拾佰仟]+)
    | (?P<han>[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ue000-\uf8ff\U00020000-\U0003ffff])
    | (?P<latin>[A-Za-z\u00c0-\u024f]+(?:['’][A-Za-z]+)?)
    | (?P<other>[^\W\d_])
    | (?P<sign>[^\w\s.,;:!?'"’“”‘()\[\]/、，。！？；：（）「」『』《》【】…—–-]
              |(?<!\w)-(?=\d)|(?<=\s)-(?=\s))
    | (?P<end>[.!?。！？:：\n](?=\s|$))
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|“([^”\n]+)”|「([^」\n]+)」|『([^』\n]+)』|《([^》\n]+)》")
_QUESTION = re.compile(r"[?？吗呢]\W*$")
_FOREIGN = re.compile(r"(?![A-Za-z])[^\W\d_]")
_END_CHARS = 20
_NUMBER_WORDS = 12
"""More of them in a row are no number, and would be one of thousands of digits."""

_WIDE = re.compile(r"[ \t]{5,}")
_ING = re.compile(r"\s+\w+ing\b")
_NEGATIONS = "不没沒无無未非勿莫别別"


class Reading(msgspec.Struct, frozen=True):
    """A text, as far as another is compared with it.

    wants:   it is a question, an order or a wish
    content: what must stand in the other too, in order
    strict:  of these, as often as here: numbers, negations, directions, code, places, signs
    voice:   words that say who does and who suffers: another voice puts both in other places
    agents:  how many are named by whom something is done
    sources: what something comes from, where nothing is wanted
    named:   what is code or has a capital: literally somewhere in the other
    written: every word, as it is written but for capitals
    """

    wants: bool
    content: tuple[str, ...]
    strict: tuple[str, ...]
    voice: tuple[str, ...]
    agents: int
    sources: frozenset[str]
    named: frozenset[str]
    written: frozenset[str]


def reading_of(text: str) -> Reading | None:
    """None for what is not compared: too long, with lines of code, or with nothing in it."""
    if len(text) > MAX_CHARS:
        return None
    text = _WIDE.sub("    ", text)
    if is_code(text):
        return None
    reader = _Reader(text)
    if not reader.content:
        return None
    return Reading(
        reader.wants,
        tuple(reader.content),
        tuple(sorted(reader.strict)),
        tuple(sorted(reader.voice)),
        reader.agents,
        frozenset(reader.sources),
        frozenset(reader.named),
        frozenset(reader.written),
    )


def _wants(text: str) -> bool:
    words = re.findall(r"[a-z']+", text[:400].lower())
    if _QUESTION.search(text[-_END_CHARS:]) or not english.OWN.isdisjoint(words):
        return True
    first = next((word for word in words if word not in ("please", "kindly")), None)
    if first is None or first in english.ORDERING:
        return True
    asks = first in english.ASKING or first in english.AUXILIARIES
    return asks and not text.rstrip().endswith(".")


class _Reader:
    """Reads one text from its beginning to its end; each kind of token has a method."""

    def __init__(self, text: str) -> None:
        words = re.findall(r"[a-z']+", text.lower())
        self._is_english = english.is_english(words, least=1)
        # More freedom only where the words are known that must not be passed over.
        known = english.is_english(words, least=2) and not _FOREIGN.search(text)
        self.wants = _wants(text) or not known
        self.content: list[str] = []
        self.strict: list[str] = []
        self.voice: list[str] = []
        self.agents = 0
        self.sources: set[str] = set()
        self.named: set[str] = set()
        self.written: set[str] = set()
        self._begins = True
        self._is_source = False
        self._is_shouted = text.upper() == text
        self._numbers: list[str] = []
        for quoted in _QUOTED.finditer(text):
            self.strict.append(f'"{" ".join(quoted[quoted.lastindex or 0].casefold().split())}')
        self._text = han.plain(text)
        for found in _TOKEN.finditer(self._text):
            kind = str(found.lastgroup)
            if kind != "latin":
                self._end_number()
            getattr(self, f"_{kind}")(found[kind], found.end())
            self._begins = kind == "end" or (self._begins and kind == "sign")
        self._end_number()

    def _code(self, token: str, end: int) -> None:
        token = re.sub(r"\(\)|\s+", "", token)
        self.named.add(token.casefold())
        if token not in self.content:
            self.strict.append(token)
        self._add(token)

    _place = _name = _code

    def _number(self, token: str, end: int) -> None:
        self._strictly(numerals.digits(token))

    def _numeral(self, token: str, end: int) -> None:
        is_number = len(token) <= _NUMBER_WORDS
        self._strictly(str(numerals.chinese(token)) if is_number else token)

    def _han(self, token: str, end: int) -> None:
        if token in _NEGATIONS:
            self._strictly("not")
        else:
            self._add(token)

    def _other(self, token: str, end: int) -> None:
        self._add(token)

    def _sign(self, token: str, end: int) -> None:
        self._strictly("percent" if token in "%％" else token)

    def _end(self, token: str, end: int) -> None:
        return

    def _latin(self, token: str, end: int) -> None:
        token = token.replace("’", "'")
        word = token.lower()
        if (verb := english.denied(word)) is not None:
            self._end_number()
            if verb:
                self._plain(verb, end)
            # What follows an answer's `No,` says it again.
            is_reply = word == "no" and self._begins and self._text[end : end + 1] == ","
            if self.wants or not is_reply:
                self._strictly("not")
            return
        token, word = token.removesuffix("'s"), word.removesuffix("'s")
        self.written.add(word)
        if self._is_numeral(word):
            self._numbers.append(word)
            return
        self._end_number()
        if not self._begins and token != word and not self._is_shouted and token != "I":
            self.named.add(word)
            # IT is no `it`, and who US is not us.
            is_plain = word in english.MARKS or word in english.OWN
            self._add(token if is_plain and token.isupper() else self._meaning(word))
        else:
            self._plain(word, end)

    def _plain(self, word: str, end: int) -> None:
        """A word that is no name and no number."""
        if not self._is_english:
            self._add(word)
            return
        if word == "by":
            self.agents += _ING.match(self._text, end) is None
        if word in english.VOICE:
            self.voice.append(word)
        told = self._meaning(word)
        if told in english.CONNECTING:
            self.voice.append(told)
        if word == "from" and not self.wants:
            self._is_source = True
        elif word in english.DIRECTIONS:
            self._strictly(word)
        elif word not in english.LIGHT and (self.wants or word not in english.LIGHT_IN_STATEMENTS):
            self._add(told)

    def _meaning(self, word: str) -> str:
        return english.meaning(word, loose=not self.wants) if self._is_english else word

    def _is_numeral(self, word: str) -> bool:
        if word == "and":
            return bool(self._numbers) and self._numbers[-1] in numerals.LARGE
        # `One` may be anybody; behind another number word it is 1.
        is_number = word in numerals.SMALL or word in numerals.LARGE
        return is_number and (word != "one" or bool(self._numbers))

    def _end_number(self) -> None:
        is_number = len(self._numbers) <= _NUMBER_WORDS
        for value in numerals.english(self._numbers) if is_number else self._numbers:
            self._strictly(str(value))
        self._numbers.clear()

    def _strictly(self, token: str) -> None:
        self.strict.append(token)
        self._add(token)

    def _add(self, token: str) -> None:
        self.written.add(token.casefold())
        self.content.append(token)
        if self._is_source:
            self.sources.add(token)
            self._is_source = False
