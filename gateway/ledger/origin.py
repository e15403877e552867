"""Where the tokens of a prompt come from, by the roles of its messages.

Shares are by the gateway's estimate; the sum is what the backend has counted. What the model's
template adds belongs to all origins in proportion.
"""

from __future__ import annotations

from typing import Any

from gateway.estimate import input_tokens, json_tokens, message_tokens
from gateway.ledger.entry import Origins
from policies.request import Request

_ORIGINS = Origins.__struct_fields__


def origins_of(request: Request, prompt_tokens: int) -> Origins:
    """`prompt_tokens`: of the whole prompt, as counted."""
    estimate = dict.fromkeys(_ORIGINS, 0)
    estimate["tools"] = json_tokens(request.tools) if request.tools else 0
    if documents := request.parameters.get("documents"):
        estimate["retrieved"] = json_tokens(documents)
    estimate["user"] = sum(map(input_tokens, request.prompts))
    last = _last_of_user(request.messages)
    for place, message in enumerate(request.messages):
        _add_message(estimate, message, is_last=place == last)
    return Origins(**_scaled(estimate, prompt_tokens))


def _add_message(estimate: dict[str, int], message: dict[str, Any], *, is_last: bool) -> None:
    tokens, files = message_tokens(message), _file_tokens(message)
    estimate["retrieved"] += files
    estimate[_origin(message, is_last)] += tokens - files


def _origin(message: dict[str, Any], is_last: bool) -> str:
    role = message.get("role")
    if role in ("system", "developer"):
        return "system"
    if role in ("tool", "function") or message.get("tool_calls"):
        return "tools"
    return "user" if is_last else "history"


def _file_tokens(message: dict[str, Any]) -> int:
    content = message.get("content")
    if not isinstance(content, list):
        return 0
    files = [part for part in content if part.get("type") == "file"]
    return message_tokens({"content": files}) if files else 0


def _last_of_user(messages: list[dict[str, Any]]) -> int:
    places = range(len(messages) - 1, -1, -1)
    return next((i for i in places if messages[i].get("role") == "user"), -1)


def _scaled(estimate: dict[str, int], total: int) -> dict[str, int]:
    """In the same proportions, to integers that add up to `total` (largest remainder)."""
    whole = sum(estimate.values())
    if not whole:
        return estimate | {"user": total}
    shares = {origin: tokens * total / whole for origin, tokens in estimate.items()}
    scaled = {origin: int(share) for origin, share in shares.items()}
    missing = total - sum(scaled.values())
    by_remainder = sorted(_ORIGINS, key=lambda origin: scaled[origin] - shares[origin])
    for origin in by_remainder[:missing]:
        scaled[origin] += 1
    return scaled
