"""The key of the exact cache: what must be in it is, and nothing that must not be."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.openai import parse_chat, parse_completion
from engine.protocol.parameters import CHAT, COMPLETIONS
from gateway.canonical import canonical
from policies import cache
from policies.cache import (
    LEFT_OUT,
    LEFT_OUT_PARAMETERS,
    ExactCachePolicy,
    key_of,
    why_unrepeatable,
)
from policies.coalesce import CoalescePolicy
from policies.context import Context
from policies.request import Request

CHANGES: dict[str, tuple[Any, Any]] = {
    "surface": ("chat", "completions"),
    "model": ("a", "b"),
    "messages": ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]),
    "prompts": (["a"], [[1, 2]]),
    "max_tokens": (16, 400),
    "soft_max_tokens": (None, 8),
    "reasoning_tokens": (None, 8),
    "clamp": (False, True),
    "n": (1, 2),
    "tools": (None, [{"type": "function", "function": {"name": "f"}}]),
    "tool_choice": ("auto", "none"),
    "schema": (None, {"type": "object"}),
    "stream": (False, True),
    "include_usage": (False, True),
}
"""Two values of every field of the canonical request."""

KNOWN = sorted({*CHAT, *COMPLETIONS} | {"guided_json", "a_field_of_next_year"})
WHO = {"salt": "secret", "route": "chat", "models": [["one", "gguf"]]}
BASE = Request("chat", "chat", [{"role": "user", "content": "Hi"}], parameters={"temperature": 0})


def key(request: Request = BASE, **who: Any) -> bytes:
    return key_of(request, **(WHO | who))


def with_parameter(name: str, value: Any) -> Request:
    return msgspec.structs.replace(BASE, parameters=BASE.parameters | {name: value})


def fields_outside() -> set[str]:
    """Fields that can change without the key."""
    return {
        name
        for name, (one, other) in CHANGES.items()
        if key(msgspec.structs.replace(BASE, **{name: one}))
        == key(msgspec.structs.replace(BASE, **{name: other}))
    }


def parameters_outside() -> set[str]:
    return {
        name for name in KNOWN if key(with_parameter(name, 1)) == key(with_parameter(name, "x"))
    }


def test_every_field_has_two_values_here() -> None:
    """Whoever adds a field to the request decides here whether the answer depends on it."""
    assert {*CHANGES, "parameters"} == set(Request.__struct_fields__)


def test_only_what_is_named_is_left_out() -> None:
    assert fields_outside() == set(LEFT_OUT)
    assert parameters_outside() == set(LEFT_OUT_PARAMETERS)


@pytest.mark.parametrize("name", sorted(set(CHANGES) - set(LEFT_OUT)))
def test_a_key_that_forgets_a_field_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants of Show 3: the test above fails on each of them."""
    monkeypatch.setattr(cache, "LEFT_OUT", LEFT_OUT | {name: "forgotten"})
    assert fields_outside() == {*LEFT_OUT, name}


@pytest.mark.parametrize("name", sorted(set(KNOWN) - set(LEFT_OUT_PARAMETERS)))
def test_a_key_that_forgets_a_parameter_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LEFT_OUT_PARAMETERS", LEFT_OUT_PARAMETERS | {name: "forgotten"})
    assert parameters_outside() == {*LEFT_OUT_PARAMETERS, name}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("salt", "another tenant's"),
        ("route", "extract"),
        ("models", [["one", "other.gguf"]]),
        ("models", [["one", "gguf"], ["two", "gguf"]]),
    ],
)
def test_tenant_route_and_model_are_in_it(name: str, other: Any) -> None:
    assert key(**{name: other}) != key()


def test_another_version_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(cache, "FORMAT", b"fewer-answer-2")
    assert key() != before


def test_a_parameter_that_is_absent_is_not_one_that_says_nothing() -> None:
    assert key(with_parameter("stop", [])) != key()
    assert key(with_parameter("seed", 1)) != key(with_parameter("seed", 1.0))
    assert key(with_parameter("seed", True)) != key(with_parameter("seed", 1))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
