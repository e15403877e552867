"""Which requests are compared, what of them, and from which similarity on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from policies.context import Context
from policies.request import Request
from policies.semantic import SemanticCachePolicy, question_of, without_question
from policies.thresholds import ANSWER, DRAFT, OTHER, threshold

ASKED: dict[str, Any] = {"role": "user", "content": "北京的护照多少钱？"}
REQUEST = Request("chat", "chat", messages=[ASKED], parameters={"temperature": 0})
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "look"}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def reason(request: Request, **settings: Any) -> str:
    return SemanticCachePolicy(**settings).decide(request, Context("chat")).reason


def test_a_deterministic_text_is_compared() -> None:
    assert reason(REQUEST) == "compared"
    assert reason(replace(REQUEST, tools=TOOLS, tool_choice="none")) == "compared"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"parameters": {}}, "neither temperature nor seed"),
        ({"tools": TOOLS}, "tools may be called"),
        ({"parameters": {"seed": 1, "functions": TOOLS}}, "tools may be called"),
        ({"messages": []}, "text of the user's"),
        ({"messages": [ASKED, {"role": "assistant", "content": "5"}]}, "text of the user's"),
        ({"messages": [{"role": "user", "content": " "}]}, "text of the user's"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "text of the user's"),
        ({"messages": [{"role": "user", "content": [IMAGE]}, ASKED]}, "images"),
        ({"parameters": {"seed": 1, "prediction": {}}}, "predicts the answer itself"),
        ({"n": 2}, "several answers"),
        ({"messages": [ASKED | {"content": "why " * 2000}]}, "too long"),
    ],
)
def test_what_is_not_compared_says_why(changes: dict[str, Any], part: str) -> None:
    found = reason(replace(REQUEST, **changes))
    assert found.startswith("not compared: ")
    assert part in found


def test_sampled_requests_only_where_they_are_cached() -> None:
    sampled = replace(REQUEST, parameters={})
    assert reason(sampled, sampled=True) == "compared"


def test_an_answer_needs_no_draft() -> None:
    predicted = {"temperature": 0, "prediction": {"type": "content", "content": "5"}}
    request = replace(REQUEST, parameters=predicted, n=2)
    assert reason(request, use="answer") == "compared"


def test_what_must_be_the_same_is_all_but_the_last_text() -> None:
    before = {"role": "user", "content": "Hi"}
    request = replace(REQUEST, messages=[before, ASKED])
    masked = without_question(request)
    assert masked.messages[0] is before
    assert masked == without_question(replace(request, messages=[before, ASKED | {"content": "x"}]))
    assert masked != without_question(replace(request, messages=[ASKED, ASKED]))
    assert request.messages == [before, ASKED]


def test_a_text_in_a_part_is_a_text_and_not_the_same_request() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Why?"}]}
    request = replace(REQUEST, messages=[parts])
    assert question_of(request) == "Why?"
    assert "Why?" not in str(without_question(request).messages)
    assert without_question(request) != without_question(REQUEST)
    assert (
        question_of(replace(request, messages=[parts | {"content": [*parts["content"], IMAGE]}]))
        is None
    )


def test_each_script_has_its_threshold() -> None:
    assert threshold("Why is the sky blue?", answers=True) == ANSWER["latin"]
    assert threshold("天为什么是蓝的？", answers=False) == DRAFT["han"]
    assert threshold("Почему небо синее?", answers=True) == OTHER
    assert threshold("?", answers=True) == OTHER
