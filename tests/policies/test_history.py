"""The policy `history`. What must never happen: splitting a tool call from its results; losing the
system message or a pin; losing the user's last message; rewriting the prefix with every turn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Context
from policies.counting import message_tokens
from policies.decision import PromptTokens
from policies.history import HistoryPolicy
from policies.request import Request
from policies.turns import turns_of
from tests.fakes.conversations import (
    Message,
    calls,
    chat,
    conversations,
    pinned,
    result,
    said,
    system,
    user,
)

CONTEXT = Context(route="chat")
LONG = "word " * 95  # 100 tokens with what surrounds it


def cut(messages: list[Message], high: int, low: int, **fields: Any) -> list[Message]:
    decision = HistoryPolicy(high, low).decide(chat(messages, **fields), CONTEXT)
    return decision.request.messages if decision.request else messages


def talk(turns: int) -> list[Message]:
    """So many turns of 100 tokens for each message."""
    return [each for i in range(turns) for each in (user(f"{LONG}{i}"), said(f"{LONG}{i}"))]


def test_a_long_word_list_counts_as_the_tests_below_assume() -> None:
    assert 85 <= message_tokens(user(LONG)) <= 115


def test_nothing_is_cut_up_to_the_high_water_mark() -> None:
    messages = talk(4)
    total = sum(map(message_tokens, messages))
    decision = HistoryPolicy(total, 10).decide(chat(messages), CONTEXT)
    assert (decision.action, decision.request, decision.prompt) == ("keep", None, None)
    assert decision.reason == f"{total} tokens, within {total}"


def test_above_it_old_turns_go_down_to_the_low_water_mark() -> None:
    messages = [system("Be brief."), *talk(5)]
    decision = HistoryPolicy(900, 500).decide(chat(messages), CONTEXT)
    assert decision.action == "rewrite"
    assert decision.request is not None
    kept = decision.request.messages
    assert kept == [messages[0], *messages[-4:]]
    counts = [sum(map(message_tokens, each)) for each in (messages, kept)]
    assert decision.prompt == PromptTokens(*counts)
    assert decision.reason == (f"6 of 11 messages left out: {counts[0]} to {counts[1]} tokens")
    assert decision.request == chat(kept)


def test_what_is_sent_grows_at_its_end_until_the_next_cut() -> None:
    messages = talk(40)
    sent = [cut(messages[: k + 1], 1500, 500) for k in range(0, len(messages), 2)]
    cuts = sum(b[: len(a)] != a for a, b in pairwise(sent))
    assert cuts == sum(map(message_tokens, messages)) // 1000 - 1
    assert {each[0]["role"] for each in sent} == {"user"}


def test_a_long_run_of_tools_is_cut_behind_the_message_it_is_about() -> None:
    steps = [each for i in range(20) for each in (calls("a"), result("a", f"{LONG}{i}"))]
    messages = [system("s"), *talk(2), user("Book it."), *steps]
    kept = cut(messages, 1000, 500)
    assert kept[:2] == [system("s"), user("Book it.")]
    assert kept[2:] == messages[-len(kept) + 2 :]
    assert kept[2]["tool_calls"]


def test_the_message_that_a_run_is_about_stays_until_the_next_cut() -> None:
    steps = [each for i in range(10) for each in (calls("a"), result("a", f"{LONG}{i}"))]
    messages = [user("Book it."), *steps]
    before = cut(messages, 1000, 500)
    assert before[0] == user("Book it.")
    assert len(before) < len(messages)
    more = [said("Booked."), user("Thanks.")]
    assert cut([*messages, *more], 1000, 500) == [*before, *more]


def test_a_large_last_message_goes_alone_where_it_fits_under_the_high_water_mark() -> None:
    large = user(LONG * 7)
    assert cut([system("s"), *talk(4), large], 1000, 300) == [system("s"), large]


def test_what_no_cut_can_bring_under_the_high_water_mark_is_not_cut() -> None:
    messages = [*talk(2), user(LONG * 20)]
    decision = HistoryPolicy(1000, 300).decide(chat(messages), CONTEXT)
    assert decision.action == "keep"
    assert decision.reason.endswith("tokens, and nothing that may be left out")


def test_a_large_turn_that_was_not_cut_is_with_the_next_one() -> None:
    assert cut([user(LONG * 20), said("ok"), user("next")], 1000, 300) == [user("next")]


def test_tools_count_too() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": LONG * 3}}]
    assert len(cut(talk(3), 700, 450)) == 6
    assert len(cut(talk(3), 700, 600, tools=tools)) < 6


def test_a_conversation_without_a_user_is_left_alone() -> None:
    messages = [said(LONG) for _ in range(20)]
    assert cut(messages, 500, 100) == messages


def test_completions_have_no_history() -> None:
    request = Request("completions", "m", prompts=[LONG * 100])
    assert HistoryPolicy(100, 10).decide(request, CONTEXT).action == "keep"


def test_a_result_that_comes_after_its_call_was_left_out_is_left_out_too() -> None:
    messages = [user("Book it."), calls("late"), *talk(6), user("And?")]
    before = cut(messages, 900, 500)
    assert len(before) < len(messages)
    assert cut([*messages, result("late", LONG), user("Well?")], 900, 500) == [
        *before,
        user("Well?"),
    ]


def test_pins_stay_where_they_are() -> None:
    messages = [user("Rules?"), pinned(said("Never by night.")), *talk(10)]
    kept = cut(messages, 900, 500)
    assert kept[:2] == messages[:2]
    assert len(kept) < len(messages)


marks = st.tuples(st.integers(100, 1500), st.integers(1, 100)).map(
    lambda pair: (pair[0], max(1, pair[0] * pair[1] // 101))
)


@settings(max_examples=200)
@given(conversations(), marks)
def test_calls_keep_their_results_and_results_their_calls(
    messages: list[Message], mark: tuple[int, int]
) -> None:
    kept = {message["name"] for message in cut(messages, *mark)}
    units: dict[int, set[bool]] = {}
    for message, unit in zip(messages, turns_of(messages).unit_of, strict=True):
        units.setdefault(unit, set()).add(message["name"] in kept)
    assert all(len(fates) == 1 for fates in units.values())


@settings(max_examples=200)
@given(conversations(), marks)
def test_what_must_stay_stays_whole_and_in_order(
    messages: list[Message], mark: tuple[int, int]
) -> None:
    kept = cut(messages, *mark)
    places = [int(message["name"][3:]) for message in kept]
    assert places == sorted(places)
    assert [messages[place] for place in places] == kept
    for place, message in enumerate(messages):
        if message["role"] in ("system", "developer") or "metadata" in message:
            assert place in places
    last = max(place for place, message in enumerate(messages) if message["role"] == "user")
    assert last in places
    assert len(messages) - 1 in places


@settings(max_examples=200)
@given(conversations(), marks)
def test_a_cut_prompt_begins_with_the_user(messages: list[Message], mark: tuple[int, int]) -> None:
    kept = cut(messages, *mark)
    if kept != messages:
        spoken = [m for m in kept if m["role"] not in ("system", "developer")]
        opened = spoken[0]
        assert opened["role"] == "user" or turns_of(messages).kinds[0] == "fixed"


@settings(max_examples=200)
@given(conversations(), marks)
def test_a_prefix_is_rewritten_only_above_the_high_water_mark(
    messages: list[Message], mark: tuple[int, int]
) -> None:
    high, _ = mark
    sent = [cut(messages[:k], *mark) for k in range(1, len(messages) + 1)]
    for before, after in pairwise(sent):
        if after[: len(before)] != before:
            grown = sum(map(message_tokens, before)) + message_tokens(after[-1])
            assert grown > high
            assert sum(map(message_tokens, after)) <= high
