"""Nothing of the transports leaks: each of their exception classes means an error of ours."""

from __future__ import annotations

import inspect
from types import ModuleType

import aiohttp
import pytest
from aiohttp import client_exceptions, http_exceptions
from websockets import exceptions as websockets

from engine.protocol.errors import FewerError, InternalFault, Unavailable, UpstreamFailed
from gateway.backends.mapping import TRANSPORT_ERRORS, is_mapped, translate, transport_errors

# The roots have no row on purpose: a new class right below them must be thought about.
ROOTS = {aiohttp.ClientError, websockets.WebSocketException}


def exceptions_of(module: ModuleType) -> set[type[BaseException]]:
    return {
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, BaseException)
        and value.__module__ == module.__name__
    }


@pytest.mark.parametrize(
    "module", [client_exceptions, http_exceptions, websockets], ids=lambda m: m.__name__
)
def test_every_exception_of_a_transport_is_mapped(module: ModuleType) -> None:
    kinds = exceptions_of(module) - ROOTS
    assert len(kinds) > 10
    unmapped = {kind.__name__ for kind in kinds if not is_mapped(kind)}
    assert not unmapped
    uncaught = {kind.__name__ for kind in kinds if not issubclass(kind, TRANSPORT_ERRORS)}
    assert not uncaught


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionRefusedError("x"), Unavailable),
        (ConnectionResetError("x"), UpstreamFailed),
        (TimeoutError(), UpstreamFailed),
        (aiohttp.ServerDisconnectedError(), UpstreamFailed),
        (aiohttp.ConnectionTimeoutError(), Unavailable),
        (aiohttp.SocketTimeoutError(), UpstreamFailed),
        (websockets.ConnectionClosedError(None, None), UpstreamFailed),
        (websockets.InvalidURI("x", "y"), InternalFault),
        (EOFError(), UpstreamFailed),
    ],
)
def test_the_nearest_row_counts(raised: Exception, kind: type[FewerError]) -> None:
    error = translate(raised, "large")
    assert type(error) is kind
    assert error.message.startswith("The backend of large ")
    assert (error.retry_after_s is None) == (kind is InternalFault)


def test_a_class_without_a_row_is_a_failed_upstream() -> None:
    assert type(translate(aiohttp.ClientError(), "large")) is UpstreamFailed


def test_the_cause_is_kept_and_other_errors_pass() -> None:
    cause = aiohttp.ClientPayloadError("secret address")
    with pytest.raises(UpstreamFailed) as mapped, transport_errors("large"):
        raise cause
    assert mapped.value.__cause__ is cause
    assert "secret" not in mapped.value.message
    with pytest.raises(KeyError), transport_errors("large"):
        raise KeyError("x")
