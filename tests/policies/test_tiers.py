"""The policy `history`, strategy `tiered`: facts beside the record. What must never happen: facts
that change what was sent before; an answer to anything but the user's last message."""

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


def is_cut(messages: list[Message]) -> bool:
    keys = policy().recalls(chat(messages), CONTEXT)
    known = dict.fromkeys(keys, encode(KEPT))
    return policy().decide(chat(messages), replace(CONTEXT, known=known)).action == "rewrite"


def just_cut(question: Message, *opening: Message) -> list[Message]:
    """A conversation that is cut for the first time when this is asked."""
    sizes = ["word " * words for words in range(0, 200, 40)]
    made = (
        [*opening, user(more), said("ok"), *talk(turns), question]
        for turns in range(30)
        for more in sizes
    )
    return next(each for each in made if is_cut(each) and not is_cut(each[:-1]))


def test_facts_stand_behind_the_last_turn_and_the_question_is_last() -> None:
    messages = just_cut(user(LONG + "航班是哪个？"), system("s"))
    found = sent(messages)
    assert found[:3] == [system("s"), *record.told("She flies.")]
    assert found[-3:] == [*facts.told(["航班: CA1234"]), messages[-1]]
    kept = found[3:-3]
    assert kept == messages[-1 - len(kept) : -1]


def test_what_was_told_stays_and_later_questions_are_told_what_they_are_about() -> None:
    messages = just_cut(user(LONG))
    first = sent(messages)
    assert first[-3:] == [*facts.told(["航班: CA1234"]), messages[-1]]
    messages += [said("ok"), user("My seat?")]
    second = sent(messages)
    assert second == [*first, said("ok"), *facts.told(["seat: 14C"]), user("My seat?")]
    messages += [said("14C"), user("My name?")]
    assert sent(messages) == [*second, *messages[-2:]]


def test_facts_stay_where_they_are_while_tools_run() -> None:
    messages = [*just_cut(user(LONG)), calls("a"), result("a", "done")]
    found = sent(messages)
    assert found[-3:] == messages[-3:]
    assert found[-5:-3] == facts.told(["航班: CA1234"])
    assert sent(messages[:-2]) == found[:-2]


@pytest.mark.parametrize("content", [[{"type": "text", "text": "My name?"}, {"type": "x"}], None])
def test_questions_may_have_parts(content: Any) -> None:
    messages = [*just_cut(user(LONG)), said("ok"), {"role": "user", "content": content}]
    found = sent(messages)
    if content:
        assert found[-3:-1] == facts.told(["name: Ana"])
    else:
        assert found[-2] == messages[-2]


def test_without_facts_it_is_as_summary() -> None:
    assert "conversation_facts" not in str(sent([*talk(10), user("?")], Record("She flies.")))


def test_a_record_is_asked_for_with_facts_as_what_the_prompts_begin_with() -> None:
    messages = just_cut(user(LONG))
    (key,) = policy().recalls(chat(messages), CONTEXT)[-1:]
    context = replace(CONTEXT, known={key: encode(KEPT)})
    more = [*messages, said(LONG), user("My seat? " + LONG), *talk(30)]
    ends = range(len(messages), len(more))
    decisions = (policy().decide(chat(more[:end]), context) for end in ends)
    decision = next(each for each in decisions if each.child)
    child = decision.child
    assert child is not None
    assert decision.request is not None
    assert child.facts
    assert child.before == KEPT.facts
    assert child.tokens == SUMMARY_TOKENS + FACTS * FACT_TOKENS
    assert (child.request.max_tokens, child.request.soft_max_tokens) == (child.tokens, None)
    *asked, question = child.request.messages
    assert question == record.question(SUMMARY_TOKENS, FACTS)
    assert asked == decision.request.messages[: len(asked)]
    assert facts.told(["seat: 14C"])[0] in asked


def test_both_count_among_what_is_kept() -> None:
    messages = [*talk(11), user("And?")]
    long = Record("word " * SUMMARY_TOKENS, tuple(f"n{i}: {'x ' * 20}" for i in range(20)))
    assert sum(map(message_tokens, sent(messages, long))) <= HIGH
