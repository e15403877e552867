"""Keeps what users wrote apart from what the chat template wrote, through any template.

A template mixes both into one string, in which its own `<|im_end|>` must become a control token
and a user's must not. So, before the template runs, the characters that markers are made of
(`<`, `|`, `>`, `[`: all of their characters but letters, digits, `_` and space) are replaced, in
everything that came from the user, by twins: lone surrogates, one code point for one. No
well-formed text has those, so a twin can only come from here, and it stays a twin whatever the
template does: slice, trim, join, split, measure, upper-case. Afterwards a marker is recognised
only where it consists of real characters, and then the twins are turned back.

A user can therefore neither write a marker, nor half of one for the template or another field
to complete. A template that builds `'<|' + role + '|>'` still does so: all but the word is its
own. What it asks about a text (`'</think>' in content`) is answered on the real characters, see
`template_environment`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from engine.text.wellformed import well_formed

_FIRST_TWIN = 0xD800
_TWINS = re.compile("[\ud800-\udfff]")
_NOT_SPECIAL = re.compile(r"[\w\s]")


class Guard:
    """The twins for one set of markers. Immutable."""

    def __init__(self, markers: Iterable[str]) -> None:
        special = sorted({c for marker in markers for c in marker if not _NOT_SPECIAL.match(c)})
        self._pairs = [(c, chr(_FIRST_TWIN + n)) for n, c in enumerate(special)]

    def guard(self, text: str) -> str:
        """As many characters, none of which can be part of a marker. Idempotent."""
        for character, twin in self._pairs:
            text = text.replace(character, twin)
        return text

    def restore(self, text: str) -> str:
        """The text as the user wrote it."""
        if not self.guarded(text):
            return text
        for character, twin in self._pairs:
            text = text.replace(twin, character)
        return text

    def guarded(self, text: str) -> bool:
        return not text.isascii() and _TWINS.search(text) is not None

    def guard_tree(self, value: Any) -> Any:
        """JSON-like data from a user, every string of it guarded, as new dicts and lists.

        Keys that are identifiers stay as they are: no marker consists of such characters only.
        """
        return _mapped(value, lambda text: self.guard(well_formed(text)))

    def restore_tree(self, value: Any) -> Any:
        return _mapped(value, self.restore)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, change) for item in value)
    return value
