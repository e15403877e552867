"""Items as the turns of a chat."""

from __future__ import annotations

from typing import Any

from gateway.responses.items import items_of, messages_of


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return messages_of(items_of(list(items), "1"))


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}


def called(*ids: str) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": "{}"}
    return [{"id": id, "type": "function", "function": function} for id in ids]


def thought(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content}


def test_a_text_is_a_message_of_the_user() -> None:
    items = items_of("你好", "1")
    assert items == [
        {
            "type": "message",
            "id": "item_1_0",
            "role": "user",
            "content": [{"type": "input_text", "text": "你好"}],
        }
    ]
    assert messages_of(items) == [said("user", "你好")]


def test_a_single_text_is_a_text_and_more_are_parts() -> None:
    one = {"type": "input_text", "text": "a"}
    image = {"type": "input_image", "image_url": "data:x", "detail": "low"}
    assert messages(said("developer", [one]), said("user", [one, image])) == [
        said("developer", "a"),
        said(
            "user",
            [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
            ],
        ),
    ]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    assert messages(
        said("user", "?"), thought("Hm. "), thought("So."), said("assistant", "Let me see."),
        call("a"), call("b"), {"type": "function_call_output", "call_id": "a", "output": "1"},
        call("c"), thought("Well."), call("d"), said("assistant", "Done."),
    ) == [
        said("user", "?"),
        {
            "role": "assistant",
            "reasoning_content": "Hm. So.",
            "content": "Let me see.",
            "tool_calls": called("a", "b"),
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "assistant", "content": None, "tool_calls": called("c")},
        {
            "role": "assistant",
            "reasoning_content": "Well.",
            "content": None,
            "tool_calls": called("d"),
        },
        said("assistant", "Done."),
    ]  # fmt: skip


def test_a_summary_stands_for_what_was_thought_where_only_that_is_there() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}
    [turn] = messages(item, said("assistant", "Yes."))
    assert turn["reasoning_content"] == "In short."


def test_what_led_to_nothing_is_left_out() -> None:
    assert messages(thought("Hm."), said("user", "?"), said("assistant", "!")) == [
        said("user", "?"),
        said("assistant", "!"),
    ]


def test_a_refusal_goes_back_as_a_part() -> None:
    refused = said("assistant", [{"type": "refusal", "refusal": "No."}])
    assert messages(refused)[0]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_an_item_keeps_the_id_that_it_has() -> None:
    [item] = items_of([said("user", "a") | {"id": "msg_7", "status": None}], "1")
    assert item == said("user", "a") | {"type": "message", "id": "msg_7"}
