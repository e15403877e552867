"""The policy `history`, strategy `summary`. What must never happen, beside what must not with
`window` (test_history_strategies): a record that changes between two cuts; one of another
conversation; a prompt that waits for its record for ever."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from policies.context import Context
from policies.counting import message_tokens
from policies.decision import Decision
from policies.foresight import MAX_LINKS, ahead_tokens, prefix_keys
from policies.record import Child, Record, encode, told
from policies.request import Request
from policies.summary import SummaryPolicy
from tests.fakes.conversations import Message, calls, chat, pinned, result, said, system, user

CONTEXT = Context(route="chat")
HIGH, LOW, SUMMARY_TOKENS = 1500, 700, 50
LONG = "word " * 95
"""100 tokens with what surrounds it."""


def policy(**fields: Any) -> SummaryPolicy:
    return SummaryPolicy(HIGH, LOW, SUMMARY_TOKENS, **fields)


def talk(turns: int) -> list[Message]:
    return [each for i in range(turns) for each in (user(f"{LONG}{i}"), said(f"{LONG}{i}"))]


class Conversation:
    """Requests of one conversation, and what was kept for it.

    late: so many requests later a record that was asked for is known; None for never
    """

    def __init__(self, asked: SummaryPolicy | None = None, late: int | None = 1) -> None:
        self.policy = asked or policy()
        self.known: dict[bytes, bytes] = {}
        self.children: list[Child] = []
        self._late = late
        self._coming: list[tuple[int, bytes]] = []
        self._turn = 0

    def decide(self, request: Request | list[Message]) -> Decision:
        if isinstance(request, list):
            request = chat(request)
        self._turn += 1
        for due, key in self._coming:
            if due <= self._turn:
                self.known[key] = encode(Record(f"record {len(self.known)}"))
        self._coming = [each for each in self._coming if each[0] > self._turn]
        keys = self.policy.recalls(request, CONTEXT)
        known = {key: self.known[key] for key in keys if key in self.known}
        context = replace(CONTEXT, known=known)
        decision = self.policy.decide(request, context)
        assert decision == self.policy.decide(request, context)
        if decision.child is not None:
            self.children.append(decision.child)
            if self._late is not None:
                self._coming.append((self._turn + self._late, decision.child.key))
        return decision

    def sent(self, messages: list[Message]) -> list[Message]:
        decision = self.decide(messages)
        return decision.request.messages if decision.request else messages

    def turns(self, messages: list[Message]) -> list[list[Message]]:
        """What is sent before each answer."""
        return [self.sent(messages[: place + 1]) for place in range(0, len(messages), 2)]


def tokens_of(messages: list[Message]) -> int:
    return sum(map(message_tokens, messages))


def test_nothing_is_looked_up_or_asked_for_in_a_short_conversation() -> None:
    messages = talk(5)
    assert tokens_of(messages) <= HIGH - ahead_tokens(HIGH, LOW)
    assert policy().recalls(chat(messages), CONTEXT) == ()
    decision = policy().decide(chat(messages), CONTEXT)
    assert (decision.action, decision.child) == ("keep", None)
    assert decision.reason == f"{tokens_of(messages)} tokens, within {HIGH}"


def test_completions_have_no_history() -> None:
    request = Request("completions", "m", prompts=[LONG * 100])
    assert policy().recalls(request, CONTEXT) == ()
    assert policy().decide(request, CONTEXT).action == "keep"


def test_a_record_is_asked_for_before_it_is_needed() -> None:
    messages = [system("Be brief."), *talk(7), user(LONG + LONG)]
    assert HIGH - ahead_tokens(HIGH, LOW) < tokens_of(messages) <= HIGH
    decision = policy().decide(chat(messages), CONTEXT)
    assert decision.action == "keep"
    assert decision.reason.endswith("tokens, a record is asked for")
    child = decision.child
    assert child is not None
    asked = child.request.messages
    assert asked[:-1] == messages[: len(asked) - 1]
    assert asked[-2]["role"] == "assistant"
    assert "write a record" in asked[-1]["content"]
    assert child.key == prefix_keys(messages, [len(asked) - 1])[0]


def test_the_record_takes_the_place_of_what_was_summed_up() -> None:
    messages = [system("Be brief."), *talk(20)]
    conversation = Conversation()
    sent = conversation.turns(messages[:-1])
    cut = next(each for each in sent if len(each) > 1 and each[1] == told("record 0")[0])
    first = conversation.children[0].request.messages[:-1]
    assert cut[0] == messages[0]
    assert cut[1:3] == told("record 0")
    assert cut[3:] == messages[len(first) : len(first) + len(cut) - 3]
    assert tokens_of(cut) <= LOW + 2 * message_tokens(user(LONG))


def test_a_later_record_is_asked_for_with_the_earlier_one() -> None:
    conversation = Conversation()
    sent = conversation.turns(talk(40))
    assert len(conversation.children) >= 3
    before, after = conversation.children[0], conversation.children[1]
    assert after.request.messages[:2] == told("record 0")
    assert after.key != before.key
    # It begins as the prompts do that the model has read already.
    live = sent[[each[:2] == told("record 0") for each in sent].index(True)]
    asked = after.request.messages[:-1]
    grown = next(each for each in reversed(sent) if each[: len(live)] == live)
    assert grown[: len(asked)] == asked


def test_what_is_sent_grows_at_its_end_until_the_next_cut() -> None:
    conversation = Conversation()
    sent = conversation.turns([system("s"), *talk(60)])
    cuts = sum(after[: len(before)] != before for before, after in pairwise(sent))
    assert len(conversation.children) - 1 <= cuts <= len(conversation.children)
    assert 10 <= cuts <= 60 * tokens_of(talk(1)) // (HIGH - LOW)
    assert max(map(tokens_of, sent)) <= HIGH + 2 * message_tokens(user(LONG))


def test_the_history_stays_until_the_record_is_there() -> None:
    conversation = Conversation(late=6)
    sent = conversation.turns(talk(16))
    cut = next(i for i, each in enumerate(sent) if each[:2] == told("record 0"))
    assert tokens_of(sent[cut - 1]) > HIGH
    assert sent[cut - 1] == talk(16)[: 2 * cut - 1]
    decision = Conversation(late=None).decide(talk(9))
    assert decision.action == "keep"
    assert ", the cut waits for its record, a record is asked for" in decision.reason


def test_a_record_that_never_comes_is_not_waited_for_for_ever() -> None:
    conversation = Conversation(late=None)
    messages = talk(40)
    sent = conversation.turns(messages)
    assert max(map(tokens_of, sent)) <= 2 * HIGH
    decision = conversation.decide(messages)
    assert decision.reason.endswith("cut without a record of all of it, a record is asked for")
    assert all("conversation_record" not in str(each) for each in sent[-1])


@pytest.mark.parametrize(("window", "most"), [(2400, 2000), (1800, 1500), (100_000, 2 * HIGH)])
def test_nor_beyond_what_the_model_takes(window: int, most: int) -> None:
    conversation = Conversation(policy(window_tokens=window), late=None)
    sent = conversation.turns(talk(40))
    assert most - 250 < max(map(tokens_of, sent)) <= most


def test_room_is_left_for_the_answer() -> None:
    requests = [chat(talk(turns), max_tokens=400) for turns in range(1, 20)]
    asked = policy(window_tokens=2400)
    decisions = [asked.decide(each, CONTEXT) for each in requests]
    uncut = [
        tokens_of(each.messages)
        for each, decision in zip(requests, decisions, strict=True)
        if decision.action == "keep"
    ]
    assert 1600 < max(uncut) <= 2000 * 5 // 6


def test_a_conversation_that_comes_whole_is_caught_up_with() -> None:
    """As after a restart that has lost all records: from the beginning, one a request."""
    messages = talk(60)
    conversation = Conversation(late=1)
    for _ in range(30):
        last = conversation.decide(messages)
    assert last.child is None
    assert ", " not in last.reason.partition("tokens")[2]
    assert conversation.children[0].request.messages[:2] == messages[:2]
    for child in conversation.children:
        assert tokens_of(child.request.messages) <= 2 * HIGH + 200


def test_one_that_is_far_too_long_is_caught_up_with_from_its_latest_cuts() -> None:
    messages = talk(400)
    conversation = Conversation(late=1)
    assert len(conversation.policy.recalls(chat(messages), CONTEXT)) <= MAX_LINKS + 1
    for _ in range(MAX_LINKS + 2):
        last = conversation.decide(messages)
    assert last.child is None
    assert last.request is not None
    assert last.request.messages[0]["content"].count("conversation_record") == 2


def test_where_one_message_is_too_long_to_be_asked_about_what_follows_is_summed_up() -> None:
    messages = [user(LONG * 40), said("ok"), *talk(12)]
    conversation = Conversation(late=1)
    for place in range(2, len(messages), 2):
        conversation.decide(messages[: place + 1])
    sent = conversation.sent(messages)
    assert sent[:2] == told("record 0")
    assert all(tokens_of(child.request.messages) <= 2 * HIGH for child in conversation.children)


def test_other_messages_are_another_key() -> None:
    messages = talk(8)
    keys = policy().recalls(chat(messages), CONTEXT)
    assert keys
    changed = [user("Something else."), *messages[1:]]
    assert set(keys).isdisjoint(policy().recalls(chat(changed), CONTEXT))
    assert policy().recalls(chat([*messages, said("More.")]), CONTEXT)[-1:] == list(keys)[-1:]
    assert prefix_keys([user("\ud800"), user("a")], [0, 1, 2])[1:] == prefix_keys(
        [user("\ud800"), user("a")], [1, 2]
    )


def test_pins_and_system_messages_stay_beside_the_record() -> None:
    messages = [system("s"), user("Rules?"), pinned(said("Never by night.")), *talk(20)]
    sent = Conversation().turns(messages[:-1])[-1]
    assert sent[0] == messages[0]
    assert sent[1:3] == told(sent[1]["content"].split("\n")[2])
    assert sent[3:5] == messages[1:3]


def test_a_run_of_tools_is_summed_up_behind_the_message_it_is_about() -> None:
    steps = [each for i in range(30) for each in (calls("a"), result("a", f"{LONG}{i}"))]
    messages = [system("s"), *talk(2), user("Book it."), *steps]
    conversation = Conversation()
    for end in range(6, len(messages), 2):
        sent = conversation.sent(messages[: end + 1])
    assert sent[1]["content"].count("conversation_record") == 2
    assert sent[3] == user("Book it.")
    assert sent[4]["tool_calls"]
    for child in conversation.children:
        asked = child.request.messages
        assert asked[-2]["role"] in ("tool", "assistant")
        assert not asked[-2].get("tool_calls")


def test_the_question_is_asked_as_the_conversation_is_but_for_the_form_of_its_answer() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    form = {"response_format": {"type": "json_object"}, "stop": ["x"], "logprobs": True}
    parameters = {"temperature": 0.2, "top_p": 0.9, **form}
    request = chat(
        talk(8),
        tools=tools,
        tool_choice="required",
        max_tokens=9,
        n=3,
        schema={"type": "object"},
        parameters=parameters,
    )
    child = policy().decide(request, CONTEXT).child
    assert child is not None
    asked = child.request
    assert asked.parameters == {"temperature": 0.2, "top_p": 0.9}
    assert (asked.tools, asked.tool_choice, asked.schema, asked.n) == (tools, None, None, 1)
    assert (asked.max_tokens, asked.soft_max_tokens, asked.clamp) == (50, 37, True)
    kept = policy().decide(replace(request, tool_choice="auto"), CONTEXT).child
    assert kept is not None
    assert kept.request.tool_choice == "auto"


def test_what_is_known_and_no_record_is_as_if_it_were_not() -> None:
    request = chat(talk(9))
    keys = policy().recalls(request, CONTEXT)
    known = dict.fromkeys(keys, b"{}")
    assert policy().decide(request, replace(CONTEXT, known=known)) == policy().decide(
        request, CONTEXT
    )


class Raced(SummaryPolicy):
    """Another request is read whenever one has been."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_latest" and value is not None:
            other = policy()
            other.recalls(chat([user("other " * 3000), *talk(20)]), CONTEXT)
            super().__setattr__(name, other._latest)


def test_requests_at_the_same_time_do_not_see_each_other() -> None:
    """Those that are long are decided in threads, and one policy serves all."""
    request = chat(talk(30))
    assert Raced(HIGH, LOW, SUMMARY_TOKENS).decide(request, CONTEXT) == policy().decide(
        request, CONTEXT
    )
