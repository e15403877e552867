"""Which regular expressions are safe to look for in what clients send.

Python's matcher tries every way of sharing out a text among a pattern's repetitions. Of two within
each other there are as many as subsets of its characters: a text of 40 would stop the gateway, with
all its clients, for days. What never goes back (`\\w++`, `(?>...)`) is tried in one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

MOST_REPETITIONS = 2
"""That follow each other. Each makes a search of 1,600 characters up to 500 times longer; with two
the worst text takes under a second."""

_MANY = 10
"""What may be repeated oftener than that is a repetition; else it is so many times the same."""

NESTED = (
    "has alternatives or a repetition within a repetition, which some texts would keep busy for "
    r"ever; write the inner one so that it never goes back: \w++ for \w+, (?>a|b) for (a|b)"
)
IN_A_ROW = (
    f"has more than {MOST_REPETITIONS} repetitions that may share out a text in any way, which "
    r"takes too long; write some so that they never go back: \w++ for \w+"
)


class _Nested(Exception):
    pass


def why_slow(pattern: str) -> str | None:
    """Why no client's text may be searched for it; None where it is safe. Raises `re.error`."""
    re.compile(pattern)
    try:
        count = _repetitions(_parser.parse(pattern))
    except _Nested:
        return NESTED
    return IN_A_ROW if count > MOST_REPETITIONS else None


def _repetitions(items: Iterable[Any], *, repeated: bool = False) -> int:
    """How many may share out one text. repeated: nothing within may go back."""
    return sum(_of_item(*item, repeated=repeated) for item in items)


def _of_item(kind: Any, what: Any, *, repeated: bool) -> int:
    match kind:
        case _constants.MAX_REPEAT | _constants.MIN_REPEAT:
            least, most, body = what
            is_many = most > _MANY
            if repeated and least != most:
                raise _Nested
            within = _repetitions(body, repeated=repeated or is_many)
            return max(1, within) if is_many else within * most
        case _constants.BRANCH:
            if repeated:
                raise _Nested
            return max(map(_repetitions, what[1]))
        case _constants.SUBPATTERN:
            return _repetitions(what[3], repeated=repeated)
        case _constants.GROUPREF_EXISTS:
            branches = [branch for branch in what[1:] if branch is not None]
            return max(_repetitions(branch, repeated=repeated) for branch in branches)
        case _constants.POSSESSIVE_REPEAT:
            return _once(what[2])
        case _constants.ATOMIC_GROUP:
            return _once(what)
        case _constants.ASSERT | _constants.ASSERT_NOT:
            return _once(what[1])
        case _:
            return 0


def _once(body: Iterable[Any]) -> int:
    """Of what is not gone back into: one way to share out what comes after."""
    count = _repetitions(body)
    return count if count > MOST_REPETITIONS else 0
