"""What may be written to a terminal, and in which colour."""

from __future__ import annotations

import os
import sys
import unicodedata

DIM = "2"
"""Codes of ANSI's SGR sequence; colours are 31 to 37."""


def printable(text: str) -> str:
    """Without control characters: a model's words must not be able to steer the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def painted(text: str, code: str) -> str:
    """In colour when standard output is a terminal whose user wants it (no-color.org)."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
