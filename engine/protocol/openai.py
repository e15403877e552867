"""OpenAI request bodies in, checked fields and engine `Generate` frames out.

The engine's own server and the gateway's faces both read bodies here, so that a request means
the same at both doors. Null means not set; unknown fields are kept, for whoever is upstream; a
known field of a wrong type or out of range is an `InvalidRequest` whose `param` names it.
"""

from __future__ import annotations

from typing import Any, Literal

from engine.protocol.body import decode_object
from engine.protocol.errors import InvalidRequest
from engine.protocol.fields import MAX_INT, check_known
from engine.protocol.frames import Generate
from engine.protocol.grammar import grammar_of
from engine.protocol.messages import check_tool_choice, drop_nulls
from engine.protocol.parameters import CHAT, COMPLETIONS
from engine.protocol.sampling import Sampling
from engine.protocol.support import refuse_unsupported

Surface = Literal["chat", "completions"]

BUDGET_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default budget on the completions surface; chat has none."""


def parse_chat(body: bytes) -> dict[str, Any]:
    """The fields of a `/v1/chat/completions` body, checked."""
    fields = drop_nulls(decode_object(body))
    _require(fields, "messages")
    check_known(fields, CHAT)
    if not fields.get("tools", True):
        del fields["tools"]
    check_tool_choice(fields)
    if "top_logprobs" in fields and not fields.get("logprobs"):
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    _check_together("chat", fields)
    return fields


def parse_completion(body: bytes) -> dict[str, Any]:
    """The fields of a `/v1/completions` body, checked."""
    fields = drop_nulls(decode_object(body))
    _require(fields, "prompt")
    check_known(fields, COMPLETIONS)
    if fields.get("best_of", MAX_INT) < fields.get("n", 1):
        raise InvalidRequest("best_of must be at least n.", param="best_of")
    _check_together("completions", fields)
    return fields


def output_budget(fields: dict[str, Any]) -> int | None:
    """Tokens per choice that the client asked for: the smallest under any of its names."""
    return min((fields[name] for name in BUDGET_FIELDS if name in fields), default=None)


def sampling_of(surface: Surface, fields: dict[str, Any]) -> Sampling:
    """The sampling parameters of checked fields, in the engine's terms; not yet validated."""
    if surface == "chat":
        logprobs = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    else:
        logprobs = fields.get("logprobs")
    stop = fields.get("stop", [])
    return Sampling(
        stop=[stop] if isinstance(stop, str) else stop,
        include_stop=fields.get("include_stop_str_in_output", False),
        logprobs=logprobs,
        logit_bias={int(key): bias for key, bias in fields.get("logit_bias", {}).items()},
        **{name: fields[name] for name in _SAMPLING_FIELDS if name in fields},
    )


def generate_frame(
    surface: Surface,
    id: str,
    fields: dict[str, Any],
    *,
    tenant: str = "",
    salt: str = "",
    weight: float = 1.0,
    priority: int = 0,
    timeout_ms: int | None = None,
    expected_tokens: int | None = None,
    traceparent: str | None = None,
) -> Generate:
    """Checked fields as a frame for our engine.

    Raises `InvalidRequest` for what the engine cannot do, rather than leaving it out silently.
    """
    refuse_unsupported(surface, fields)
    asked = _asked_in_chat(fields) if surface == "chat" else _asked_in_completions(fields)
    return Generate(
        id=id,
        **asked,
        sampling=sampling_of(surface, fields),
        n=fields.get("n", 1),
        grammar=grammar_of(fields),
        soft_max_tokens=fields.get("soft_max_tokens"),
        tenant=tenant,
        salt=salt,
        weight=weight,
        priority=priority,
        timeout_ms=timeout_ms,
        expected_tokens=expected_tokens,
        traceparent=traceparent,
    )


def _asked_in_chat(fields: dict[str, Any]) -> dict[str, Any]:
    """The parts of a frame that only chat has; a completion's, such as echo, mean nothing here."""
    offered = fields.get("tools") if fields.get("tool_choice") != "none" else None
    return {
        "messages": fields["messages"],
        "tools": offered,
        "prediction": _predicted(fields.get("prediction")),
        "max_tokens": output_budget(fields),
    }


def _predicted(prediction: dict[str, Any] | None) -> str | None:
    """The text of a checked `prediction`, whether it came as a text or in parts."""
    if prediction is None:
        return None
    content = prediction["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _asked_in_completions(fields: dict[str, Any]) -> dict[str, Any]:
    budget = output_budget(fields)
    return {
        "prompts": prompt_list(fields["prompt"]),
        "echo": fields.get("echo", False),
        "max_tokens": DEFAULT_COMPLETION_TOKENS if budget is None else budget,
        "clamp": budget is None,
    }


def prompt_list(prompt: Any) -> list[str | list[int]]:
    """A checked `prompt` of any of its four forms, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def _require(fields: dict[str, Any], name: str) -> None:
    if name not in fields:
        raise InvalidRequest(f"{name} is missing.", param=name)


def _check_together(surface: Surface, fields: dict[str, Any]) -> None:
    """What needs more than one field: sampling ranges, stream options, the smallest output."""
    sampling = sampling_of(surface, fields)
    sampling.validate()
    budget = output_budget(fields)
    if budget is not None and sampling.min_tokens > budget:
        raise InvalidRequest(
            f"min_tokens must not be above the output budget of {budget}, "
            f"not {sampling.min_tokens}.",
            param="min_tokens",
        )
    if "stream_options" in fields and not fields.get("stream"):
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")


_SAMPLING_FIELDS = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "allowed_token_ids", "bad_token_ids", "stop_token_ids", "min_tokens",
    "ignore_eos", "seed",
)  # fmt: skip
