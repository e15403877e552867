"""The parts that streamed and whole answers share: usage, logprobs, tool calls."""

from __future__ import annotations

from typing import Any

from engine.protocol.frames import TokenLogprob, ToolDelta, Usage

LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON lacks; vLLM's number."""


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": _completion_details(usage),
    }


def _completion_details(usage: Usage) -> dict[str, int]:
    """A prediction is told of where there was one that counted."""
    details = {"reasoning_tokens": usage.reasoning_tokens}
    accepted, rejected = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
    if accepted or rejected:
        details |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    return details


def chat_logprobs(
    content: list[TokenLogprob], refusal: list[TokenLogprob]
) -> dict[str, Any] | None:
    """A refusal's tokens stand apart from the content's; None where there are neither."""
    if not content and not refusal:
        return None
    return {
        "content": [_chat_token(token) for token in content] or None,
        "refusal": [_chat_token(token) for token in refusal] or None,
    }


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    return _bare(token) | {"top_logprobs": [_bare(other) for other in token.top]}


def _bare(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": token.bytes}


def _finite(logprob: float) -> float:
    # NaN compares false, so it becomes the floor as well.
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB


def completion_logprobs(tokens: list[TokenLogprob], offset_chars: int) -> dict[str, Any]:
    """The legacy shape. `offset_chars`: where the first token starts in the choice's text."""
    offsets = []
    for token in tokens:
        offsets.append(offset_chars)
        offset_chars += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {other.token: _finite(other.logprob) for other in (*token.top, token)}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def tool_delta(tool: ToolDelta) -> dict[str, Any]:
    """A first piece names the call; later pieces lack those keys, as null would reset them."""
    if tool.id is None:
        return {"index": tool.index, "function": {"arguments": tool.arguments}}
    return {
        "index": tool.index,
        "id": tool.id,
        "type": "function",
        "function": {"name": tool.name or "", "arguments": tool.arguments},
    }
