"""The policy `history`, strategy `tiered`: recent turns as they are, a record, and facts.

Facts are asked for together with the record, and kept outside the prompt: of all that were kept,
those that the question is about stand behind the last turn, before the user's last message. What
is before them stays the same from turn to turn, and the answer follows the user's own words.
"""

from __future__ import annotations

from typing import Any

from policies import facts, record
from policies.base import Mode
from policies.counting import message_tokens
from policies.facts import FACT_TOKENS
from policies.record import Record
from policies.summary import SummaryPolicy
from policies.turns import Message


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

    def _finished(self, messages: list[Message], record: Record | None) -> list[Message]:
        place = _place_of_last_user(messages)
        if record is None or not record.facts or place is None:
            return messages
        told = facts.chosen(record.facts, _text(messages[place]), self.facts)
        return [*messages[:place], *facts.told(told), *messages[place:]]


def _place_of_last_user(messages: list[Message]) -> int | None:
    places = range(len(messages) - 1, -1, -1)
    return next((i for i in places if messages[i].get("role") == "user"), None)


def _text(message: Message) -> str:
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
