"""Cuts that are known before they are made, so that what they leave out can be summed up in time.

As in `policies.history`, the cut stays where it is until what is kept counts more than
`high_tokens`. But where it goes next is settled some way before that: then there is time to have a
summary written of what will be left out. What is kept counts with a summary of full length,
whether one is there or not, so that the cuts follow from the messages alone. What a cut leaves out
is named by a hash of everything before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from policies.history import Cut, Window
from policies.turns import Message, Turns

MAX_LINKS = 16
"""Cuts of one conversation that are looked at, the latest."""

KEY_BYTES = 32
_FORMAT = b"fewer-record-1"


class Link(msgspec.Struct, frozen=True):
    """A cut, and the name of what it leaves out.

    place: of the first message that is not before the cut
    due:   number of messages with which it was due; of a cut that is not yet due, all
    key:   a hash of all messages before `place`, those that stay included
    """

    cut: Cut
    place: int
    due: int
    key: bytes


class Course(msgspec.Struct, frozen=True):
    """The cuts of a conversation.

    made:    the latest MAX_LINKS, in their order
    planned: the one that will come next, once that is settled
    floor:   the cut before all of `made`
    """

    made: list[Link]
    planned: Link | None
    floor: Cut


def ahead_tokens(high_tokens: int, low_tokens: int) -> int:
    """So far below `high_tokens` the next cut is settled, and so much less it is made to keep, as
    that is what may come until it is due."""
    return min((high_tokens - low_tokens) // 8, low_tokens // 2)


class Foresight(Window):
    """The fold. record_tokens: of what stands in the place of what is left out."""

    def __init__(
        self,
        turns: Turns,
        fixed_tokens: int,
        high_tokens: int,
        low_tokens: int,
        record_tokens: int,
    ) -> None:
        ahead = ahead_tokens(high_tokens, low_tokens)
        super().__init__(turns, fixed_tokens, high_tokens, low_tokens - ahead, record_tokens)
        self._settled_above = high_tokens - ahead
        self.made: list[tuple[Cut, int]] = []
        self.planned: Cut | None = None
        self._messages = 0

    def add(self, unit: int, tokens: int) -> None:
        self._messages += 1
        super().add(unit, tokens)

    def _advance(self) -> None:
        while (kept := self._kept_after(self.cut)) > self._settled_above:
            self.planned = self.planned or self._next_cut()
            if self.planned is None or kept <= self._high:
                return
            self.cut, self.planned = self.planned, None
            self.made.append((self.cut, self._messages))


def course_of(
    messages: Sequence[Message],
    turns: Turns,
    counts: Sequence[int],
    *,
    fixed_tokens: int,
    high_tokens: int,
    low_tokens: int,
    record_tokens: int,
) -> Course:
    """counts: of each message, in tokens; fixed_tokens: of what else is in every prompt."""
    fold = Foresight(turns, fixed_tokens, high_tokens, low_tokens, record_tokens)
    for unit, tokens in zip(turns.unit_of, counts, strict=True):
        fold.add(unit, tokens)
    latest = fold.made[-MAX_LINKS:]
    before = len(fold.made) - len(latest)
    ahead = [(fold.planned, len(messages))] if fold.planned else []
    links = _links(messages, turns, [*latest, *ahead])
    return Course(
        made=links[: len(latest)],
        planned=links[-1] if fold.planned else None,
        floor=fold.made[before - 1][0] if before else Cut(),
    )


def _links(
    messages: Sequence[Message], turns: Turns, cuts: Sequence[tuple[Cut, int]]
) -> list[Link]:
    places = [turns.unit_of.index(cut.unit) for cut, _ in cuts]
    keys = prefix_keys(messages, places)
    return [
        Link(cut, place, due, key)
        for (cut, due), place, key in zip(cuts, places, keys, strict=True)
    ]


def prefix_keys(messages: Sequence[Message], places: Iterable[int]) -> list[bytes]:
    """A hash of the messages before each of these places, which go up."""
    running = hashlib.blake2b(digest_size=KEY_BYTES, person=_FORMAT)
    keys, done = [], 0
    for place in places:
        for message in messages[done:place]:
            running.update(_line(message))
        done = place
        keys.append(running.copy().digest())
    return keys


def _line(message: dict[str, Any]) -> bytes:
    """As ASCII: a lone surrogate from a client's JSON has no UTF-8."""
    return json.dumps(message, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"
