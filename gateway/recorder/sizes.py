"""A request as sizes and hashes, without a word of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gateway.recorder.line import Message, Part, Sizes
from policies.agent import is_typed
from policies.counting import json_tokens, message_tokens, text_tokens
from policies.request import Request
from policies.turns import is_pinned

_HASH_BYTES = 8
_CHOICES = ("none", "auto", "required")


class Measuring:
    """salt: the tenant's, which roots every hash"""

    def __init__(self, salt: str) -> None:
        self._key = hashlib.blake2b(salt.encode(), person=b"fewer-recording").digest()

    def sizes(self, request: Request) -> Sizes:
        choice = request.tool_choice
        return Sizes(
            messages=[self._message(each) for each in request.messages],
            prompts=[self._prompt(each) for each in request.prompts],
            tools=self._part(request.tools) if request.tools else None,
            schema=self._part(request.schema) if request.schema else None,
            max_tokens=request.max_tokens,
            soft_max_tokens=request.soft_max_tokens,
            n=request.n,
            tool_choice=choice if choice in (*_CHOICES, None) else "named",
            stream=request.stream,
            include_usage=request.include_usage,
            form=_form(request),
            parameters={name: self._value(value) for name, value in request.parameters.items()},
        )

    def _message(self, message: dict[str, Any]) -> Message:
        calls = message.get("tool_calls")
        ids = [call.get("id") for call in calls if isinstance(call, dict)] if calls else []
        result_of = message.get("tool_call_id")
        return Message(
            role=str(message.get("role"))[:16],
            tokens=message_tokens(message),
            hash=self._hash(message),
            calls=[self._hash(id) for id in ids],
            answers=self._hash(result_of) if result_of is not None else "",
            pinned=is_pinned(message),
            typed=is_typed(message),
        )

    def _prompt(self, prompt: str | list[int]) -> Part:
        tokens = text_tokens(prompt) if isinstance(prompt, str) else len(prompt)
        return Part(tokens, self._hash(prompt))

    def _value(self, value: Any) -> bool | float | int | Part:
        return value if isinstance(value, bool | int | float) else self._part(value)

    def _part(self, value: Any) -> Part:
        return Part(json_tokens(value), self._hash(value))

    def _hash(self, value: Any) -> str:
        # As ASCII: a lone surrogate from a client's JSON has no UTF-8.
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode("ascii"), digest_size=_HASH_BYTES, key=self._key)
        return digest.hexdigest()


def allowed_tokens(request: Request) -> int | None:
    """Of output, all choices together; None for no limit."""
    most = request.most_tokens
    return None if most is None else most * request.choices


def _form(request: Request) -> str | None:
    form = request.parameters.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else None
    return kind if isinstance(kind, str) and len(kind) <= 16 else None
