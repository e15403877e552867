"""The policy `dedup`. What must never happen: changing what was already sent; touching what the
user has typed last; a reference to what the model cannot read; JSON that is none any more."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Context
from policies.counting import message_tokens, text_tokens
from policies.dedup import MOST_CHARACTERS, WORTH, DedupPolicy
from policies.history import HistoryPolicy
from tests.fakes.conversations import Message, calls, chat, pinned, result, said, system, user

CONTEXT = Context(route="chat")
MIN_TOKENS = 64
CHUNK = " ".join(f"Fare rule {i} says that a refund takes {i + 3} days." for i in range(12))
CHINESE = "".join(
    f"第{i}条规定，乘客可以在起飞前取消预订；退款将在七天之内到账。" for i in range(8)
)
BOOKED = json.dumps({"id": "NQNU5R", "legs": [f"HAT{i}" for i in range(60)], "status": "booked"})
CANCELLED = BOOKED.replace("booked", "cancelled")
CODE = "\n".join(f"def field_{i}(self):\n    return self._fields[{i}]\n" for i in range(12)).strip()


def deduped(messages: list[Message], min_tokens: int = MIN_TOKENS) -> list[Message]:
    decision = DedupPolicy(min_tokens).decide(chat(messages), CONTEXT)
    return decision.request.messages if decision.request else messages


def looked_up(*texts: str) -> list[Message]:
    steps = [each for text in texts for each in (calls("c"), result("c", text))]
    return [system("Be brief."), user("Look it up."), *steps]


@pytest.mark.parametrize("text", [CHUNK, CHINESE, CODE])
def test_a_tool_that_returns_the_same_again_is_referred_to(text: str) -> None:
    messages = looked_up(text, text)
    made = deduped(messages)
    assert made[:-1] == messages[:-1]
    assert {**made[-1], "content": text} == messages[-1]
    assert made[-1]["content"].startswith(f'[Repeated from above: the text from "{text[:10]}')
    assert text[-10:] in made[-1]["content"]


def test_the_decision_says_what_it_does() -> None:
    messages = looked_up(CHUNK, CHUNK)
    decision = DedupPolicy(MIN_TOKENS).decide(chat(messages), CONTEXT)
    before = sum(map(message_tokens, messages))
    after = sum(map(message_tokens, deduped(messages)))
    assert decision.reason == f"1 repeated blocks: {before} to {after} tokens"
    assert decision.prompt is not None
    assert (decision.prompt.before, decision.prompt.after) == (before, after)
    assert before - after > 0.5 * text_tokens(CHUNK)


@pytest.mark.parametrize("messages", [[user(CHUNK)], looked_up(CHUNK, CHINESE)])
def test_without_repetition_nothing_changes(messages: list[Message]) -> None:
    decision = DedupPolicy(MIN_TOKENS).decide(chat(messages), CONTEXT)
    assert (decision.action, decision.request) == ("keep", None)


def test_small_blocks_are_left_alone() -> None:
    messages = looked_up(CHUNK, CHUNK)
    assert deduped(messages, text_tokens(CHUNK)) != messages
    assert deduped(messages, text_tokens(CHUNK) + 1) == messages


def test_json_stays_json_and_tells_what_changed() -> None:
    made = json.loads(deduped(looked_up(BOOKED, CANCELLED))[-1]["content"])
    assert list(made) == ["repeated_from_above", "with_changes"]
    assert any("cancelled" in change for change in made["with_changes"])
    same = json.loads(deduped(looked_up(BOOKED, BOOKED))[-1]["content"])
    assert list(same) == ["repeated_from_above"]


def test_what_only_begins_like_json_is_text() -> None:
    text = f"[draft] {CHUNK}"
    assert deduped(looked_up(text, text))[-1]["content"].startswith("[Repeated from above:")


def test_a_near_twin_keeps_every_difference() -> None:
    changed = CHINESE.replace("第3条规定，乘客可以", "第3条规定，乘客不可以")
    made = deduped(looked_up(CHINESE, changed))[-1]["content"]
    assert "+ 乘客不可以在起飞前取消预订；" in made


def test_a_result_of_several_parts_loses_those_that_are_known() -> None:
    other = CHUNK.replace("refund", "transfer").replace("Fare", "Bag")
    made = deduped(looked_up(CHUNK, f"{other}\n\n{CHUNK}\n\nend"))[-1]["content"]
    assert made.startswith(f"{other}\n\n[Repeated from above:")
    assert made.endswith("]\n\nend")


def test_retrieved_documents_in_a_users_message_keep_their_tags() -> None:
    documents = f"<document>\n{CHUNK}\n</document>\n\n"
    messages = [user(f"{documents}How long?"), said("15 days."), user(f"{documents}May I cancel?")]
    made = deduped(messages)
    assert made[-1]["content"].startswith("<document>\n[Repeated from above:")
    assert made[-1]["content"].endswith("]\n</document>\n\nMay I cancel?")


def test_retrieved_paragraphs_go_and_the_question_stays() -> None:
    first = f"Context:\n\n{CHUNK}\n\nMay I cancel?"
    second = f"Context:\n\n{CHUNK}\n\nWhen is the refund?"
    made = deduped([user(first), said("Yes."), user(second)])[-1]["content"]
    assert made.startswith("Context:\n\n[Repeated from above:")
    assert made.endswith("]\n\nWhen is the refund?")


def test_pasted_code_keeps_its_fence() -> None:
    paste = f"What is wrong?\n\n```python\n{CODE}\n```"
    made = deduped([user(f"Explain.\n\n```python\n{CODE}\n```"), said("…"), user(paste)])
    content = made[-1]["content"]
    assert content.startswith("What is wrong?\n\n```python\n[Repeated from above:")
    assert content.endswith("]\n```")


def test_attached_parts_go_and_the_last_text_stays() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    parts: list[Any] = [{"type": "text", "text": CHUNK}, image, {"type": "text", "text": CHUNK}]
    messages = looked_up(CHUNK)
    made = deduped([*messages, _parts(parts)])
    assert made[-1]["content"][0]["text"].startswith("[Repeated")
    assert made[-1]["content"][1:] == parts[1:]
    assert parts[0]["text"] == CHUNK


def _parts(parts: list[dict[str, Any]]) -> Message:
    return {"role": "user", "content": parts}


@pytest.mark.parametrize(
    "text", [CHUNK, f"{CHUNK}\n\n{CHINESE}", f"Once more:\n\n{CHUNK}\n\nPlease!"]
)
def test_what_the_user_sends_again_is_sent_again(text: str) -> None:
    messages = [user(text), said("…"), user(text)]
    assert deduped(messages) == messages


@pytest.mark.parametrize(
    "again",
    [
        system(CHUNK),
        said(CHUNK),
        pinned(result("c", CHUNK)),
        {"role": "developer", "content": CHUNK},
    ],
)
def test_what_is_not_ours_to_change_stays(again: Message) -> None:
    messages = [*looked_up(CHUNK), calls("c"), again]
    assert deduped(messages) == messages


@pytest.mark.parametrize("first", [system(CHUNK), said(CHUNK), user(CHUNK)])
def test_any_message_may_be_the_twin(first: Message) -> None:
    messages = [first, *looked_up(CHUNK)[1:]]
    assert deduped(messages)[-1]["content"].startswith("[Repeated")


def test_what_became_a_reference_is_nobodys_twin() -> None:
    made = deduped(looked_up(CHUNK, CHUNK, CHUNK))
    assert made[-1]["content"] == made[-3]["content"]


def test_no_reference_to_what_history_has_cut() -> None:
    filler = [each for i in range(8) for each in (user(f"{i} " * 90), said(f"{i}"))]
    messages = [
        *looked_up(CHUNK),
        said("ok"),
        *filler,
        user("Again."),
        calls("d"),
        result("d", CHUNK),
    ]
    assert deduped(messages)[-1]["content"].startswith("[Repeated")
    cut = HistoryPolicy(900, 450).decide(chat(messages), CONTEXT).request
    assert cut is not None
    assert DedupPolicy(MIN_TOKENS).decide(cut, CONTEXT).action == "keep"


def test_what_one_message_repeats_in_itself_goes_the_first_time_it_is_sent() -> None:
    messages = [_parts([{"type": "text", "text": text} for text in (CHUNK, CHUNK, "So?")])]
    first = deduped(messages)
    assert first != messages
    assert deduped([*messages, user("And?")])[:-1] == first


def test_very_large_prompts_are_not_looked_at_to_their_end() -> None:
    large = user("a b " * (MOST_CHARACTERS // 4))
    messages = [large, *looked_up(CHUNK, CHUNK)]
    assert deduped(messages) == messages


blocks = st.sampled_from(
    [CHUNK, CHINESE, CODE, BOOKED, CANCELLED, CHUNK.replace("5 days", "2 days"), "ok"]
)
typed = st.lists(blocks | st.just("```"), min_size=1, max_size=5).map("\n\n".join)
turns = st.one_of(
    typed.map(user),
    blocks.map(said),
    blocks.map(lambda text: result("c", text)),
    blocks.map(lambda text: pinned(user(text))),
    st.lists(blocks, min_size=1, max_size=3).map(
        lambda texts: _parts([{"type": "text", "text": text} for text in texts])
    ),
)
conversations = st.lists(turns, min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(conversations)
def test_what_was_sent_never_changes(messages: list[Message]) -> None:
    sent = [deduped(messages[:end]) for end in range(1, len(messages) + 1)]
    for before, after in pairwise(sent):
        assert after[:-1] == before


@settings(max_examples=40, deadline=None)
@given(conversations, typed)
def test_the_users_last_words_are_sent_as_typed(messages: list[Message], last: str) -> None:
    question = "And what of the refund?\n"
    made = deduped([*messages, user(f"{last}\n```\n```\n\n{question}")])
    assert made[-1]["content"].endswith(question)


@settings(max_examples=40, deadline=None)
@given(conversations)
def test_references_are_shorter_and_to_what_can_be_read(messages: list[Message]) -> None:
    for place, (message, made) in enumerate(zip(messages, deduped(messages), strict=True)):
        if message == made:
            continue
        assert message["role"] in ("user", "tool")
        assert message_tokens(made) < message_tokens(message)
        if message["content"] in (BOOKED, CANCELLED):
            quoted = json.loads(made["content"])["repeated_from_above"]["from"]
            earlier = (str(before["content"]) for before in deduped(messages)[:place])
            # A quotation has one space wherever the text has white space.
            assert any(quoted in " ".join(text.split()) for text in earlier)


def test_a_reference_costs_half_of_what_it_stands_for_at_most() -> None:
    words = [f"{i * 7919} " for i in range(40)]
    other = [word if i % 4 else f"{i}, " for i, word in enumerate(words)]
    messages = looked_up("".join(words), "".join(other))
    for message, made in zip(messages, deduped(messages, 16), strict=True):
        tokens = message_tokens(message)
        assert made == message or message_tokens(made) <= WORTH * tokens + 5
