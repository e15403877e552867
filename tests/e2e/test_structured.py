"""Answers of a set form from the real model, by every way to it."""

from __future__ import annotations

import json

import pytest

from tests.e2e.stack import Stack, content, faces

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
QUESTION = "Invent a person. 用 JSON 回答。"


@pytest.mark.parametrize("max_tokens", [8, 13, 40])
def test_json_is_whole_at_every_cap(stack: Stack, max_tokens: int) -> None:
    for face in faces(stack):
        told = {"response_format": FORM, "max_tokens": max_tokens, **face}
        whole = stack.ask(QUESTION, **told)["choices"][0]
        value = json.loads(whole["message"]["content"])
        assert isinstance(value["name"], str)
        assert type(value["age"]) is int
        assert whole["finish_reason"] in ("stop", "length")
        assert content(stack.stream(QUESTION, **told)) == whole["message"]["content"]


def test_what_cannot_be_honoured_is_refused(stack: Stack) -> None:
    for face in faces(stack):
        schema = {"type": "array", "uniqueItems": True}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        refusal = stack.refusal(response_format=form, max_tokens=9, **face)
        assert "#/uniqueItems" in refusal["message"]
        assert (
            "shortest answer"
            in stack.refusal(response_format=FORM, max_tokens=3, **face)["message"]
        )
