"""OpenAI bodies: types, ranges and combinations, each refusal naming its field."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import Generate, decode_to_engine, encode
from engine.protocol.openai import (
    BUDGET_FIELDS,
    DEFAULT_COMPLETION_TOKENS,
    generate_frame,
    output_budget,
    parse_chat,
    parse_completion,
    sampling_of,
)
from engine.protocol.parameters import CHAT, COMPLETIONS

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NO_TEXT = {"name": "f", "arguments": {}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def chat(**fields: Any) -> dict[str, Any]:
    return parse_chat(json.dumps({"messages": HI} | fields).encode())


def completion(**fields: Any) -> dict[str, Any]:
    return parse_completion(json.dumps({"prompt": "hi"} | fields).encode())


def refused_chat(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    return caught.value


def refused_completion(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        completion(**fields)
    return caught.value


def frame(**fields: Any) -> Generate:
    return generate_frame("chat", "id", chat(**fields))


# what passes ---------------------------------------------------------------------------------


def test_null_means_not_set() -> None:
    names = [name for name in CHAT if name != "messages"]
    assert chat(**dict.fromkeys(names)) == {"messages": HI}
    names = [name for name in COMPLETIONS if name != "prompt"]
    assert completion(**dict.fromkeys(names)) == {"prompt": "hi"}


def test_unknown_fields_are_kept() -> None:
    fields = chat(chat_template_kwargs={"x": 1}, client_metadata=None)
    assert fields == {"messages": HI, "chat_template_kwargs": {"x": 1}}


def test_every_documented_field_is_accepted() -> None:
    everything = {
        "model": "m", "stream": True, "stream_options": {"include_usage": True, "other": 1},
        "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "n": 3,
        "stop": ["a", "b"], "seed": -5, "logprobs": True, "top_logprobs": 20, "tools": [TOOL],
        "tool_choice": "auto", "parallel_tool_calls": False, "response_format": {"type": "text"},
        "frequency_penalty": -2, "presence_penalty": 2, "logit_bias": {"0": -100, "2": 1.5},
        "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"},
        "reasoning_effort": "low", "service_tier": "auto", "store": True,
        "moderation": {"model": "m"}, "top_k": -1, "min_p": 0, "repetition_penalty": 1.1,
        "stop_token_ids": [2], "min_tokens": 2, "ignore_eos": True, "allowed_token_ids": [1, 2],
        "bad_token_ids": [2], "include_stop_str_in_output": True, "soft_max_tokens": 4,
    }  # fmt: skip
    assert chat(**everything) == {"messages": HI} | everything


def test_sampling_fields_reach_the_engine() -> None:
    sampling = frame(
        temperature=0, top_p=0.5, top_k=7, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={"5": -3}, allowed_token_ids=[5, 6], bad_token_ids=[6],
        stop="x", stop_token_ids=[9], include_stop_str_in_output=True, min_tokens=1,
        ignore_eos=True, seed=3, logprobs=True, top_logprobs=4,
    ).sampling  # fmt: skip
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0,
        0.5,
        7,
        0.1,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert sampling.repetition_penalty == 1.5
    assert sampling.logit_bias == {5: -3}
    assert (sampling.allowed_token_ids, sampling.bad_token_ids) == ([5, 6], [6])
    assert (sampling.stop, sampling.stop_token_ids, sampling.include_stop) == (["x"], [9], True)
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.seed) == (1, True, 3)
    assert sampling.logprobs == 4


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0)],
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert sampling_of("chat", chat(**fields)).logprobs == logprobs


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, None),
        ({"max_tokens": 50}, 50),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 50, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 3, "max_completion_tokens": 7}, 3),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
    ],
)
def test_the_smaller_budget_wins(fields: dict[str, Any], budget: int | None) -> None:
    assert output_budget(chat(**fields)) == budget
    assert frame(**fields).max_tokens == budget


def test_a_completion_without_a_budget_has_openai_s() -> None:
    built = generate_frame("completions", "id", completion(max_tokens=None))
    assert built.max_tokens == DEFAULT_COMPLETION_TOKENS


@pytest.mark.parametrize(
    "content",
    ["你好", [{"type": "text", "text": "你"}, {"type": "text", "text": "好"}]],
    ids=["text", "parts"],
)
def test_a_prediction_is_one_text(content: Any) -> None:
    assert frame(prediction={"type": "content", "content": content}).prediction == "你好"
    assert frame().prediction is None


def test_a_frame_survives_the_wire() -> None:
    prediction = {"type": "content", "content": "x"}
    built = frame(logit_bias={"5": 1}, stop=["x"], tools=[TOOL], n=2, prediction=prediction)
    assert decode_to_engine(encode(built)) == built


def test_what_the_gateway_adds_is_in_the_frame() -> None:
    built = generate_frame(
        "chat", "id", chat(priority=9, cache_salt="theirs"), tenant="t", salt="ours", weight=2.0,
        priority=1, timeout_ms=5, expected_tokens=6, traceparent="00-x",
    )  # fmt: skip
    assert (built.tenant, built.salt, built.weight, built.priority) == ("t", "ours", 2.0, 1)
    assert (built.timeout_ms, built.expected_tokens, built.traceparent) == (5, 6, "00-x")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [""]),
    ],
)
def test_the_four_forms_of_a_prompt(prompt: Any, prompts: Any) -> None:
    built = generate_frame(
        "completions", "id", completion(prompt=prompt, echo=True, n=2, best_of=2)
    )
    assert built.prompts == prompts
    assert built.messages is None
    assert built.echo


def test_completion_logprobs_are_a_count() -> None:
    assert sampling_of("completions", completion(logprobs=3)).logprobs == 3
    assert sampling_of("completions", completion(logprobs=0)).logprobs == 0


# messages ------------------------------------------------------------------------------------


def test_messages_of_every_role_and_form() -> None:
    messages = [
        {"role": "developer", "content": "d", "name": "n"},
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": [
            {"type": "text", "text": "u"},
            {"type": "image_url", "image_url": {"url": "data:", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "file", "file": {}},
            {"type": "video_url", "video_url": {}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "refusal": "no"},
        {"role": "assistant", "content": "", "extra": {"kept": 1}},
    ]  # fmt: skip
    assert chat(messages=messages)["messages"] == messages


def test_nulls_in_messages_are_dropped_but_content() -> None:
    sent = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "audio": None,
        "tool_calls": [CALL],
    }
    kept = chat(messages=[*HI, sent])["messages"][1]
    assert kept == {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "function", "content": "x", "name": "n"}], "messages[0].role"),
        ([{"role": "User", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0].content"),
        ([*HI, *HI, {"role": "user", "content": ["x"]}], "messages[2].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            "messages[0].content[0].text",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].image_url.url",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}],
            "messages[0].content[0].image_url",
        ),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].id"),
        (
            [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [CALL | {"function": NO_TEXT}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)  # fmt: skip
def test_a_bad_message_is_named_by_its_path(messages: Any, param: str) -> None:
    assert refused_chat(messages=messages).param == param


# one field at a time -------------------------------------------------------------------------

WRONG_TYPES: dict[str, list[Any]] = {
    "model": [5, [], "", {}],
    "stream": [1, "true", 0],
    "stream_options": [True, [], "x"],
    "n": ["1", 1.0, True, 0, -1, 129, 10**30],
    "temperature": ["0", True, [], -0.1, 101, 10**30],
    "top_p": ["1", 0, -0.1, 1.1],
    "top_k": ["1", 1.5, -2],
    "min_p": ["1", -0.1, 1.1],
    "presence_penalty": ["1", 2.1, -2.1],
    "frequency_penalty": ["1", 2.1, -2.1],
    "repetition_penalty": ["1", 0, -1, 101],
    "max_tokens": ["5", 5.0, 0.5, -1, True, 2**31, []],
    "max_completion_tokens": ["5", 5.0, -1, True],
    "max_output_tokens": ["5", 5.0, -1, True, {}],
    "stop": [5, [5], {}, "", [""], ["x"] * 17, "x" * 257, [None]],
    "seed": ["5", 5.5, True, 2**63, -(2**63) - 1],
    "user": [5, {}],
    "metadata": ["x", {"a": 1}, []],
    "service_tier": [5],
    "store": ["x", 1],
    "stop_token_ids": [5, ["x"], [-1], [2**31], list(range(4097))],
    "allowed_token_ids": [5, [], [-1], [1.0]],
    "bad_token_ids": [5, [-1]],
    "min_tokens": [-1, 1.5, "x"],
    "ignore_eos": [1],
    "include_stop_str_in_output": ["x"],
    "cache_salt": ["", 5],
    "modalities": ["text", [5]],
    "response_format": ["json", {}, {"type": 5}, {"type": "json_schema"}],
}
CHAT_TYPES: dict[str, list[Any]] = WRONG_TYPES | {
    "max_tokens": [0, "5"],
    "logprobs": [1, "true", 5],
    "tools": [{}, "x", ["x"], [{"type": "function"}], [{"function": {"name": "f"}}]],
    "tool_choice": [5, [], {}, {"type": "function"}, "bogus"],
    "parallel_tool_calls": ["x"],
    "prediction": [
        "x",
        {},
        {"type": "content"},
        {"type": "x", "content": ""},
        {"type": "content", "content": ["x"]},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
    "reasoning_effort": [5],
    "moderation": ["x"],
}
COMPLETION_TYPES: dict[str, list[Any]] = WRONG_TYPES | {
    "prompt": [
        5, {}, [], [[]], [None], [1.5], [True], ["a", 1], [1, "a"], [[1], "a"], [[-1]], [[2**31]],
    ],
    "logprobs": [True, "1", -1, 21],
    "echo": [1],
    "suffix": [5],
    "best_of": [0, "1"],
}  # fmt: skip


@pytest.mark.parametrize("name", CHAT_TYPES)
def test_a_wrong_chat_field_is_named(name: str) -> None:
    for value in CHAT_TYPES[name]:
        error = refused_chat(**{name: value})
        assert (error.param or "").split(".")[0].split("[")[0] == name, (value, error.message)
        assert error.message.endswith(".")


def test_an_integer_of_more_than_64_bits_is_out_of_range_and_not_a_number() -> None:
    assert refused_chat(seed=2**64).message.startswith("seed must be between ")
    assert refused_chat(max_tokens=10**30).message.startswith("max_tokens must be between ")


@pytest.mark.parametrize("name", COMPLETION_TYPES)
def test_a_wrong_completion_field_is_named(name: str) -> None:
    for value in COMPLETION_TYPES[name]:
        error = refused_completion(**{name: value})
        assert (error.param or "").split(".")[0].split("[")[0] == name, (value, error.message)


@pytest.mark.parametrize(
    "bias",
    [
        {"-1": 5}, {"abc": 5}, {str(10**12): 5}, {"": 5}, {"1.0": 5}, {" 1": 5}, {"٣": 5},
        {"01": 5}, {"9" * 5000: 5}, {"5": "x"}, {"5": None}, {"5": True}, {"5": 101},
        {"5": -100.5}, [], "x",
        {str(i): 1 for i in range(400)},
    ],
)  # fmt: skip
def test_bad_logit_bias(bias: Any) -> None:
    assert refused_chat(logit_bias=bias).param == "logit_bias"


def test_bad_logit_bias_keys_are_reported_together() -> None:
    error = refused_chat(logit_bias={"abc": 1, "5": 1, "-1": 1, str(10**12): 1, "x" * 999: 1})
    assert "'abc', '-1', '1000000000000', 'xxx" in error.message
    assert "int()" not in error.message
    assert len(error.message) < 250


def test_logit_bias_beyond_the_vocabulary_is_known_to_the_engine_only() -> None:
    sampling = frame(logit_bias={"49152": 5, "49162": 5, "3": 1}).sampling
    with pytest.raises(InvalidRequest, match="49152, 49162") as caught:
        sampling.validate(49152)
    assert caught.value.param == "logit_bias"
    frame(logit_bias={"49151": 5}).sampling.validate(49152)


# combinations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 0, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": None}, "stream": False}, "stream_options"),
        (
            {"stream_options": {"include_usage": "x"}, "stream": True},
            "stream_options.include_usage",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [TOOL]},
            "tool_choice",
        ),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"allowed_token_ids": [5], "bad_token_ids": [5]}, "allowed_token_ids"),
    ],
)
def test_fields_that_do_not_go_together(fields: dict[str, Any], param: str) -> None:
    assert refused_chat(**fields).param == param


def test_fields_that_do() -> None:
    assert "tools" not in chat(tools=[], tool_choice="none")
    assert chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}})
    assert "stream_options" not in chat(stream_options=None, stream=False)
    assert refused_completion(best_of=1, n=2).param == "best_of"
    assert refused_completion(stream_options={}).param == "stream_options"


def test_missing_messages_and_prompt() -> None:
    with pytest.raises(InvalidRequest, match="messages is missing") as caught:
        parse_chat(b"{}")
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match="prompt is missing"):
        parse_completion(b'{"prompt": null}')


# what our engine cannot do -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
            "tool_choice",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "text", "text": "x"},
                {"type": "image_url", "image_url": {"url": "data:"}},
            ]}]},
            "messages[0].content[1]",
        ),
    ],
)  # fmt: skip
def test_chat_requests_that_the_engine_refuses(fields: dict[str, Any], param: str) -> None:
    parsed = chat(**fields)
    with pytest.raises(InvalidRequest) as caught:
        generate_frame("chat", "id", parsed)
    assert caught.value.param == param
    assert "not supported" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
    ],
)
def test_completions_that_the_engine_refuses(fields: dict[str, Any], param: str) -> None:
    parsed = completion(**fields)
    with pytest.raises(InvalidRequest) as caught:
        generate_frame("completions", "id", parsed)
    assert caught.value.param == param


def test_tools_reach_the_template_unless_they_may_not_be_called() -> None:
    assert frame(tools=[TOOL]).tools == [TOOL]
    assert frame(tools=[TOOL], tool_choice="none").tools is None


# anything ------------------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
_keys = st.sampled_from(["type", "role", "content", "5"]) | st.text(max_size=3)
_junk = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=6,
)


# Of both surfaces: what only the other one knows may be of any type here.
_names = st.sampled_from(sorted({*CHAT, *COMPLETIONS, *BUDGET_FIELDS}))


@given(st.dictionaries(_names, _junk, max_size=5), st.booleans())
@settings(max_examples=120, deadline=None)
def test_no_chat_body_raises_anything_but_a_refusal(fields: dict[str, Any], whole: bool) -> None:
    body = ({"messages": HI} | fields) if whole else fields
    with contextlib.suppress(InvalidRequest):
        sent = encode(generate_frame("chat", "id", parse_chat(json.dumps(body).encode())))
        assert isinstance(decode_to_engine(sent), Generate)


@given(st.dictionaries(_names, _junk, max_size=5))
@settings(max_examples=120, deadline=None)
def test_no_completion_body_raises_anything_but_a_refusal(fields: dict[str, Any]) -> None:
    body = {"prompt": "x"} | fields
    with contextlib.suppress(InvalidRequest):
        fields = parse_completion(json.dumps(body).encode())
        sent = encode(generate_frame("completions", "id", fields))
        assert isinstance(decode_to_engine(sent), Generate)


def test_what_only_the_other_surface_knows_is_not_read() -> None:
    odd = completion(messages=5, tools=[3], tool_choice={}, prediction=1)
    assert generate_frame("completions", "id", odd).tools is None
    assert generate_frame("chat", "id", chat(prompt={}, echo="yes", best_of="x")).echo is False
