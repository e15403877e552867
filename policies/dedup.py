"""The policy `dedup`: what stands in the prompt already is not sent again but referred to.

A left fold over the messages: a block is compared with what stands before it, and becomes a
reference on first arrival or never, so that what was sent once never changes. It is asked after
`history`: the twin stands after the cut, where the model can read it.

Replaced are blocks (`policies.blocks`) of tools' results and of what users paste. Never replaced:
system and developer messages, pins, the model's own answers, and what a user has typed: the first
and the last paragraph outside fences and tags, and a message that is sent again whole. What a
user's message may lose it loses when it arrives, so that being the last or not makes no
difference. A result that is JSON stays JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from policies.base import Mode, Policy
from policies.blocks import Block, blocks_of
from policies.context import Context
from policies.counting import json_tokens, message_tokens, text_tokens
from policies.decision import Decision, PromptTokens, keep, rewrite
from policies.request import Request
from policies.turns import Message, is_pinned
from policies.twins import Library, Twin

MOST_CHARACTERS = 400_000
"""Of one prompt; what comes after that many is taken as it is, so that no body keeps us long."""

WORTH = 0.5
"""A reference, with its changes, may count this share of what it stands for at most."""


class Fold:
    """The messages so far: what they were made into, and what a later one may refer to."""

    def __init__(self, min_tokens: int) -> None:
        self._min_tokens = min_tokens
        self._library = Library()
        self._said: set[str] = set()
        self._left = MOST_CHARACTERS
        self.replaced = 0

    def add(self, message: Message) -> Message:
        """The next message, or what is sent in its place."""
        content = message.get("content")
        if isinstance(content, str):
            content = self._content(message, content)
        elif isinstance(content, list):
            content = self._parts(message, content)
        return message if content is message.get("content") else {**message, "content": content}

    def _parts(self, message: Message, parts: list[Any]) -> list[Any]:
        """Of several texts of a user's the last is what was typed, the others are attached."""
        texts = [i for i, part in enumerate(parts) if _is_text(part)]
        made = list(parts)
        for i in texts:
            attached = message.get("role") == "user" and i != texts[-1]
            text = self._content(message, parts[i]["text"], attached=attached)
            if text is not parts[i]["text"]:
                made[i] = {**parts[i], "text": text}
        return made if any(a is not b for a, b in zip(made, parts, strict=True)) else parts

    def _content(self, message: Message, text: str, *, attached: bool = False) -> str:
        self._left -= len(text)
        if self._left < 0:
            return text
        role = message.get("role")
        if is_pinned(message) or role not in ("user", "tool"):
            return self._kept(text)
        if role == "user" and not attached:
            return self._typed(text)
        return self._whole(text)

    def _whole(self, text: str) -> str:
        """A tool's result or an attached text: all of it, or else its blocks."""
        if (made := self._reference(text, as_json=_is_json(text))) is not None:
            return made
        if _is_json(text):
            return self._kept(text)
        return self._in_blocks(text, blocks_of(text))

    def _typed(self, text: str) -> str:
        if text in self._said:
            return text
        self._said.add(text)
        blocks = blocks_of(text)
        typed = [block for block in blocks if not block.pasted]
        spared = [*typed[:1], *typed[-1:]]
        return self._in_blocks(text, blocks, spared)

    def _in_blocks(self, text: str, blocks: Sequence[Block], spared: Sequence[Block] = ()) -> str:
        made: list[str] = []
        end = 0
        for block in blocks:
            body = text[block.start : block.end]
            reference = None if block in spared else self._reference(body)
            if reference is None:
                self._remember(body)
            made += [text[end : block.start], body if reference is None else reference]
            end = block.end
        joined = "".join([*made, text[end:]])
        if joined == text:
            self._remember(text)
            return text
        return joined

    def _kept(self, text: str) -> str:
        for block in blocks_of(text):
            self._remember(text[block.start : block.end])
        self._remember(text)
        return text

    def _remember(self, text: str) -> None:
        if self._counts(text):
            self._library.add(text.strip())

    def _reference(self, text: str, *, as_json: bool = False) -> str | None:
        """What stands for a text that repeats an earlier one; None if nothing shorter does."""
        if not self._counts(text) or (twin := self._library.find(text.strip())) is None:
            return None
        made = _in_json(twin) if as_json else _in_words(twin)
        if text_tokens(made) > WORTH * text_tokens(text):
            return None
        self.replaced += 1
        return made

    def _counts(self, text: str) -> bool:
        # Seven of the lightest characters are a token: most texts need no counting.
        return len(text) >= 7 * self._min_tokens or text_tokens(text) >= self._min_tokens


class DedupPolicy(Policy):
    """`min_tokens`: blocks that count less are left alone."""

    name = "dedup"

    def __init__(self, min_tokens: int, mode: Mode = "active") -> None:
        self.min_tokens = min_tokens
        self.mode = mode

    def decide(self, request: Request, context: Context) -> Decision:
        fold = Fold(self.min_tokens)
        messages = [fold.add(message) for message in request.messages]
        if not fold.replaced:
            return keep(f"nothing of {self.min_tokens} tokens is repeated")
        tools_tokens = json_tokens(request.tools) if request.tools else 0
        before = tools_tokens + sum(map(message_tokens, request.messages))
        after = tools_tokens + sum(map(message_tokens, messages))
        return rewrite(
            replace(request, messages=messages),
            f"{fold.replaced} repeated blocks: {before} to {after} tokens",
            prompt=PromptTokens(before, after),
        )


def _in_words(twin: Twin) -> str:
    place = f'[Repeated from above: the text from "{twin.begins}" to "{twin.ends}"'
    if not twin.changes:
        return f"{place}]"
    return "\n".join([f"{place}, with these changes:", *twin.changes, "]"])


def _in_json(twin: Twin) -> str:
    made: dict[str, Any] = {"repeated_from_above": {"from": twin.begins, "to": twin.ends}}
    if twin.changes:
        made["with_changes"] = twin.changes
    return json.dumps(made, ensure_ascii=False)


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
