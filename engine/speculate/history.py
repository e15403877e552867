"""What a tenant's answers have said lately, to be copied into its next ones."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from engine.runner.base import Int32
from engine.speculate.base import Guess, Proposer
from engine.speculate.matching import copying_chances, longest_matches

TEXT_TOKENS = 32_768
"""Of one tenant: 128 KiB, gone through in 15 us."""
TENANTS = 64
SHORTEST_ANSWER = 16
_SHORTEST_MATCH = 3
"""In so many answers, two tokens that agree are mostly chance."""
_BETWEEN = -1
"""No token: where an answer ends, nothing goes on."""


class History:
    """The latest answers of one tenant, end to end, in bounded memory."""

    def __init__(self) -> None:
        self._tokens = np.empty(TEXT_TOKENS, np.int32)
        self._used = 0

    @property
    def text(self) -> Int32:
        """int32[N], a view, good until the next answer is added."""
        return self._tokens[: self._used]

    def add(self, answer: Int32) -> None:
        """Keep an answer's last tokens; the oldest half gives way where there is no room."""
        answer = answer[-(TEXT_TOKENS // 2 - 1) :]
        if self._used + len(answer) + 1 > TEXT_TOKENS:
            kept = self.text[-(TEXT_TOKENS // 2) :].copy()
            self._tokens[: len(kept)] = kept
            self._used = len(kept)
        end = self._used + len(answer)
        self._tokens[self._used : end] = answer
        self._tokens[end] = _BETWEEN
        self._used = end + 1


class Histories:
    """By tenant, the least recently used forgotten first. No history ever reaches another."""

    def __init__(self) -> None:
        self._histories: OrderedDict[tuple[str, str], History] = OrderedDict()

    def of(self, tenant: str, salt: str) -> History:
        """The history of a tenant, as the gateway names it, under the salt of its KV cache."""
        key = (tenant, salt)
        history = self._histories.setdefault(key, History())
        self._histories.move_to_end(key)
        if len(self._histories) > TENANTS:
            self._histories.popitem(last=False)
        return history

    def __len__(self) -> int:
        return len(self._histories)


class HistoryProposer(Proposer):
    """Copies on from where the end of prompt and output stood in an earlier answer.

    SuffixDecoding (Oliaro et al. 2024) does so by a suffix tree with counts. Of a text this short
    a scan takes less time than keeping a tree in step, and no memory beside the text.
    """

    name = "history"

    def __init__(self, history: History) -> None:
        self._history = history

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        text = self._history.text
        after, agreed = longest_matches(text, tokens)
        if agreed < _SHORTEST_MATCH:
            return None
        latest = int(after[-1])
        copied: list[int] = text[latest : latest + most].tolist()
        if _BETWEEN in copied:
            copied = copied[: copied.index(_BETWEEN)]
        return Guess(copied, copying_chances(agreed, len(copied))) if copied else None
