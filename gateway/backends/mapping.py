"""The one place where the transports' exceptions become errors of ours.

Every exception class of `aiohttp` and `websockets` is covered by a row below, and a test that
enumerates their classes keeps it so. Messages name the backend, never its address or key.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType

import aiohttp
from aiohttp import http_exceptions
from websockets import exceptions as websockets

from engine.protocol.errors import FewerError, InternalFault, Unavailable, UpstreamFailed

RETRY_AFTER_S = 2.0
"""When a connection failed: long enough for a restart of ours, short enough for a client."""

_UNREACHABLE = (Unavailable, "cannot be reached")
_BROKEN_OFF = (UpstreamFailed, "broke the connection off")
_SILENT = (UpstreamFailed, "did not answer in time")
_NONSENSE = (UpstreamFailed, "answered with something that is not HTTP")
_REDIRECTED = (UpstreamFailed, "answered with a redirect, which is not followed")
_UNTRUSTED = (UpstreamFailed, "has a certificate that is not valid")
_NO_SOCKET = (UpstreamFailed, "does not speak the engine's WebSocket protocol")
_MISUSED = (InternalFault, "was called wrongly; this is a fault of the gateway")

# The row of the nearest base class counts, in the order of Python's method resolution.
TABLE: dict[type[BaseException], tuple[type[FewerError], str]] = {
    aiohttp.ConnectionTimeoutError: _UNREACHABLE,
    aiohttp.SocketTimeoutError: _SILENT,
    aiohttp.ServerTimeoutError: _SILENT,
    aiohttp.ClientConnectorError: _UNREACHABLE,
    aiohttp.ClientSSLError: (UpstreamFailed, "failed the TLS handshake"),
    aiohttp.ClientConnectorCertificateError: _UNTRUSTED,
    aiohttp.ServerFingerprintMismatch: _UNTRUSTED,
    aiohttp.ClientConnectionError: _BROKEN_OFF,
    aiohttp.ClientOSError: _BROKEN_OFF,
    aiohttp.ClientPayloadError: _BROKEN_OFF,
    aiohttp.UploadAbortedError: _BROKEN_OFF,
    aiohttp.ClientResponseError: _NONSENSE,
    aiohttp.InvalidURL: _MISUSED,
    aiohttp.NonHttpUrlClientError: _MISUSED,
    aiohttp.RedirectClientError: _REDIRECTED,
    aiohttp.WSMessageTypeError: _MISUSED,
    http_exceptions.HttpProcessingError: _NONSENSE,
    websockets.ConnectionClosed: _BROKEN_OFF,
    websockets.InvalidURI: _MISUSED,
    websockets.InvalidProxy: _MISUSED,
    websockets.InvalidHandshake: _NO_SOCKET,
    websockets.ProtocolError: _NO_SOCKET,
    websockets.PayloadTooBig: _NO_SOCKET,
    websockets.TooManyFragments: _NO_SOCKET,
    websockets.InvalidState: _MISUSED,
    websockets.ConcurrencyError: _MISUSED,
    ConnectionRefusedError: _UNREACHABLE,
    TimeoutError: _SILENT,
    OSError: _BROKEN_OFF,
    EOFError: _BROKEN_OFF,
}  # fmt: skip

TRANSPORT_ERRORS = (
    aiohttp.ClientError,
    aiohttp.WSMessageTypeError,
    http_exceptions.HttpProcessingError,
    websockets.WebSocketException,
    asyncio.IncompleteReadError,
    OSError,
)
"""What `except` clauses around a transport name. `TimeoutError` is an `OSError`."""


def is_mapped(kind: type[BaseException]) -> bool:
    return any(base in TABLE for base in kind.__mro__)


def translate(error: BaseException, name: str) -> FewerError:
    """The error of ours that `error`, raised by a transport of the backend `name`, means."""
    rows = (TABLE[base] for base in type(error).__mro__ if base in TABLE)
    kind, what = next(rows, _BROKEN_OFF)
    retry_after_s = None if kind is InternalFault else RETRY_AFTER_S
    return kind(f"The backend of {name} {what}.", retry_after_s=retry_after_s)


class transport_errors(AbstractContextManager[None]):
    """Raise transports' exceptions as errors of ours; the original stays as the cause.

    Entered for every chunk: a generator would take four times as long.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, TRANSPORT_ERRORS):
            raise translate(error, self._name) from error
