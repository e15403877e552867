"""Where prompt tokens come from."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from gateway.ledger.entry import Origins
from gateway.ledger.origin import origins_of
from policies.request import Request

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}" * 20}}


def chat(*messages: dict[str, Any], **fields: Any) -> Request:
    return Request("chat", "m", messages=list(messages), **fields)


def said(role: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": "four" * tokens, **more}


def test_by_the_roles_of_messages() -> None:
    request = chat(
        said("system", 10),
        said("developer", 10),
        said("user", 30),
        said("assistant", 50),
        said("user", 40),
        said("assistant", 5),
    )
    assert origins_of(request, 145) == Origins(system=20, history=85, user=40)


def test_calls_and_results_are_the_tools() -> None:
    request = chat(
        said("user", 30),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        said("tool", 40, tool_call_id="1"),
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    found = origins_of(request, 1000)
    assert found.history == found.system == found.retrieved == 0
    assert found.tools > found.user > 200


def test_documents_and_files_are_retrieved() -> None:
    file = {"type": "file", "file": {"file_data": "…"}}
    content = [{"type": "text", "text": "four" * 10}, file]
    found = origins_of(chat({"role": "user", "content": content}), 1010)
    assert found == Origins(retrieved=1000, user=10)
    request = chat(said("user", 1), parameters={"documents": [{"text": "four" * 100}]})
    found = origins_of(request, 100)
    assert found.user + found.retrieved == 100
    assert found.retrieved > 90


def test_prompts_are_the_users() -> None:
    assert origins_of(Request("completions", "m", prompts=["a", [1, 2]]), 7) == Origins(user=7)


def test_what_is_empty_is_the_users_too() -> None:
    assert origins_of(chat(said("user", 0)), 3) == Origins(user=3)


roles = st.sampled_from(["system", "user", "assistant", "tool"])


@given(
    messages=st.lists(st.tuples(roles, st.integers(0, 99)), max_size=9), tokens=st.integers(0, 9999)
)
def test_they_add_up_to_the_prompt(messages: list[tuple[str, int]], tokens: int) -> None:
    found = astuple(origins_of(chat(*(said(*each) for each in messages)), tokens))
    assert sum(found) == tokens
    assert min(found) >= 0
