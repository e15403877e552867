"""Arms: the same for every turn of a conversation, even over all, drawn for each policy alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.holdout import METADATA_NAMES, arm_of, conversation_of, epoch_of
from policies.request import Request

texts = st.text(max_size=20)
turns = st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts), max_size=6)


def chat(*messages: tuple[str, Any], **parameters: Any) -> Request:
    said = [{"role": role, "content": content} for role, content in messages]
    return Request("chat", "m", messages=said, parameters=parameters)


@given(system=texts, first=texts, more=turns)
def test_every_turn_of_a_conversation_is_the_same_one(
    system: str, first: str, more: list[tuple[str, str]]
) -> None:
    opening = [("system", system), ("user", first)]
    whole = [*opening, *more]
    names = {conversation_of(chat(*whole[:length])) for length in range(2, len(whole) + 1)}
    assert len(names) == 1


@given(a=st.tuples(texts, texts), b=st.tuples(texts, texts))
def test_other_openings_are_other_conversations(a: tuple[str, str], b: tuple[str, str]) -> None:
    one, other = (conversation_of(chat(("system", s), ("user", u))) for s, u in (a, b))
    assert (one == other) == (a == b)


@pytest.mark.parametrize("name", METADATA_NAMES)
def test_a_name_goes_before_the_text(name: str) -> None:
    a = conversation_of(chat(("user", "Hi"), metadata={name: "17"}))
    assert a == conversation_of(chat(("user", "Something else"), metadata={name: "17"}))
    assert a != conversation_of(chat(("user", "Hi"), metadata={name: "18"}))
    assert a != conversation_of(chat(("user", "Hi"), metadata={name: ""}))


def test_people_and_shared_prefixes_are_no_conversations() -> None:
    plain = conversation_of(chat(("user", "Hi")))
    for field in ("user", "safety_identifier", "prompt_cache_key"):
        assert conversation_of(chat(("user", "Hi"), **{field: "x"})) == plain


def test_the_first_prompt_stands_for_a_completion() -> None:
    request = Request("completions", "m", prompts=["Once", "upon"])
    assert conversation_of(request) == conversation_of(replace(request, prompts=["Once"]))
    assert conversation_of(request) != conversation_of(replace(request, prompts=[[1, 2]]))


@pytest.mark.parametrize("content", ["\ud800", [{"type": "text", "text": "Hi"}], None, ""])
def test_any_content_has_a_name(content: Any) -> None:
    assert len(conversation_of(chat(("user", content)))) == 16


def test_without_a_user_the_whole_is_the_opening() -> None:
    a, b = chat(("system", "x")), chat(("system", "x"), ("assistant", "y"))
    assert conversation_of(a) != conversation_of(b)


def test_no_text_shows() -> None:
    assert "secret" not in conversation_of(chat(("user", "secret")))


@given(share=st.floats(0, 1), more=st.floats(0, 1), conversation=texts)
def test_a_larger_holdout_keeps_who_was_in_it(share: float, more: float, conversation: str) -> None:
    small, large = sorted((share, more))
    if arm_of("p", "e", "t", conversation, small) == "control":
        assert arm_of("p", "e", "t", conversation, large) == "control"


def test_nobody_and_everybody() -> None:
    for conversation in map(str, range(200)):
        assert arm_of("p", "e", "t", conversation, 0.0) == "treated"
        assert arm_of("p", "e", "t", conversation, 1.0) == "control"


def test_the_arms_have_their_share() -> None:
    drawn = [arm_of("p", "e", "t", str(i), 0.05) for i in range(20_000)]
    assert drawn.count("control") == pytest.approx(1000, abs=93)  # three standard deviations


@pytest.mark.parametrize("other", [("q", "e", "t"), ("p", "f", "t"), ("p", "e", "u")])
def test_policies_epochs_and_tenants_are_drawn_independently(other: tuple[str, str, str]) -> None:
    both = sum(
        arm_of("p", "e", "t", str(i), 0.5) == arm_of(*other, str(i), 0.5) == "control"
        for i in range(4000)
    )
    assert both == pytest.approx(1000, abs=82)


def test_arms_are_the_same_in_every_process_and_version() -> None:
    """Pinned: with another hash every experiment that runs would start anew."""
    assert conversation_of(chat(("user", "Hi"))) == "f482224317883c58"
    arms = "".join(arm_of("budget", "e", "t", str(i), 0.5)[0] for i in range(16))
    assert arms == "ccctccccttcttctt"


class Settings(msgspec.Struct, frozen=True):
    limit: int
    mode: str = "active"
    holdout: float = 0.05


def test_an_epoch_is_what_the_treated_arm_gets() -> None:
    epoch = epoch_of(Settings(5))
    assert epoch == epoch_of(Settings(5, mode="shadow", holdout=0.5))
    assert epoch != epoch_of(Settings(6))
