"""A text as the blocks that people paste and tools return: paragraphs, documents, fenced code.

Blocks are separated by lines that are empty, a rule, or nothing but a tag; inside a code fence
only its end separates. So a block can be taken out and the fences and tags around it still pair.
"""

from __future__ import annotations

import re

import msgspec

_LINE = re.compile(r"[^\n]+")
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_SEPARATOR = re.compile(r"[-=*_#]{3,}|(</?)[A-Za-z][^<>]*>")
"""A line without the white space around it, which a pattern would share out in every way."""

_FENCES, _SEPARATING = ("`", "~"), "-=*_#<"
"""What such lines begin with: most lines need no pattern."""


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
    for found in _LINE.finditer(text):
        start, line = found.start(), found[0]
        bare = line.strip()
        opened = _FENCE.match(line) if bare[:1] in _FENCES else None
        after_empty = start > end + 1
        if fence:
            separates = opened is not None and bare.startswith(fence)
            fence_after = "" if separates else fence
        else:
            separates = opened is not None or _separates(bare)
            fence_after = opened[1] if opened else ""
        if begun is not None and (separates or (after_empty and not fence)):
            blocks.append(Block(begun, start - 1 if fence else end, bool(fence) or depth > 0))
            begun = None
        if begun is None and bare and not separates:
            begun = start
        if not fence and not opened and separates:
            depth = max(0, depth + _step(bare))
        fence, end = fence_after, found.end()
    if begun is not None:
        blocks.append(Block(begun, len(text) if fence else end, bool(fence) or depth > 0))
    return blocks


def _separates(bare: str) -> bool:
    return not bare or (bare[0] in _SEPARATING and _SEPARATOR.fullmatch(bare) is not None)


def _step(separator: str) -> int:
    """What a separator does to the depth of tags."""
    tag = _SEPARATOR.fullmatch(separator)
    if tag is None or tag[1] is None or separator.endswith("/>"):
        return 0
    return -1 if tag[1] == "</" else 1
