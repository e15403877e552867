"""The body of `POST /v1/responses`: checked, and as the fields of the chat that it means.

What chat has too keeps its name. A field that is known to neither is ignored: clients send their
own (`client_metadata`), and no upstream of ours reads this format. Whatever is known and cannot be
honoured is a 400 that names it.
"""

from __future__ import annotations

from typing import Any

from engine.protocol.body import decode_object
from engine.protocol.errors import InvalidRequest
from engine.protocol.fields import (
    Check,
    anything_object,
    boolean,
    check_known,
    filled_string,
    integer,
    list_of,
    object_of,
    one_of,
    refuse,
    string,
)
from engine.protocol.messages import check_tool_choice, drop_nulls
from engine.protocol.openai import sampling_of
from engine.protocol.parameters import CHAT
from engine.protocol.sampling import MAX_TOP_LOGPROBS
from gateway.responses.items import check_input

_AS_IN_CHAT = (
    "model", "stream", "temperature", "top_p", "user", "metadata", "store", "service_tier",
    "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
)  # fmt: skip
_OF_VLLM = (
    "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop",
    "stop_token_ids", "min_tokens", "ignore_eos", "logit_bias", "soft_max_tokens", "prediction",
)  # fmt: skip
"""Chat fields that this API lacks, and that clients add."""

_FORWARDED = (
    "model", "stream", "temperature", "top_p", "user", "service_tier", "safety_identifier",
    "prompt_cache_key", "max_output_tokens", *_OF_VLLM,
)  # fmt: skip
"""Not `store` and `metadata`: they are about what is kept here, and nothing is to be kept
upstream."""

_LOGPROBS = "message.output_text.logprobs"


def _tool(value: Any, path: str) -> None:
    anything_object(value, path)
    kind = value.get("type")
    filled_string(kind, f"{path}.type")
    if kind != "function":
        raise InvalidRequest(
            f"{path}: tools of type {kind[:32]!r} are not supported here; use function.",
            param=f"{path}.type",
        )
    _function(value, path)


_function = object_of(
    {"name": filled_string},
    {"description": string, "parameters": anything_object, "strict": boolean},
)


def _tool_choice(value: Any, path: str) -> None:
    if type(value) is str:
        one_of("none", "auto", "required")(value, path)
    elif type(value) is dict:
        one_of("function")(value.get("type"), f"{path}.type")
        filled_string(value.get("name"), f"{path}.name")
    else:
        raise refuse(path, "none, auto, required, or an object that names a function", value)


def _format(value: Any, path: str) -> None:
    anything_object(value, path)
    one_of("text", "json_object", "json_schema")(value.get("type"), f"{path}.type")
    if value["type"] == "json_schema":
        wanted: dict[str, Check] = {"name": filled_string, "schema": anything_object}
        object_of(wanted, {"strict": boolean, "description": string})(value, path)


RESPONSES: dict[str, Check] = {
    **{name: CHAT[name] for name in (*_AS_IN_CHAT, *_OF_VLLM)},
    "input": check_input,
    "instructions": string,
    "max_output_tokens": integer(1),
    "previous_response_id": filled_string,
    "text": object_of({}, {"format": _format, "verbosity": string}),
    "tools": list_of(_tool),
    "tool_choice": _tool_choice,
    "reasoning": object_of({}, {"effort": string, "summary": string}),
    "include": list_of(string),
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "stream_options": object_of({}, {"include_obfuscation": boolean}),
    "truncation": one_of("auto", "disabled"),
    "background": boolean,
    "max_tool_calls": integer(1),
}

_UNSUPPORTED: dict[str, str] = {
    "background": "answers are made while the client waits",
    "conversation": "use previous_response_id",
    "prompt": "there are no stored prompts",
}


def parse(body: bytes) -> dict[str, Any]:
    """The fields of a body, checked. Raises `InvalidRequest`, which names the one at fault."""
    return checked(decode_object(body))


def checked(fields: dict[str, Any]) -> dict[str, Any]:
    """As `parse`, of what was decoded."""
    fields = drop_nulls(fields)
    if "input" not in fields:
        raise InvalidRequest("input is missing.", param="input")
    check_known(fields, RESPONSES)
    for name, reason in _UNSUPPORTED.items():
        if fields.get(name):
            raise InvalidRequest(f"{name} is not supported here: {reason}.", param=name)
    chat = chat_fields(fields, [])
    sampling_of("chat", chat).validate()
    check_tool_choice(chat)
    return fields


def chat_fields(fields: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The chat that checked `fields` ask for, after `messages`."""
    chat = {name: fields[name] for name in _FORWARDED if name in fields}
    instructions = fields.get("instructions")
    opening = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*opening, *messages]
    text, reasoning = fields.get("text", {}), fields.get("reasoning", {})
    optional = {
        "response_format": _response_format(text.get("format")),
        "verbosity": text.get("verbosity"),
        "reasoning_effort": reasoning.get("effort"),
        **_tools(fields),
        **_logprobs(fields),
    }
    return chat | {name: value for name, value in optional.items() if value is not None}


def _tools(fields: dict[str, Any]) -> dict[str, Any]:
    """Without tools, a choice of `auto` says nothing, and other servers refuse it."""
    choice = fields.get("tool_choice")
    if not fields.get("tools"):
        return {"tool_choice": None if choice in ("auto", "none") else _chat_choice(choice)}
    return {
        "tools": [_chat_tool(tool) for tool in fields["tools"]],
        "tool_choice": _chat_choice(choice),
        "parallel_tool_calls": fields.get("parallel_tool_calls"),
    }


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    said = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in said if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _chat_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    return {"type": "function", "function": {"name": choice["name"]}}


def _response_format(format: dict[str, Any] | None) -> dict[str, Any] | None:
    if format is None or format["type"] == "text":
        return None
    if format["type"] == "json_object":
        return {"type": "json_object"}
    said = ("name", "description", "schema", "strict")
    schema = {name: format[name] for name in said if format.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}


def _logprobs(fields: dict[str, Any]) -> dict[str, Any]:
    wanted = fields.get("top_logprobs", 0)
    if not wanted and _LOGPROBS not in fields.get("include", ()):
        return {}
    return {"logprobs": True, "top_logprobs": wanted}
