"""What the sections of `fewer.yaml` are made of: kinds of values, and strict objects."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
FieldPath = Annotated[str, Meta(pattern=r"^\w+(\.\w+)*$")]
"""A field of a request, or one within another: `reasoning.max_tokens`."""


class Secret:
    """A string that shows itself only to who asks for `reveal()`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __repr__(self) -> str:
        return "Secret('***')"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the file. A key that it does not know is an error."""
