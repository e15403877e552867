"""Requests that wish for another protocol and stay in HTTP/1.1, body and all.

httptools takes whatever follows the headers of such a request for the other protocol, so that
uvicorn sees an empty body. But a server may ignore the wish (RFC 9110, 7.8), and some clients
utter it in every request: Java's HttpClient asks for h2c unless it is told not to.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class RequestParser(httptools.HttpRequestParser):
    """Keeps what stood behind the headers of a request that wished for an upgrade."""

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self.behind = b""
        # As uvicorn sets it: what follows a request that closes is left out, and no fault.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            self.behind = bytes(data[wish.args[0] :])
            raise


def head_for(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head that makes a new parser expect the body which `headers`, in lower case, announce."""
    framing = [b"%b: %b\r\n" % (name, value) for name, value in headers if name in _FRAMING]
    return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing)
