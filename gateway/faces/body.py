"""JSON bodies of the gateway's own pages, held to the same rules as the configuration."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from engine.protocol.body import decode_object
from engine.protocol.errors import InvalidRequest
from gateway.config_file import Document, decode

_T = TypeVar("_T")


class _Body(Document):
    """What is wrong is a 400 that names the field."""

    def fail(self, key: tuple[str, ...], message: str) -> NoReturn:
        field = ".".join(key)
        raise InvalidRequest(f"{field or 'The body'}: {message}", param=field or None)


def read(data: bytes, kind: type[_T]) -> _T:
    """The body as a `kind`; none at all is an empty one. Raises `InvalidRequest`."""
    return decode(_Body("body", decode_object(data or b"{}"), {}), kind)
