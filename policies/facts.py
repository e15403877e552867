"""Facts of a conversation: short lines, `name: value`, kept outside the prompt.

A later fact takes the place of an earlier one of the same name. When there are more than a prompt
is to hold, those are told that have words in common with what is asked, in any script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from policies.reported import reported
from policies.turns import Message

MAX_FACTS = 128
"""Kept of one conversation; the oldest go first."""

MAX_CHARACTERS = 200
"""Of a fact; the rest is left out."""

FACT_TOKENS = 16
"""About what one takes, on the average."""

_BULLET = re.compile(r"^\s*(?:[-*•·–—]|\d{1,3}[.)、])\s*")
_NAME = re.compile(r"\s*[:：=]")
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese."""


def facts_in(text: str) -> list[str]:
    """One for each line that says something, as it was written, without its bullet."""
    lines = (_BULLET.sub("", line).strip() for line in text.splitlines())
    return [line[:MAX_CHARACTERS] for line in lines if _WORD.search(line)]


def merged(before: Iterable[str], after: Iterable[str], most: int) -> tuple[str, ...]:
    """Both together, the latest last and only once under each name; the oldest go."""
    facts: dict[str, str] = {}
    for fact in (*before, *after):
        name = _name(fact)
        facts.pop(name, None)
        facts[name] = fact
    return tuple(facts.values())[-most:]


def chosen(facts: Sequence[str], questions: Sequence[str], most: int) -> list[list[str]]:
    """Which facts are told before each of the questions: each once, `most` in all.

    All at first, if they are no more. Else those that have words in common with a question, those
    with more of them first; and beside the first question the latest, up to half of `most`. What is
    told before a question does not depend on later ones.
    """
    left = {place: terms(fact) for place, fact in enumerate(facts)}
    told: list[list[str]] = []
    for number, question in enumerate(questions):
        asked = terms(question)
        ranked = sorted(left, key=lambda place: (-len(asked & left[place]), -place))
        if len(facts) > most:
            least = (most + 1) // 2 if number == 0 else 0
            related = sum(bool(asked & words) for words in left.values())
            ranked = ranked[: min(most - (len(facts) - len(left)), max(related, least))]
        told.append([facts[place] for place in sorted(ranked)])
        for place in ranked:
            del left[place]
    return told


def terms(text: str) -> frozenset[str]:
    """Words; where words are not told apart, every two characters that stand together."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        found.update(_UNSPACED.sub(" ", word).split())
        for run in _UNSPACED.findall(word):
            found.update(run[i : i + 2] for i in range(max(1, len(run) - 1)))
    return frozenset(found)


def told(facts: Sequence[str]) -> list[Message]:
    """The facts, as data."""
    lines = "\n".join(f"- {fact}" for fact in facts)
    what = "Facts kept from the earlier part of this conversation."
    return reported(what, "conversation_facts", lines)


def _name(fact: str) -> str:
    """What the fact is about: what stands before its colon, else all of it."""
    found = _NAME.search(fact)
    return " ".join((fact[: found.start()] if found else fact).casefold().split())
