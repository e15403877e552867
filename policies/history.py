"""The policy `history`, strategy `window`: old turns are left out, seldom and many at once.

The cut is a left fold over the messages: it stays where it is until what is kept counts more than
`high_tokens`, then it moves to the first place from which no more than `low_tokens` are kept. So
between two cuts every prompt begins with the prompt before it, and a prefix cache holds; a window
that slides with every turn would make the model read everything anew each time. Whoever folds the
same messages finds the same cut: nothing is remembered between requests.

System and developer messages and pins stay, each in its place (`policies.turns`). What is kept
begins with a message of the user, or, within a long run of tools, with a call of a tool: then the
user's message that the run is about stays before it until the next cut. Where not even the last
unit fits into `low_tokens`, all before it goes, unless it alone is above `high_tokens`: then a cut
would be due again with every message, so there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from policies.base import Mode, Policy
from policies.context import Context
from policies.counting import json_tokens, message_tokens
from policies.decision import Decision, PromptTokens, keep, rewrite
from policies.request import Request
from policies.turns import Turns, turns_of


class Cut(msgspec.Struct, frozen=True):
    """Units of this number and later are kept, the fixed ones, and `opening`.

    opening: the user's message that stays in front of a cut within its own turn
    """

    unit: int = 0
    opening: int | None = None

    def keeps(self, turns: Turns, unit: int) -> bool:
        return unit >= self.unit or unit == self.opening or turns.kinds[unit] == "fixed"


class Window:
    """The fold. O(1) for each message: the place of the next cut only ever moves forward."""

    def __init__(
        self,
        turns: Turns,
        fixed_tokens: int,
        high_tokens: int,
        low_tokens: int,
        record_tokens: int = 0,
    ) -> None:
        """fixed_tokens: of what is in every prompt besides messages; record_tokens: of what stands
        in the place of those that are left out."""
        self._turns = turns
        self._record = record_tokens
        self._high = high_tokens
        self._low = low_tokens
        self._fixed = fixed_tokens
        self._loose = 0
        self._loose_before: list[int] = []
        self._unit_tokens: list[int] = []
        self._last_user: int | None = None
        self._next = 1
        self.cut = Cut()

    def add(self, unit: int, tokens: int) -> None:
        """The next message of the conversation: its unit, and what it counts."""
        if unit == len(self._unit_tokens):
            self._loose_before.append(self._loose)
            self._unit_tokens.append(0)
            if self._turns.is_user[unit]:
                self._last_user = unit
        self._unit_tokens[unit] += tokens
        if self._turns.kinds[unit] == "fixed":
            self._fixed += tokens
        elif self.cut.keeps(self._turns, unit):
            self._loose += tokens
        self._advance()

    def _advance(self) -> None:
        """Cut, if it is due."""
        if self._kept_after(self.cut) > self._high:
            self.cut = self._next_cut() or self.cut

    def _next_cut(self) -> Cut | None:
        last = len(self._unit_tokens) - 1
        while self._next < last and not self._fits(self._next, self._low):
            self._next += 1
        if self._fits(self._next, self._low if self._next < last else self._high):
            return self._cut_at(self._next)
        return None

    def _fits(self, unit: int, limit: int) -> bool:
        """May the kept part begin with this unit, and does it count no more than `limit`?"""
        if not self.cut.unit < unit < len(self._unit_tokens) or not self._may_begin(unit):
            return False
        return self._kept_after(self._cut_at(unit)) <= limit

    def _may_begin(self, unit: int) -> bool:
        return self._turns.is_user[unit] or (self._last_user is not None and unit > self._last_user)

    def _cut_at(self, unit: int) -> Cut:
        """With the user's last message before it, where it would leave that out."""
        return Cut(unit, None if self._turns.is_user[unit] else self._last_user)

    def _kept_after(self, cut: Cut) -> int:
        kept = self._fixed + self._loose - self._loose_before[cut.unit]
        kept += self._record if cut.unit else 0
        if cut.opening is not None and self._turns.kinds[cut.opening] != "fixed":
            kept += self._unit_tokens[cut.opening]
        return kept


def window_cut(
    turns: Turns, counts: Sequence[int], high_tokens: int, low_tokens: int, fixed_tokens: int = 0
) -> Cut:
    """Where the conversation is cut. counts: of each message, in tokens."""
    window = Window(turns, fixed_tokens, high_tokens, low_tokens)
    for unit, tokens in zip(turns.unit_of, counts, strict=True):
        window.add(unit, tokens)
    return window.cut


class HistoryPolicy(Policy):
    """`high_tokens`: a prompt that counts more is cut; `low_tokens`: what is kept then, at most.

    Both count tools and system messages, and neither counts the answer.
    """

    name = "history"

    def __init__(self, high_tokens: int, low_tokens: int, mode: Mode = "active") -> None:
        self.high_tokens = high_tokens
        self.low_tokens = low_tokens
        self.mode = mode

    def decide(self, request: Request, context: Context) -> Decision:
        messages = request.messages
        if not messages:
            return keep("no messages")
        turns = turns_of(messages)
        counts = [message_tokens(message) for message in messages]
        tools_tokens = json_tokens(request.tools) if request.tools else 0
        before = tools_tokens + sum(counts)
        if before <= self.high_tokens:
            return keep(f"{before} tokens, within {self.high_tokens}")
        cut = window_cut(turns, counts, self.high_tokens, self.low_tokens, tools_tokens)
        places = [i for i, unit in enumerate(turns.unit_of) if cut.keeps(turns, unit)]
        left_out = len(messages) - len(places)
        if not left_out:
            return keep(f"{before} tokens, and nothing that may be left out")
        after = tools_tokens + sum(counts[place] for place in places)
        return rewrite(
            replace(request, messages=[messages[place] for place in places]),
            f"{left_out} of {len(messages)} messages left out: {before} to {after} tokens",
            prompt=PromptTokens(before, after),
        )
