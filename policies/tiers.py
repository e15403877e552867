"""The policy `history`, strategy `tiered`: recent turns as they are, a record, and facts.

Facts are asked for together with the record, and kept outside the prompt. With a cut, those that
the question is about are told behind the last turn, before the user's message; with later messages
what they are about and was not told yet. What was told stays where it is until the next cut, so
that every prompt in between begins with the one before.
"""

from __future__ import annotations

from policies import facts, record
from policies.base import Mode
from policies.counting import message_tokens
from policies.facts import FACT_TOKENS
from policies.summary import State, SummaryPolicy, Talk
from policies.turns import Message, text_of


class TieredPolicy(SummaryPolicy):
    """facts: how many stand in a prompt, at most"""

    def __init__(
        self,
        high_tokens: int,
        low_tokens: int,
        summary_tokens: int,
        facts: int,
        mode: Mode = "active",
        *,
        window_tokens: int | None = None,
    ) -> None:
        super().__init__(high_tokens, low_tokens, summary_tokens, mode, window_tokens=window_tokens)
        self.facts = facts

    @property
    def record_tokens(self) -> int:
        own = self.facts * FACT_TOKENS + sum(map(message_tokens, facts.told([])))
        return super().record_tokens + own

    def _answer_tokens(self) -> int:
        return self.summary_tokens + self.facts * FACT_TOKENS

    def _question(self) -> Message:
        return record.question(self.summary_tokens, self.facts)

    def _notes(self, talk: Talk, state: State, kept: list[bool]) -> dict[int, list[Message]]:
        if state.record is None or not state.record.facts:
            return {}
        asked = [i for i, each in enumerate(talk.messages) if each.get("role") == "user"]
        # From the one on that was the last when the cut was due.
        first = max((place for place in asked if place < state.since), default=0)
        places = [place for place in asked if place >= first and kept[place]]
        questions = [text_of(talk.messages[place]) for place in places]
        told = facts.chosen(state.record.facts, questions, self.facts)
        return {place: facts.told(some) for place, some in zip(places, told, strict=True) if some}
