"""Stop strings, found in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache


class StopMatcher:
    """Releases text as soon as it can no longer be part of a stop string, and not later.

    The stop that is complete first wins; of several that end at the same character, the
    longest. So the outcome does not depend on how the text was cut into pieces. One character
    costs a constant, whatever the number and length of the stops (Aho, Corasick 1975).
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._automaton = _automaton(tuple(stops)) if stops else None
        self._include_stop = include_stop
        self._state = 0
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text released, the stop that matched or None).

        After a match the output has ended: what was released is all of it, up to the stop or,
        with `include_stop`, its end. Not to be fed again then.
        """
        automaton = self._automaton
        if automaton is None:
            return text, None
        state = self._state
        for index, character in enumerate(text):
            state = automaton.step(state, character)
            stop = automaton.stop[state]
            if stop is not None:
                return self._stopped(self._held + text[: index + 1], stop), stop
        self._state = state
        whole = self._held + text
        free = len(whole) - automaton.depth[state]
        self._held = whole[free:]
        return whole[:free], None

    def flush(self) -> str:
        """The output ended without a stop: what is still held back."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _stopped(self, whole: str, stop: str) -> str:
        self._held = ""
        return whole if self._include_stop else whole[: len(whole) - len(stop)]


class _Automaton:
    """States are the prefixes of the stops; 0 is the empty one.

    next:  per state, the state that each character leads to
    fail:  the longest proper suffix of the state that is a state too
    depth: the length of the prefix, which is what has to be held back
    stop:  the longest stop that the state ends with, or None
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.stop: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self.next[state]:
            state = self.fail[state]
        return self.next[state].get(character, 0)

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self.next[state]:
                self.next[state][character] = len(self.next)
                self.next.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.stop.append(None)
            state = self.next[state][character]
        self.stop[state] = stop

    def _link(self) -> None:
        """Breadth first: a state's suffixes are shorter, and so are linked already."""
        waiting = deque(self.next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self.next[state].items():
                self.fail[child] = self.step(self.fail[state], character)
                self.stop[child] = self.stop[child] or self.stop[self.fail[child]]
                waiting.append(child)


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    """Shared: an automaton is never changed once built, and routes repeat their stops."""
    return _Automaton(stops)
