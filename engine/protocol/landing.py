"""Where an answer may end cleanly: at the end of a sentence, of a list item, of a code fence.

The engine asks it where to stop after a soft limit, and the gateway for upstreams that cannot.
Both count characters of decoded text, and the outcome does not depend on how the text was cut
into pieces.

What may not be torn apart has no ends inside: fenced code (only its last line is one), inline
code, display mathematics, headings, table rows, and an answer that is data or markup as a whole.
A line that ends in a colon announces something. Thai and Lao mark no sentences: their lines end.
"""

from __future__ import annotations

import re

from engine.protocol.sentences import SentenceEnds

_HEAD_CHARS = 48
_LEAST_FENCE = 3
_ROWS_OF_A_TABLES_HEAD = 2

_ITEM = re.compile(
    r"(?:[-*+–]\s+"
    r"|[•◦▪‣●○·]\s*"
    r"|(?:\d{1,4}(?:\.\d{1,3})*|[A-Za-z]|[ivxIVX]{1,5})[.)]\s+"
    r"|(?:\d{1,3}|[一二三四五六七八九十]{1,3})[、．]\s*"
    r"|[（(](?:\d{1,3}|[a-z]|[一二三四五六七八九十]{1,3})[)）]\s*)"
    r".*\w"
)
_DATA = ("{", "<", "[{", "[[", '["')
"""How an answer begins that is data or markup."""


class LandingPoints:
    """Finds the ends in text that arrives in pieces.

    earliest: the first position, in characters from the beginning, at which an end counts; None
              for none yet. To be set before the text that reaches it is fed
    """

    def __init__(self) -> None:
        self.earliest: int | None = None
        self._sentences = SentenceEnds()
        self._chars = 0
        self._visible_end = 0
        self._last_end = 0
        self._opening = ""
        self._rows = 0
        self._block = ""
        self._start_line()

    def feed(self, text: str) -> int | None:
        """The first end that counts, as soon as `text` shows that it is one, else None.

        It is the position after the end's last character, which may be in an earlier piece;
        between it and what was fed before is nothing but white space. Not to be fed again then.
        """
        for char in text:
            end = self._line_end() if char == "\n" else self._within(char)
            self._chars += 1
            if end is not None:
                self._last_end = end
                if self.earliest is not None and end >= self.earliest:
                    return end
        return None

    @property
    def ends_cleanly(self) -> bool:
        """Is the place at which the text stands now such an end, if nothing follows it?"""
        if not self._visible_end or self._is_data:
            return False
        if self._last_end == self._visible_end:
            return True
        if self._block:
            return self._is_code and self._closes_block(self._head.rstrip())
        return not self._is_whole_line and self._sentences.at_cut() == self._visible_end

    @property
    def _is_data(self) -> bool:
        return self._opening.startswith(_DATA)

    @property
    def _is_whole_line(self) -> bool:
        """A heading or a row: nothing in it is an end."""
        return self._head.startswith(("#", "|"))

    @property
    def _is_code(self) -> bool:
        return self._block[:1] in ("`", "~")

    def _start_line(self) -> None:
        """head: the line's first characters; tail: its last two that are visible."""
        self._head = self._tail = ""
        self._announces = False
        self._dollars = 0
        self._sentences.start_line()

    def _within(self, char: str) -> int | None:
        position = self._chars
        if not char.isspace():
            self._visible_end = position + 1
            self._see(char)
        # What quotes and indents a line is no part of it.
        if len(self._head) < _HEAD_CHARS and (self._head or not (char.isspace() or char == ">")):
            self._head += char
        if self._block or self._is_whole_line or self._is_data:
            return None
        return self._sentences.feed(char, position)

    def _see(self, char: str) -> None:
        if len(self._opening) < 2:
            self._opening += char
        self._tail = self._tail[-1:] + char
        if char not in "*_":
            self._announces = char in ":："
        self._dollars = self._dollars + 1 if char == "$" else self._dollars

    def _line_end(self) -> int | None:
        """The end that this line's end is, or shows to be one. The next line begins."""
        head = self._head.rstrip()
        self._rows = self._rows + 1 if head.startswith("|") else 0
        if self._block:
            end = self._end_of_block(head)
        else:
            self._block = self._opened_by(head)
            end = None if self._block or self._is_data else self._end_of_line(head)
        self._start_line()
        return end

    def _end_of_block(self, head: str) -> int | None:
        if not self._closes_block(head):
            return None
        is_code, self._block = self._is_code, ""
        return self._visible_end if is_code else None

    def _closes_block(self, head: str) -> bool:
        """A code fence is closed by at least as many of the same marks, and nothing else."""
        if self._is_code:
            return head.startswith(self._block) and not head.strip(self._block[0])
        return self._dollars >= 2 if self._block == "$$" else self._tail == self._block

    def _opened_by(self, head: str) -> str:
        """What closes the block that this line opens; empty if it opens none.

        Backticks that the line leaves open count wherever they stand: models are careless.
        """
        if (ticks := self._sentences.open_ticks) >= _LEAST_FENCE:
            return "`" * ticks
        if head.startswith("~" * _LEAST_FENCE):
            return "~" * (len(head) - len(head.lstrip("~")))
        if head.startswith("$$") and self._dollars == 2:
            return "$$"
        return "\\]" if head == "\\[" else ""

    def _end_of_line(self, head: str) -> int | None:
        last = self._tail[-1:]
        if head.startswith("|"):
            is_row = last == "|" and self._rows > _ROWS_OF_A_TABLES_HEAD
            return self._visible_end if is_row else None
        is_title = head.startswith("#") or (head.startswith("**") and last == "*")
        if is_title or self._announces or not last:
            return None
        if (end := self._sentences.at_line_end()) is not None:
            return end
        is_item = _ITEM.match(head) is not None
        return self._visible_end if is_item or "\u0e00" <= last <= "\u0eff" else None
