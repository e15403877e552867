"""What OpenAI clients may ask for and our engine cannot do yet: refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from engine.protocol.errors import InvalidRequest

_UNSUPPORTED_FIELDS: dict[str, str] = {
    "audio": "this model writes text only",
    "functions": "use tools in place of functions",
    "function_call": "use tool_choice in place of function_call",
    "web_search_options": "this server searches nothing",
    "suffix": "this model cannot fill in the middle",
    "prompt_logprobs": "only produced tokens have logprobs",
    "use_beam_search": "use n and a temperature",
}


def refuse_unsupported(surface: str, fields: dict[str, Any]) -> None:
    """Raise `InvalidRequest` naming the first field that our engine cannot honour."""
    for name, reason in _UNSUPPORTED_FIELDS.items():
        if fields.get(name):
            raise _unsupported(name, name, reason)
    if any(kind != "text" for kind in fields.get("modalities", ())):
        raise _unsupported("modalities", "modalities", "this model writes text only")
    if surface == "chat":
        _refuse_in_chat(fields)
    else:
        _refuse_in_completions(fields)


def _unsupported(what: str, param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{what} is not supported here: {reason}.", param=param)


def _refuse_in_chat(fields: dict[str, Any]) -> None:
    if fields.get("tool_choice", "auto") not in ("auto", "none"):
        raise _unsupported("tool_choice", "tool_choice", "a tool call cannot be forced yet")
    for index, tool in enumerate(fields.get("tools", ())):
        if tool["type"] != "function":
            raise _unsupported(
                f"a tool of type {tool['type'][:32]!r}", f"tools[{index}].type", "use function"
            )
    for index, message in enumerate(fields["messages"]):
        if not isinstance(message["content"] if "content" in message else "", list):
            continue
        for place, part in enumerate(message["content"]):
            if part["type"] not in ("text", "refusal"):
                raise _unsupported(
                    f"a part of type {part['type'][:32]!r}",
                    f"messages[{index}].content[{place}]",
                    "this model reads text only",
                )


def _refuse_in_completions(fields: dict[str, Any]) -> None:
    if fields.get("best_of", fields.get("n", 1)) != fields.get("n", 1):
        raise _unsupported("best_of", "best_of", "it must equal n, or be left out")
    if fields.get("max_tokens") == 0 or fields.get("max_completion_tokens") == 0:
        raise _unsupported("max_tokens 0", "max_tokens", "ask for at least one token")
    if fields.get("echo") and "logprobs" in fields:
        raise _unsupported("echo with logprobs", "logprobs", "only produced tokens have logprobs")
