"""Every OpenAI and vLLM request field that we know, with the check of its type.

Ranges of sampling parameters are `Sampling.validate`'s; here stand types, and the ranges of
what is not sampling. A field absent from a surface's table is unknown there: kept and forwarded,
and, as its type is anybody's guess, read by nobody.
"""

from __future__ import annotations

import re
from typing import Any

from engine.protocol.errors import InvalidRequest
from engine.protocol.fields import (
    MAX_INT,
    Check,
    anything_object,
    boolean,
    filled_string,
    integer,
    list_of,
    map_of,
    number,
    object_of,
    one_of,
    refuse,
    string,
)
from engine.protocol.messages import messages, tool_choice, tools
from engine.protocol.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def _logit_bias(value: Any, path: str) -> None:
    anything_object(value, path)
    bad = [key for key in value if not (_TOKEN_ID.fullmatch(key) and int(key) <= MAX_INT)]
    if bad:
        shown = ", ".join(repr(key[:24]) for key in bad[:8]) + (", …" if len(bad) > 8 else "")
        raise InvalidRequest(
            f"logit_bias must map token ids to biases; these keys are no token ids: {shown}.",
            param=path,
        )
    wrong = [key for key, bias in value.items() if type(bias) not in (int, float)]
    if wrong:
        shown = ", ".join(wrong[:8]) + (", …" if len(wrong) > 8 else "")
        raise InvalidRequest(
            f"logit_bias must map token ids to numbers; it does not for: {shown}.", param=path
        )


def _stop(value: Any, path: str) -> None:
    if type(value) is not str:
        if type(value) is not list:
            raise refuse(path, "a string or an array of strings", value)
        list_of(string)(value, path)


_token_ids = list_of(integer(0), at_least=1)


def _prompt(value: Any, path: str) -> None:
    if type(value) is str:
        return
    if type(value) is not list or not value:
        raise refuse(path, "a string, an array of strings, or arrays of token ids", value)
    kinds: dict[type, Check] = {str: string, int: integer(0), list: _token_ids}
    check_item = kinds.get(type(value[0]))
    if check_item is None:
        raise refuse(f"{path}[0]", "a string, a token id or an array of token ids", value[0])
    list_of(check_item)(value, path)


def _text_or_text_parts(value: Any, path: str) -> None:
    if type(value) is not str:
        list_of(object_of({"type": one_of("text"), "text": string}))(value, path)


_response_format = object_of({"type": filled_string}, {"json_schema": anything_object})


def _format(value: Any, path: str) -> None:
    _response_format(value, path)
    if value["type"] == "json_schema":
        object_of({"json_schema": object_of({"name": filled_string})})(value, path)


_COMMON: dict[str, Check] = {
    "model": filled_string,
    "stream": boolean,
    "stream_options": object_of({}, {"include_usage": boolean, "include_obfuscation": boolean}),
    "n": integer(1, MAX_CHOICES),
    "temperature": number,
    "top_p": number,
    "presence_penalty": number,
    "frequency_penalty": number,
    "logit_bias": _logit_bias,
    "stop": _stop,
    "seed": integer(-(2**63), 2**63 - 1),
    "user": string,
    "metadata": map_of(string),
    "service_tier": string,
    "store": boolean,
    # vLLM's
    "top_k": integer(-MAX_INT),
    "min_p": number,
    "repetition_penalty": number,
    "stop_token_ids": list_of(integer(0)),
    "min_tokens": integer(0),
    "ignore_eos": boolean,
    "allowed_token_ids": list_of(integer(0)),
    "bad_token_ids": list_of(integer(0)),
    "include_stop_str_in_output": boolean,
    "cache_salt": filled_string,
    # ours
    "soft_max_tokens": integer(1),
    "response_format": _format,
    "structured_outputs": anything_object,
    "modalities": list_of(string),
}

CHAT: dict[str, Check] = _COMMON | {
    "messages": messages,
    "max_tokens": integer(1),
    "max_completion_tokens": integer(1),
    "max_output_tokens": integer(1),
    "logprobs": boolean,
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "tools": tools,
    "tool_choice": tool_choice,
    "parallel_tool_calls": boolean,
    "prediction": object_of({"type": one_of("content"), "content": _text_or_text_parts}),
    "audio": anything_object,
    "reasoning_effort": string,
    "verbosity": string,
    "safety_identifier": string,
    "prompt_cache_key": string,
    "moderation": anything_object,
}

COMPLETIONS: dict[str, Check] = _COMMON | {
    "prompt": _prompt,
    "max_tokens": integer(0),
    "max_completion_tokens": integer(0),
    "max_output_tokens": integer(0),
    "logprobs": integer(0, MAX_TOP_LOGPROBS),
    "echo": boolean,
    "suffix": string,
    "best_of": integer(1, MAX_CHOICES),
}
