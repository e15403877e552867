"""What a router goes by: a conversation up to the message of the user that decides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from policies.counting import message_tokens, text_tokens
from policies.features import abridged
from policies.forms import offers_tools
from policies.request import Request
from policies.turns import Message, text_of

Per = Literal["conversation", "turn"]
"""Whose message decides: the user's first one, or the user's latest."""

_IMAGE_PARTS = ("image_url", "input_image", "image")


class Prompt:
    """Everything up to the deciding message. What follows it, answers and calls of tools and their
    results, changes nothing, so that all steps of a turn are the same prompt."""

    def __init__(self, request: Request, per: Per) -> None:
        self._request = request
        self._messages = _up_to_deciding(request.messages, per)

    @cached_property
    def text(self) -> str:
        """Of the deciding message, or of the first prompt, as much as is looked at; empty where
        there is none."""
        if self._request.prompts:
            first = self._request.prompts[0]
            return abridged(first) if isinstance(first, str) else ""
        last = self._messages[-1] if self._messages else {}
        return abridged(text_of(last)) if last.get("role") == "user" else ""

    @cached_property
    def tokens(self) -> int:
        """Of the messages, or of the longest prompt, as `policies.counting` counts them."""
        prompts = self._request.prompts
        longest = max(
            (text_tokens(p) if isinstance(p, str) else len(p) for p in prompts), default=0
        )
        return longest + sum(map(message_tokens, self._messages))

    @property
    def has_tools(self) -> bool:
        """Are tools offered, or were any called? In the last step of a loop some clients offer
        none."""
        return offers_tools(self._request) or any(map(_is_of_tools, self._request.messages))

    @property
    def has_images(self) -> bool:
        return any(map(_has_image, self._messages))


def _up_to_deciding(messages: Sequence[Message], per: Per) -> Sequence[Message]:
    """All of them where the user has said nothing."""
    places = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    if not places:
        return messages
    return messages[: (places[0] if per == "conversation" else places[-1]) + 1]


def _is_of_tools(message: Message) -> bool:
    called = message.get("tool_calls") or message.get("function_call")
    return bool(called) or message.get("role") == "tool"


def _has_image(message: Message) -> bool:
    content = message.get("content")
    return any(map(is_image, content if isinstance(content, list) else ()))


def is_image(part: Any) -> bool:
    """Is this part of a message an image, by any of the names that clients have for one?"""
    return isinstance(part, dict) and part.get("type") in _IMAGE_PARTS
