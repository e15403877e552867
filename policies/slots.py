"""What a text turns on, so that two that an embedding takes for one are told apart.

An embedding puts `enable` beside `disable`, 30 beside 31 and one name beside another: reversals
score 0.83 to 0.99 with nine encoders (zilliztech/GPTCache#694). So nothing is left to it that a
reader can see. Every number, name, negation and word of any matter must stand in both texts and in
the same order; only words that carry grammar, endings, and a short list of synonyms may differ
(`policies.english`, `policies.han`). A language that no list is for may differ in nothing, and an
opposite needs no list of opposites to be noticed.

A text that wants nothing (no question, order or wish) has more freedom: it may say the same in
another voice, and one of the two may have a word more for every four that they share, two at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from policies import english
from policies.reading import Reading

VERSION = 1
"""Goes up with every change of what texts are told apart by."""

_SHARED_FOR_ONE_MORE = 4
_MOST_MORE = 2
_ADDING_NOTHING = english.CONNECTING | english.SPARE


def difference(one: Reading, other: Reading) -> str | None:
    """What keeps an answer to one from being an answer to the other; None if nothing is seen."""
    if one.wants != other.wants:
        return "only one wants something"
    if one.strict != other.strict:
        return "numbers, negations, directions, code or signs"
    if one.sources and other.sources and one.sources != other.sources:
        return "where from"
    if not (one.named <= other.written and other.named <= one.written):
        return "names"
    if one.wants:
        if Counter(one.content) != Counter(other.content):
            return "words"
        if one.agents != other.agents:
            return "voice"
        ordered = one.content == other.content or _halves(one.content, other.content)
        return None if ordered else "order"
    return _order(one, other) if _elaborates(one, other) else "words"


def _elaborates(one: Reading, other: Reading) -> bool:
    """Do they say the same, but for words that add nothing, and a few that one of them has?

    Nothing may stand in the very place of something else, nor as often more as that does less.
    """
    here, there = Counter(one.content), Counter(other.content)
    shared = here.keys() & there.keys()
    left, right = here.keys() - shared, there.keys() - shared
    more, less = left - _ADDING_NOTHING, right - _ADDING_NOTHING
    most = min(_MOST_MORE, len(shared) // _SHARED_FOR_ONE_MORE)
    if (more and less) or len(more | less) > most or (left | right) & english.MARKED:
        return False
    oftener, seldomer = (
        {word for word in repeated if word in shared} - _ADDING_NOTHING
        for repeated in (here - there, there - here)
    )
    if oftener and seldomer:
        return False
    if _swapped(one.content, other.content, shared) or _swapped(other.content, one.content, shared):
        return False
    places = _places(one.content, shared), _places(other.content, shared)
    vague = english.CONNECTING | english.VAGUE
    return not any(places[0][a] & places[1][b] for a in left for b in right if not {a, b} <= vague)


def _swapped(content: Sequence[str], other: Sequence[str], shared: Set[str]) -> bool:
    """Has a word that only `content` has another one's place between the same two words?"""
    there = {(a, c): b for a, b, c in _threes(other)}
    return any(
        b not in shared and b not in _ADDING_NOTHING and there.get((a, c), b) != b
        for a, b, c in _threes(content)
    )


def _threes(content: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each word, between the two around it."""
    return zip(("", *content), content, (*content[1:], ""), strict=False)


def _places(content: Sequence[str], shared: Set[str]) -> dict[str, set[tuple[str, str]]]:
    """Of each word that is not shared: those before and behind it that are."""
    found: dict[str, set[tuple[str, str]]] = {}
    behind = [""] * len(content)
    following = ""
    for place in range(len(content) - 1, -1, -1):
        behind[place] = following
        following = content[place] if content[place] in shared else following
    before = ""
    for place, word in enumerate(content):
        if word in shared:
            before = word
        else:
            found.setdefault(word, set()).add((before, behind[place]))
    return found


def _order(one: Reading, other: Reading) -> str | None:
    """Of texts that want nothing. Of repeated words the first counts."""
    shared = (set(one.content) & set(other.content)) - english.CONNECTING - english.VAGUE
    a = [word for word in dict.fromkeys(one.content) if word in shared]
    b = [word for word in dict.fromkeys(other.content) if word in shared]
    if a == b or _halves(a, b):
        return None if one.agents == other.agents else "voice"
    if one.voice == other.voice:
        return "order"
    names = (one.named | other.named) - {token.casefold() for token in one.strict}
    same = [w for w in a if w.casefold() in names] == [w for w in b if w.casefold() in names]
    return None if same else "order of names"


def _halves(a: Sequence[str], b: Sequence[str]) -> bool:
    """Have two halves changed places, each of two words or more?"""
    at = b.index(a[0])
    return min(at, len(b) - at) >= 2 and [*b[at:], *b[:at]] == list(a)
