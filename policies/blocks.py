"""A text as the blocks that people paste and tools return: paragraphs, documents, fenced code.

Blocks are separated by lines that are empty, a rule, or nothing but a tag; inside a code fence
only its end separates. So a block can be taken out and the fences and tags around it still pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_SEPARATOR = re.compile(r"\s*(?:[-=*_#]{3,}|(</?)[A-Za-z][^<>]*>)?\s*")


class Block(msgspec.Struct, frozen=True):
    """`text[start:end]`, without the line end after it.

    pasted: it stands in a fence or between tags, which nobody types
    """

    start: int
    end: int
    pasted: bool


def blocks_of(text: str) -> list[Block]:
    """In their order. O(length); what is never closed ends with the text."""
    blocks: list[Block] = []
    begun: int | None = None
    fence = ""
    depth = end = 0
    for start, line in _lines(text):
        opened = _FENCE.match(line)
        if fence:
            separates = opened is not None and line.strip().startswith(fence)
            fence_after = "" if separates else fence
        else:
            separates = opened is not None or _SEPARATOR.fullmatch(line) is not None
            fence_after = opened[1] if opened else ""
        if separates:
            if begun is not None:
                blocks.append(Block(begun, end, pasted=bool(fence) or depth > 0))
            begun = None
        elif begun is None and line.strip():
            begun = start
        if not fence and not opened and separates:
            depth = max(0, depth + _step(line))
        fence, end = fence_after, start + len(line)
    if begun is not None:
        blocks.append(Block(begun, end, pasted=bool(fence) or depth > 0))
    return blocks


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line without its end, and where it begins."""
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1


def _step(line: str) -> int:
    """What a separator does to the depth of tags."""
    tag = _SEPARATOR.fullmatch(line)
    if tag is None or tag[1] is None or line.rstrip().endswith("/>"):
        return 0
    return -1 if tag[1] == "</" else 1
