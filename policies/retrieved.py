"""The texts in a request that a search has put there, each of which can be left out whole.

They are the entries of the parameter `documents`, and what stands in messages between tags that
name it: `<document>`, `<chunk>`, `<passage>` and their like. A single such element is a container:
the elements within it are the texts, or else its paragraphs. The model's own answers, pins and
results that are JSON are left as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.blocks import blocks_of
from policies.request import Request
from policies.turns import Message, is_pinned

_TAG = re.compile(
    r"<(/?)(document|doc|chunk|passage|snippet|excerpt|source|search_result|result|article|page|"
    r"context)(?:\s[^<>]*)?>",
    re.IGNORECASE,
)
_LINE_END = re.compile(r"[^\S\n]*\n?")


class Chunk(msgspec.Struct, frozen=True):
    """message, part: where it stands; `part` of a message whose content is a list. Of the parameter
                   `documents`, `part` alone
    start, end:    of what goes with it, its tags included
    """

    text: str
    message: int | None = None
    part: int | None = None
    start: int = 0
    end: int = 0


def chunks_of(request: Request) -> list[Chunk]:
    """In the order in which a model reads them. O(length)."""
    chunks: list[Chunk] = []
    for place, message in enumerate(request.messages):
        if message.get("role") == "assistant" or is_pinned(message):
            continue
        for part, text in _texts(message):
            spans = _spans(text)
            chunks += [Chunk(text[i:j], place, part, i, end) for i, j, end in spans]
    documents = request.parameters.get("documents")
    if isinstance(documents, list):
        chunks += [Chunk(_text_of(document), None, i) for i, document in enumerate(documents)]
    return chunks


def without(request: Request, chunks: Collection[Chunk]) -> Request:
    """`request` less these of its chunks; all else is as it was, and in its order."""
    messages = list(request.messages)
    in_messages = _grouped((chunk.message, chunk) for chunk in chunks)
    for place, own in in_messages.items():
        messages[place] = _cut(messages[place], own)
    left_out = {chunk.part for chunk in chunks if chunk.message is None}
    if not left_out:
        return replace(request, messages=messages)
    documents = request.parameters["documents"]
    kept = [document for i, document in enumerate(documents) if i not in left_out]
    return replace(request, messages=messages, parameters=request.parameters | {"documents": kept})


def question_of(request: Request) -> str:
    """What the user's last message says besides its chunks."""
    for message in reversed(request.messages):
        if message.get("role") == "user":
            return "\n".join(_outside(text) for _, text in _texts(message))
    return ""


def _texts(message: Message) -> Iterator[tuple[int | None, str]]:
    content = message.get("content")
    if isinstance(content, str):
        if not _is_json(content):
            yield None, content
    elif isinstance(content, list):
        for place, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                yield place, text


def _spans(text: str) -> list[tuple[int, int, int]]:
    """Of each chunk: where it begins, where it ends, and where what goes with it ends."""
    elements = list(_elements(text))
    if len(elements) == 1:
        start, end = elements[0][1]
        inner = list(_elements(text, start, end))
        bodies = [whole for whole, _ in inner]
        if len(inner) < 2:
            blocks = blocks_of(text[start:end])
            bodies = [(start + block.start, start + block.end) for block in blocks]
    else:
        bodies = [whole for whole, _ in elements]
    return [(i, j, _after(text, j)) for i, j in bodies]


def _elements(
    text: str, start: int = 0, end: int | None = None
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The outermost elements: where each begins and ends with its tags, and without them."""
    opening: re.Match[str] | None = None
    depth = 0
    for tag in _TAG.finditer(text, start, len(text) if end is None else end):
        if tag[0].endswith("/>"):
            continue
        if opening is None:
            if not tag[1]:
                opening, depth = tag, 1
        elif tag[2].lower() == opening[2].lower():
            depth += -1 if tag[1] else 1
            if depth == 0:
                yield (opening.start(), tag.end()), (opening.end(), tag.start())
                opening = None


def _after(text: str, end: int) -> int:
    """The line end goes too."""
    found = _LINE_END.match(text, end)
    return found.end() if found else end


def _outside(text: str) -> str:
    kept, end = [], 0
    for (start, after), _ in _elements(text):
        kept.append(text[end:start])
        end = after
    return "".join([*kept, text[end:]])


def _cut(message: Message, chunks: list[Chunk]) -> Message:
    content: Any = message["content"]
    if isinstance(content, str):
        return {**message, "content": _cut_text(content, chunks)}
    parts = list(content)
    for place, own in _grouped((chunk.part, chunk) for chunk in chunks).items():
        parts[place] = {**parts[place], "text": _cut_text(parts[place]["text"], own)}
    return {**message, "content": parts}


def _grouped(placed: Iterable[tuple[int | None, Chunk]]) -> dict[int, list[Chunk]]:
    groups: dict[int, list[Chunk]] = {}
    for place, chunk in placed:
        if place is not None:
            groups.setdefault(place, []).append(chunk)
    return groups


def _cut_text(text: str, chunks: list[Chunk]) -> str:
    kept, end = [], 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.start):
        kept.append(text[end : chunk.start])
        end = chunk.end
    return "".join([*kept, text[end:]])


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _text_of(document: Any) -> str:
    """Of an entry of `documents`: a text, or an object with texts in it."""
    if isinstance(document, str):
        return document
    if isinstance(document, dict):
        return "\n".join(_text_of(value) for value in document.values())
    return ""
