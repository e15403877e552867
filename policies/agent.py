"""The policy `agent`: how far an agent may go on by itself after a message of the user's.

A run is what stands after the last message that the user has typed: calls of tools, their results,
what the model said between them. Its limits follow from these messages alone; nothing is remembered
between requests, so no restart and no second gateway loses count.

Beyond a limit the request is refused, or, with `finish`, the model is made to answer: no tool may
be called any more, and the last message ends with the request to say what is known. In the control
arm there is no such end, but the limits hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.base import Mode, Policy
from policies.blocks import blocks_of
from policies.context import Context
from policies.counting import message_tokens
from policies.decision import Decision, keep, refuse, rewrite
from policies.request import Request
from policies.turns import Message

CODE = "agent_limit_exceeded"

FINISH = (
    "[The limit of tool calls for this task is reached. Answer now from what is known, in the "
    "user's language, and say what is missing.]"
)

VERSION = 1
"""Goes up with every change of the wording, or of what a run is."""


class Run(msgspec.Struct, frozen=True):
    """tool_rounds: messages in which the model called tools, however many at once
    tokens:      of all messages of the run, as `policies.counting` counts them
    """

    tool_rounds: int
    tokens: int


class AgentPolicy(Policy):
    """max_tool_rounds, max_run_tokens: of one run; None for no limit
    finishes: the model is made to answer, in place of a refusal
    """

    name = "agent"

    def __init__(
        self,
        mode: Mode = "active",
        *,
        max_tool_rounds: int | None = None,
        max_run_tokens: int | None = None,
        finishes: bool = False,
    ) -> None:
        self.mode = mode
        self.max_tool_rounds = max_tool_rounds
        self.max_run_tokens = max_run_tokens
        self.finishes = finishes

    def decide(self, request: Request, context: Context) -> Decision:
        run = run_of(request.messages)
        may_call = bool(request.tools) and request.tool_choice != "none"
        if not (self.finishes and may_call and self._is_used_up(run)):
            return self._limited(request, run)
        messages = [*request.messages[:-1], _ending(request.messages[-1])]
        return rewrite(
            replace(request, messages=messages, tool_choice="none"),
            f"made to answer: {_told(run)}",
        )

    def control(self, request: Request, context: Context) -> Decision:
        return self._limited(request, run_of(request.messages))

    def _is_used_up(self, run: Run) -> bool:
        """Would another round be beyond a limit?"""
        rounds, tokens = self.max_tool_rounds, self.max_run_tokens
        used_up = rounds is not None and run.tool_rounds >= rounds
        return used_up or (tokens is not None and run.tokens > tokens)

    def _limited(self, request: Request, run: Run) -> Decision:
        if request.tool_choice == "none":
            return keep("no tool may be called")
        rounds, tokens = self.max_tool_rounds, self.max_run_tokens
        if rounds is not None and run.tool_rounds > rounds:
            what = f"{run.tool_rounds} rounds of tool calls; this route allows {rounds}"
            return self._beyond(what, "agent.max_tool_rounds")
        if tokens is not None and run.tokens > tokens:
            what = f"{run.tokens} tokens by estimate; this route allows {tokens}"
            return self._beyond(what, "agent.max_run_tokens")
        return keep(_told(run))

    def _beyond(self, what: str, setting: str) -> Decision:
        reason = (
            f"Since the user's last message there are {what} (its setting {setting}). Ask for an "
            f"answer with tool_choice none, or the user how to go on."
        )
        return refuse(reason, "messages", CODE)


def run_of(messages: Sequence[Message]) -> Run:
    """What stands after the last message that the user has typed; empty where that is the last."""
    typed = (i for i in range(len(messages) - 1, -1, -1) if is_typed(messages[i]))
    run = messages[next(typed, -1) + 1 :]
    rounds = sum(bool(m.get("tool_calls") or m.get("function_call")) for m in run)
    return Run(rounds, sum(map(message_tokens, run)))


def is_typed(message: Message) -> bool:
    """Is it from the user, and more than what a program has put between tags or into fences?

    Agents whose model knows no results of tools send them so.
    """
    if message.get("role") != "user":
        return False
    content = message.get("content")
    if isinstance(content, str):
        return any(not block.pasted for block in blocks_of(content)) or not content.strip()
    return any(map(_is_typed_part, content or ()))


def _is_typed_part(part: Any) -> bool:
    text = part.get("text") if isinstance(part, dict) else None
    return not isinstance(text, str) or any(not block.pasted for block in blocks_of(text))


def _ending(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") == "assistant":
        # The model is to go on with its own words.
        return message
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": FINISH}]}
    return {**message, "content": f"{content}\n\n{FINISH}" if content else FINISH}


def _told(run: Run) -> str:
    return f"{run.tool_rounds} rounds of tool calls, {run.tokens} tokens since the user's message"