requests = st.builds(
    Request,
    surface=st.sampled_from(["chat", "completions"]),
    model=st.just("chat"),
    messages=st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text()}),
        max_size=3,
    ),
    max_tokens=st.none() | st.integers(0, 5),
    n=st.integers(1, 3),
    tools=st.none() | st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=2)),
    parameters=st.dictionaries(st.text(min_size=1, max_size=5), json_values, max_size=3),
)


@given(requests, requests)
@settings(max_examples=60, deadline=None)
def test_different_requests_have_different_keys(one: Request, other: Request) -> None:
    assert (key(one) == key(other)) == (shape(one) == shape(other))


def shape(request: Request) -> str:
    """Type and value of everything: `1` is not `True`, and the order of a tool's fields counts."""
    value = msgspec.structs.asdict(request)
    value["parameters"] = sorted(value["parameters"].items())
    value["messages"] = [sorted(message.items()) for message in value["messages"]]
    return repr([(name, value[name]) for name in value if name not in LEFT_OUT])


@given(requests, st.text(), st.text())
@settings(max_examples=30, deadline=None)
def test_two_tenants_never_share(request: Request, one: str, other: str) -> None:
    assert (key(request, salt=one) == key(request, salt=other)) == (one == other)


BODY: dict[str, Any] = {
    "model": "chat",
    "messages": [
        {"role": "system", "content": "Be brief.", "name": "s"},
        {"role": "user", "content": [{"type": "text", "text": "Describe a lighthouse."}]},
    ],
    "temperature": 0,
    "logit_bias": {"5": 1, "7": -1},
    "stop": ["a", "b"],
    "max_tokens": 5,
}


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if isinstance(value, dict):
        items = [(name, shuffled(item, chance)) for name, item in value.items()]
        chance.shuffle(items)
        return dict(items)
    return value


def chat_key(body: dict[str, Any], indent: int | None = None) -> bytes:
    data = json.dumps(body, indent=indent).encode()
    return key(canonical("chat", parse_chat(data)))


def test_order_of_fields_and_whitespace_do_not_matter() -> None:
    """B09."""
    chance = random.Random(1)
    keys = {chat_key(shuffled(BODY, chance), chance.choice([None, 2])) for _ in range(50)}
    assert keys == {chat_key(BODY)}


def test_every_name_of_the_budget_is_one() -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    assert chat_key(body | {"max_completion_tokens": 5}) == chat_key(BODY)
    assert chat_key(body | {"max_completion_tokens": 6}) != chat_key(BODY)


def test_the_order_inside_a_schema_is_in_it() -> None:
    """Models write an object's fields in the order of its schema."""
    one: dict[str, Any] = {"a": {}, "b": {}}
    other: dict[str, Any] = {"b": {}, "a": {}}
    assert key(with_parameter("guided_json", one)) != key(with_parameter("guided_json", other))


def test_a_lone_surrogate_has_a_key() -> None:
    lone = [{"role": "user", "content": "\ud800"}]
    assert key(msgspec.structs.replace(BASE, messages=lone)) != key()


def test_a_prompt_is_no_message() -> None:
    fields = parse_completion(b'{"model": "chat", "prompt": "Hi", "temperature": 0}')
    assert key(canonical("completions", fields)) != key()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"temperature": 0}, None),
        ({"temperature": 0.0}, None),
        ({"seed": 0}, None),
        ({"seed": 7, "temperature": 1.5}, None),
        ({}, "neither temperature nor seed is given"),
        ({"top_p": 0.1}, "neither temperature nor seed is given"),
        ({"temperature": 1e-6}, "it is sampled without a seed"),
    ],
)
def test_deterministic_is_what_says_so(parameters: dict[str, Any], reason: str | None) -> None:
    request = msgspec.structs.replace(BASE, parameters=parameters)
    assert why_unrepeatable(request) == reason
    context = Context("chat")
    cached, shared = ExactCachePolicy(), CoalescePolicy()
    assert cached.applies(request) == shared.applies(request) == (reason is None)
    assert cached.decide(request, context).action == "keep"
    assert (reason or "looked up") in cached.decide(request, context).reason
    assert (reason or "shared") in shared.decide(request, context).reason
    assert ExactCachePolicy(sampled=True).decide(request, context).reason == "looked up"
