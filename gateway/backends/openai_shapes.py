"""What a chunk of an OpenAI-compatible stream may hold: only the fields that we read.

Reference: OpenAI's `chat.completion.chunk` and streamed `text_completion`, with the fields that
vLLM, SGLang, TGI, llama.cpp, Ollama and DeepSeek add (`reasoning_content`, `reasoning`). Fields
that are missing or null are None, and unknown ones are skipped.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from engine.protocol.frames import TokenLogprob, Usage

UNKNOWN_TOKEN_ID = -1
UNKNOWN_LOGPROB = -9999.0
"""OpenAI's own stand-in for a logprob that cannot be told (null and -inf are none in JSON)."""

MOST_TOKENS = 10**12
"""Of one answer; an upstream may say anything, and whoever sums it up has 64 bits."""


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Alternative(msgspec.Struct):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[Alternative] | None = None


class Logprobs(msgspec.Struct):
    """Both shapes: chat's `content` and `refusal`, completions' parallel lists."""

    content: list[Alternative] | None = None
    refusal: list[Alternative] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    seed: Any = None
    landed: Any = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class UpstreamUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Chunk(msgspec.Struct):
    """choices: None where they are null, as some servers write an empty list; unset in what is no
    chunk at all"""

    choices: list[Choice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: UpstreamUsage | None = None
    error: Any = None


def usage_of(usage: UpstreamUsage) -> Usage:
    """The usage in our terms; what the upstream leaves out counts as 0."""
    prompt = usage.prompt_tokens_details or PromptDetails()
    completion = usage.completion_tokens_details or CompletionDetails()
    return Usage(
        prompt_tokens=possible_tokens(usage.prompt_tokens),
        completion_tokens=possible_tokens(usage.completion_tokens),
        cached_tokens=possible_tokens(prompt.cached_tokens or 0),
        reasoning_tokens=possible_tokens(completion.reasoning_tokens or 0),
        accepted_prediction_tokens=possible_tokens(completion.accepted_prediction_tokens or 0),
        rejected_prediction_tokens=possible_tokens(completion.rejected_prediction_tokens or 0),
    )


def possible_tokens(told: int) -> int:
    """The nearest number of tokens that an answer can have."""
    return min(max(told, 0), MOST_TOKENS)


def logprobs_of(
    logprobs: Logprobs | None,
) -> tuple[list[TokenLogprob] | None, list[TokenLogprob] | None]:
    """The tokens of content, in either shape, and those of a refusal; None where there are none."""
    if logprobs is None:
        return None, None
    if logprobs.tokens:
        return _completion_logprobs(logprobs), None
    return _chat_logprobs(logprobs.content), _chat_logprobs(logprobs.refusal)


def _chat_logprobs(tokens: list[Alternative] | None) -> list[TokenLogprob] | None:
    return [_logprob(token) for token in tokens] if tokens else None


def _logprob(token: Alternative) -> TokenLogprob:
    return TokenLogprob(
        token.token,
        UNKNOWN_TOKEN_ID,
        _finite(token.logprob),
        token.bytes or [],
        [_logprob(alternative) for alternative in token.top_logprobs or ()],
    )


def _completion_logprobs(logprobs: Logprobs) -> list[TokenLogprob]:
    tokens = logprobs.tokens or []
    values = logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or []
    return [
        _token_logprob(
            token,
            values[place] if place < len(values) else None,
            [
                _token_logprob(other, value)
                for other, value in ((tops[place] if place < len(tops) else None) or {}).items()
            ],
        )
        for place, token in enumerate(tokens)
    ]


def _token_logprob(
    token: str, value: float | None, top: list[TokenLogprob] | None = None
) -> TokenLogprob:
    return TokenLogprob(token, UNKNOWN_TOKEN_ID, _finite(value), list(token.encode()), top or [])


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and math.isfinite(logprob) else UNKNOWN_LOGPROB
