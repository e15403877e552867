"""The policy `history`, strategy `tiered`: facts beside the record. What must never happen: facts
that change what stands before the last turn; text of the user's that is not his last."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from policies import facts, record
from policies.context import Context
from policies.counting import message_tokens
from policies.facts import FACT_TOKENS
from policies.record import Record, encode
from policies.tiers import TieredPolicy
from tests.fakes.conversations import Message, calls, chat, result, said, system, user

CONTEXT = Context(route="chat")
HIGH, LOW, SUMMARY_TOKENS, FACTS = 1800, 1000, 50, 2
LONG = "word " * 95
KEPT = Record("She flies.", ("name: Ana", "seat: 14C", "航班: CA1234"))


def policy(**fields: Any) -> TieredPolicy:
    return TieredPolicy(HIGH, LOW, SUMMARY_TOKENS, FACTS, **fields)


def talk(turns: int) -> list[Message]:
    return [each for i in range(turns) for each in (user(f"{LONG}{i}"), said(f"{LONG}{i}"))]


def sent(messages: list[Message], kept: Record = KEPT) -> list[Message]:
    """Where the record of each cut is `kept`."""
    keys = policy().recalls(chat(messages), CONTEXT)
    known = dict.fromkeys(keys, encode(kept))
    decision = policy().decide(chat(messages), replace(CONTEXT, known=known))
    assert decision.request is not None
    return decision.request.messages


def test_facts_stand_behind_the_last_turn_and_the_question_is_last() -> None:
    messages = [system("s"), *talk(10), user("航班是哪个？")]
    found = sent(messages)
    assert found[:3] == [system("s"), *record.told("She flies.")]
    assert found[-3:] == [*facts.told(["seat: 14C", "航班: CA1234"]), messages[-1]]
    kept = found[3:-3]
    assert kept == messages[-1 - len(kept) : -1]


def test_other_facts_leave_all_before_them_as_it_was() -> None:
    messages = [*talk(10), user("And?")]
    before, after = sent(messages), sent(messages, replace(KEPT, facts=("name: Bo",)))
    place = len(before) - 3
    assert before[:place] == after[:place]
    assert before[place] != after[place]


def test_facts_stay_where_they_are_while_tools_run() -> None:
    messages = [*talk(10), user("Book it."), calls("a"), result("a", "done")]
    found = sent(messages)
    assert found[-3:] == messages[-3:]
    assert found[-5:-3] == facts.told(list(KEPT.facts[-2:]))
    assert sent(messages[:-2]) == found[:-2]


@pytest.mark.parametrize("content", [[{"type": "text", "text": "My name?"}, {"type": "x"}], None])
def test_questions_may_have_parts(content: Any) -> None:
    messages = [*talk(10), {"role": "user", "content": content}]
    expected = ["name: Ana", "航班: CA1234"] if content else list(KEPT.facts[-2:])
    assert sent(messages)[-3:-1] == facts.told(expected)


def test_without_facts_it_is_as_summary() -> None:
    assert "conversation_facts" not in str(sent([*talk(10), user("?")], Record("She flies.")))


def test_a_record_is_asked_for_with_facts_and_without_those_that_are_known() -> None:
    messages = talk(30)
    keys = policy().recalls(chat(messages), CONTEXT)
    known = {keys[-1]: encode(KEPT)}
    child = policy().decide(chat(messages), replace(CONTEXT, known=known)).child
    assert child is not None
    assert child.facts
    assert child.before == KEPT.facts
    assert child.tokens == SUMMARY_TOKENS + FACTS * FACT_TOKENS
    assert (child.request.max_tokens, child.request.soft_max_tokens) == (child.tokens, None)
    asked = child.request.messages
    assert asked[:2] == record.told("She flies.")
    assert asked[-1] == record.question(SUMMARY_TOKENS, FACTS)
    assert "14C" not in str(asked)


def test_both_count_among_what_is_kept() -> None:
    messages = [*talk(11), user("And?")]
    long = Record("word " * SUMMARY_TOKENS, tuple(f"n{i}: {'x ' * 20}" for i in range(20)))
    assert sum(map(message_tokens, sent(messages, long))) <= HIGH
