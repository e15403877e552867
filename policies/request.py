"""The canonical request: what every face makes of its body, and what policies and backends read.

`parameters` holds every other field of the body, known or not, already checked for type; it
is forwarded as it came. A field that means the same under several names (the output budget)
exists here once, so that no policy can miss one of its names.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Surface = Literal["chat", "completions"]

BUDGET_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Every name that a client may give the output budget."""


class Request(msgspec.Struct, frozen=True):
    """One request for text, from whichever face it came.

    surface:    which family of backend endpoint answers it
    model:      the name the client asked for: a route, an alias, or a model
    messages:   chat turns in OpenAI form; empty on the completions surface
    prompts:    completions only: one or more prompts, text or token ids
    max_tokens: output budget per choice, the smallest that any of BUDGET_FIELDS asked for
    soft_max_tokens: per choice; from this many on an answer ends at the first clean place
    reasoning_tokens: per choice; room for what a model thinks, beside max_tokens for the answer.
                None: both share max_tokens
    clamp:      the client did not ask for max_tokens, a policy did: less will do where the prompt
                leaves no more room
    n:          choices per prompt
    tools, tool_choice: as sent; None when absent
    schema:     a route's JSON Schema that each answer conforms to; a client's own stays in
                `parameters`, as `response_format`
    stream:     the client wants events as they happen
    include_usage: the client asked for a usage chunk (stream_options)
    parameters: every other field of the body, nulls dropped
    """

    surface: Surface
    model: str
    messages: list[dict[str, Any]] = []
    prompts: list[str | list[int]] = []
    max_tokens: int | None = None
    soft_max_tokens: int | None = None
    reasoning_tokens: int | None = None
    clamp: bool = False
    n: int = 1
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    schema: dict[str, Any] | None = None
    stream: bool = False
    include_usage: bool = False
    parameters: dict[str, Any] = {}

    @property
    def choices(self) -> int:
        """How many outputs this request makes: n for each prompt."""
        return self.n * max(1, len(self.prompts))

    @property
    def most_tokens(self) -> int | None:
        """What one choice may come to, thought and answer together; None without a limit."""
        if self.max_tokens is None:
            return None
        return self.max_tokens + (self.reasoning_tokens or 0)
